"""What an answer must conform to: `response_format` and its relatives, and the form of tool calls.

Calls are constrained by Lark grammars with the function's own schema at the place of its arguments, so that `$ref`
keeps its root. Where the model chooses to call (`auto`) the grammar starts behind the text that opens a call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve

from ...errors import BadInput, Unsupported
from ..json_form import json_form
from ..types import Constraint
from .tool_formats import FORMATS, Shape
from .tools import Function, ToolChoice, read_tool_choice

if TYPE_CHECKING:
    from ..types import GenerateRequest
    from .templates import ChatTemplate, Rendered

FORCED, CHOSEN = 3, 15
"""How many more calls an answer may hold after the first, where it must call and where it chose to. A small model that
must call does not know when to stop, and a call that `max_tokens` cuts is none.
"""

_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object")
_STRUCTURED = ("json", "regex", "choice", "grammar", "json_object")


def constraint_from_request(params: Mapping[str, Any]) -> Constraint | None:
    """The constraint that a request's parameters ask for.

    Understood are OpenAI's `response_format`, llama.cpp's `grammar` and `json_schema`, `regex`, and vLLM's `guided_*`
    and `structured_outputs`. Two of them at once, an unknown type, and a missing schema raise BadInput with `param`.
    """
    found: list[tuple[str, Constraint]] = []
    response_format = params.get("response_format")
    if response_format is not None:
        constraint = _response_format(response_format)
        found += [("response_format", constraint)] if constraint else []
    for name in ("grammar", "regex", "choice", "json_schema"):
        if params.get(name) is not None:
            found.append((name, _written(name, params[name], name)))
    for name in _GUIDED:
        if params.get(name) is not None and params[name] is not False:
            found.append((name, _written(name.removeprefix("guided_"), params[name], name)))
    found += _structured_outputs(params.get("structured_outputs"))
    if len(found) > 1:
        raise BadInput(f"`{found[0][0]}` and `{found[1][0]}` cannot be asked for together", param=found[1][0])
    if not found:
        return None
    loose = params.get("guided_whitespace_pattern") is not None
    return evolve(found[0][1], whitespace=True) if loose else found[0][1]


def _response_format(raw: Any) -> Constraint | None:
    kind = raw.get("type") if isinstance(raw, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = raw.get("schema")
        return _written("json", schema, "response_format.schema") if schema is not None else _json_object()
    if kind == "json_schema":
        wrapper = raw.get("json_schema")
        if not isinstance(wrapper, Mapping) or not isinstance(wrapper.get("schema"), (Mapping, bool)):
            raise BadInput("`json_schema` needs a schema", param="response_format.json_schema.schema")
        return _written("json", wrapper["schema"], "response_format.json_schema.schema")
    if kind in ("regex", "grammar") and isinstance(raw.get(kind) or raw.get("pattern"), str):
        return _written(kind, raw.get(kind) or raw.get("pattern"), f"response_format.{kind}")
    raise BadInput(
        "a response format's type is text, json_object, json_schema, regex or grammar", param="response_format.type"
    )


def _structured_outputs(raw: Any) -> list[tuple[str, Constraint]]:
    if raw is None:
        return []
    if not isinstance(raw, Mapping):
        raise BadInput("`structured_outputs` is an object", param="structured_outputs")
    return [
        (f"structured_outputs.{name}", _written(name, raw[name], f"structured_outputs.{name}"))
        for name in _STRUCTURED
        if raw.get(name) is not None and raw[name] is not False
    ]


def _json_object() -> Constraint:
    return Constraint(kind="json_object", source=None)


def _written(kind: str, value: Any, param: str) -> Constraint:
    match kind:
        case "json_object":
            return _json_object()
        case "json" | "json_schema":
            return Constraint(kind="json_schema", source=_schema(value, param), param=param)
        case "choice":
            return Constraint(kind="lark", source=_choice(value, param), param=param)
    if not isinstance(value, str) or not value:
        raise BadInput(f"`{param}` is a text", param=param)
    if kind == "regex":
        return Constraint(kind="regex", source=value, param=param)
    return Constraint(kind="gbnf" if "::=" in value else "lark", source=value, param=param)


def _schema(value: Any, param: str) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise BadInput("the schema is not JSON", param=param) from None
    if isinstance(value, bool):
        return value
    if not isinstance(value, Mapping):
        raise BadInput("a schema is an object", param=param)
    return dict(value)


def _choice(value: Any, param: str) -> str:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(item, str) and item for item in value):
        raise BadInput("a choice is a list of texts", param=param)
    return "start: " + " | ".join(_literal(item) for item in value)


def constraint_for(
    template: ChatTemplate, request: GenerateRequest, rendered: Rendered | None = None
) -> Constraint | None:
    """The constraint of a request, its tools considered.

    After a prompt that opens what the model thinks, the constraint starts at the closing tag. Raises BadInput for
    tools and choices that make no sense, Unsupported where tools and a free grammar are asked for together.
    """
    choice = read_tool_choice(request.tools, request.tool_choice)
    parallel = request.template_options.get("parallel_tool_calls") is not False and not choice.named
    closing = _closing_tag(template, rendered)
    constraint = request.constraint
    if choice.mode == "required":
        source = call_grammar(template.tool_format, choice, parallel=parallel)
        constraint = Constraint(kind="lark", source=source, schemas=_schemas(choice))
    elif choice.mode == "auto" and constraint is None:
        trigger, source = triggered_grammar(template.tool_format, choice, parallel=parallel)
        return Constraint(kind="lark", source=source, trigger=trigger, schemas=_schemas(choice, strict_only=True))
    elif choice.mode == "auto" and constraint is not None:
        constraint = _either(constraint, template.tool_format, choice, parallel=parallel)
    if constraint is None or closing is None or constraint.trigger is not None:
        return constraint
    return evolve(constraint, trigger=closing, required=True)


def _schemas(choice: ToolChoice, *, strict_only: bool = False) -> tuple[tuple[str, Any], ...]:
    """The schemas that the calls of these functions are held to, by their place in the request."""
    held = [function for function in choice.functions if function.strict or not strict_only]
    return tuple((f"tools[{function.at}].function.parameters", function.parameters) for function in held)


def _closing_tag(template: ChatTemplate, rendered: Rendered | None) -> str | None:
    opened = rendered.reasoning_open if rendered else None
    return next((closing for opening, closing in template.reasoning if opening == opened), None)


def _either(constraint: Constraint, tool_format: str, choice: ToolChoice, *, parallel: bool) -> Constraint:
    if constraint.kind not in ("json_object", "json_schema"):
        raise Unsupported(
            "a grammar and tools that the model may choose are not supported together",
            hint="set `tool_choice` to none or required",
            param="tool_choice",
        )
    schema = {"type": "object"} if constraint.kind == "json_object" else constraint.source
    calls = call_grammar(tool_format, choice, parallel=parallel, start="calls")
    answer = f"answer: %json {json_text(schema, loose=constraint.whitespace)}\n"
    own = ((constraint.param or "response_format", schema),)
    return evolve(
        constraint, kind="lark", source="start: answer | calls\n" + answer + calls, schemas=own + _schemas(choice)
    )


def json_text(schema: Any, *, loose: bool = False) -> str:
    """A schema as `%json` takes it, with the form that all our JSON has."""
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        return json.dumps(schema)
    return json.dumps({**schema, "x-guidance": json_form(loose=loose)}, ensure_ascii=False)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def call_grammar(tool_format: str, choice: ToolChoice, *, parallel: bool, start: str = "start") -> str:
    """The grammar of an answer that is one or more calls, each with the schema of its function."""
    shape = FORMATS[tool_format].shape
    opening, between, closing = shape.opening, shape.between, shape.closing
    more = FORCED if parallel else 0
    if shape.counter:
        calls, rest = "call0", ""
        for number in range(more, 0, -1):
            rest = f" ({_joined(between)}call{number}{rest})?"
        rules = _call_rules(tool_format, choice.functions, schemas=True, numbers=range(more + 1))
    else:
        calls, rest = "call", f" ({_joined(between)}call){{0,{more}}}" if more else ""
        rules = _call_rules(tool_format, choice.functions, schemas=True)
    return "\n".join([f"{start}: {_joined(opening)}{calls}{rest}{_joined(closing, after=True)}", *rules]) + "\n"


def triggered_grammar(tool_format: str, choice: ToolChoice, *, parallel: bool) -> tuple[str, str]:
    """The text that starts the grammar, and the grammar of what follows that text.

    Arguments of functions that are not strict may be any JSON object. Calls that are numbered may bear any number: a
    model that chose to call may count on from the calls before.
    """
    shape = FORMATS[tool_format].shape
    opening, between, closing, trigger = shape.opening, shape.between, shape.closing, shape.trigger
    if opening:
        first = f"{_joined(opening.removeprefix(trigger))}call"
    else:
        first = f"{_joined(shape.call.removeprefix(trigger))}named"
    more = f" ({_joined(between)}call){{0,{CHOSEN}}}"
    lines = [f"start: {first}{more if parallel else ''}{_joined(closing, after=True)}"]
    return trigger, "\n".join([*lines, *_call_rules(tool_format, choice.functions, schemas=False)]) + "\n"


def _joined(text: str, *, after: bool = False) -> str:
    if not text:
        return ""
    return f" {_literal(text)}" if after else f"{_literal(text)} "


def _call_rules(
    tool_format: str, functions: tuple[Function, ...], *, schemas: bool, numbers: Sequence[int] = ()
) -> list[str]:
    """The rules of `call`, or of `call0`, `call1`, … where `numbers` says which number each call bears."""
    shape = FORMATS[tool_format].shape
    rules: list[str] = []
    for of in map(str, numbers) if numbers else ("",):
        rules.append(f"call{of}: {_literal(shape.call)} named{of}")
        rules.append(f"named{of}: " + " | ".join(_named_call(shape, at, f, of) for at, f in enumerate(functions)))
    for i, function in enumerate(functions):
        if tool_format == "function_xml":
            rules += _xml_rules(f"a{i}", function)
        else:
            schema = function.parameters if schemas or function.strict else {"type": "object"}
            rules.append(f"a{i}: %json {json_text(schema)}")
    return rules


def _named_call(shape: Shape, at: int, function: Function, number: str) -> str:
    """A call from its name on; without a number, a shape that counts takes any."""
    name = json.dumps(function.name) if shape.quoted else function.name
    if shape.counter and not number:
        head = f"{_literal(name + shape.counter)} /[0-9]{{1,4}}/ {_literal(shape.middle)}"
    else:
        head = _literal(name + (shape.numbered(int(number)) if shape.counter else shape.middle))
    return f"{head} a{at} {_literal(shape.close)}"


def _xml_rules(rule: str, function: Function) -> list[str]:
    """`<parameter=k>` blocks in the schema's order; texts stand as they are, other values as JSON."""
    properties = function.parameters.get("properties") or {}
    required = function.parameters.get("required") or []
    parts: list[str] = []
    rules: list[str] = []
    for j, (key, schema) in enumerate(properties.items()):
        parts.append(f"{rule}p{j}" + ("" if key in required else "?"))
        opening = _literal(f"<parameter={key}>\n")
        if isinstance(schema, Mapping) and schema.get("type") == "string" and "enum" not in schema:
            rules.append(f"{rule}p{j}: {opening} {rule}t{j}")
            rules.append(f'{rule}t{j}[suffix="\\n</parameter>\\n"]: /(?s:.*)/')
        elif isinstance(schema, Mapping) and schema.get("type") == "string":
            texts = " | ".join(_literal(str(item)) for item in schema["enum"])
            rules.append(f'{rule}p{j}: {opening} ({texts}) "\\n</parameter>\\n"')
        else:
            nested = (
                {**schema, "$defs": function.parameters.get("$defs", {})} if isinstance(schema, Mapping) else schema
            )
            rules.append(f'{rule}p{j}: {opening} {rule}v{j} "\\n</parameter>\\n"')
            rules.append(f"{rule}v{j}: %json {json_text(nested)}")
    return [f"{rule}: {' '.join(parts)}" if parts else f'{rule}: ""', *rules]
