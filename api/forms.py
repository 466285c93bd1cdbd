"""The many spellings of an answer's form (vLLM's, llama.cpp's) folded into the ones a plan has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from ..errors import BadInput, Unsupported
from .json_body import parse_json

_GUIDED = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_STRUCTURED = ("json", "json_object", "regex", "choice", "grammar")
_WITHOUT_EFFECT = ("disable_any_whitespace", "disable_fallback", "disable_additional_properties")
_SCHEMA = "response_format.json_schema.schema"


@define
class Form:
    """What a body says of its answer's form, in the plan's words."""

    fields: dict[str, Any] = field(factory=dict)
    spelling: dict[str, str] = field(factory=dict)
    """The client's names for the plan's fields, where they differ."""
    _asked: str | None = None

    def ask(self, kind: str, value: Any, spelt: str) -> None:
        """Take one wish in. Raises BadInput for a second one."""
        if self._asked is not None:
            raise BadInput(f"`{self._asked}` and `{spelt}` cannot be asked for together", param=spelt)
        self._asked = spelt
        if kind == "response_format":
            self.fields["response_format"] = value
        elif kind == "json":
            schema = _schema(value, spelt)
            self.fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
            self.spelling[_SCHEMA] = spelt
        elif kind == "json_object":
            self.fields["response_format"] = {"type": "json_object"}
        else:
            self.fields[kind] = value
            if spelt != kind:
                self.spelling[kind] = spelt


def form_of(given: Mapping[str, Any]) -> Form:
    """The form that a body asks for. Raises BadInput for two at once, Unsupported for one that is not known."""
    form = Form()
    if given.get("response_format") not in (None, {"type": "text"}):
        form.ask("response_format", given["response_format"], "response_format")
    if given.get("json_schema") not in (None, {}):
        form.ask("json", given["json_schema"], "json_schema")
    for name in ("grammar", "regex", "choice"):
        if given.get(name) not in (None, "", []):
            form.ask(name, given[name], name)
    for name, kind in _GUIDED.items():
        if given.get(name) is not None and given[name] is not False:
            form.ask(kind, given[name], name)
    loose = given.get("guided_whitespace_pattern") is not None or given.get("json_whitespace") is True
    structured = given.get("structured_outputs")
    if structured is not None:
        loose |= _structured(structured, form)
    if loose:
        form.fields["json_whitespace"] = True
    return form


def _structured(raw: Any, form: Form) -> bool:
    if not isinstance(raw, Mapping):
        raise BadInput("`structured_outputs` must be an object", param="structured_outputs")
    for name, value in raw.items():
        where = f"structured_outputs.{name}"
        if value is None or value is False or name in (*_WITHOUT_EFFECT, "whitespace_pattern"):
            continue
        if name not in _STRUCTURED:
            raise Unsupported(f"`{where[:100]}` is not supported", param=where[:100])
        form.ask(name, value, where)
    return raw.get("whitespace_pattern") is not None


def _schema(value: Any, spelt: str) -> Any:
    """A schema, which some clients send as the text of one."""
    if isinstance(value, str):
        try:
            return parse_json(value.encode("utf-8", "surrogatepass"))
        except BadInput:
            raise BadInput(f"`{spelt}` is a JSON Schema, and this is not JSON", param=spelt) from None
    return value
