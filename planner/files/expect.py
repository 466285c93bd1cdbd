"""What a step's outcome should be: JSON Schema over it, with short forms that compile to JSON Schema.

An expectation is a mapping. A key that is a JSONPath (`$.result.usage.total_tokens`) or the name of a part of the
outcome (`exit_code`) says what each value there must be: a plain value it equals, or operators such as `{"<=": 64}`.
Every other key is a keyword of JSON Schema over the whole outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from attrs import field, frozen

from ...schemas import Problem

OUTCOME = ("ok", "exit_code", "http_status", "result", "error", "events", "duration_ms")
"""The parts of an outcome."""
ENDINGS = ("ok", "exit_code", "http_status", "error")
"""Who says something about one of these decides himself how a step may end; otherwise it must end well."""
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
KEYWORDS = frozenset(
    {"$defs", "$ref", "$comment", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "type", "enum", "const"}
    | {"properties", "patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties"}
    | {"required", "dependentRequired", "dependentSchemas", "minProperties", "maxProperties", "title", "description"}
)
"""What makes sense over the outcome, which is an object."""

Schema = dict[str, Any]


class ExpectFault(Exception):
    """An expectation that says nothing: what is wrong, and at which key."""

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.message = message
        self.path = path


@frozen
class Check:
    """One compiled line: each value that `path` selects must keep `schema`; `exists` None asks for at least one."""

    path: str
    schema: Schema = field(factory=dict)
    exists: bool | None = None


def check_expectations(expect: Mapping[str, Any], outcome: Mapping[str, Any]) -> list[Problem]:
    """What an outcome lacks of what was expected, each with its JSONPath; empty when all holds.

    An expectation that says nothing about how the step ends asks for `ok`. Raises ExpectFault.
    """
    return [problem for check in _with_ending(expect) for problem in _problems(check, outcome)]


def holds(condition: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Whether the document keeps a condition, which is written like an expectation. Raises ExpectFault."""
    return not any(True for check in compile_expectations(condition) for _ in _problems(check, document))


def compile_expectations(expect: Mapping[str, Any]) -> list[Check]:
    """The checks of an expectation. Raises ExpectFault for what is none."""
    from ...schemas.given import schema_problems

    checks: list[Check] = []
    whole: Schema = {}
    for key, wanted in expect.items():
        if is_path(key):
            compile_path(key)
            checks.append(_check(key, wanted, key))
        elif key in OUTCOME:
            checks.append(_check(f"$.{key}", wanted, key))
        elif key in KEYWORDS:
            whole[key] = wanted
        else:
            raise ExpectFault(_unknown(key, [*OUTCOME, *KEYWORDS], "is no part of an outcome and no JSONPath"), key)
    if whole:
        for problem in schema_problems(whole):
            raise ExpectFault(f"is no JSON Schema: {problem}", problem.path.split(".")[-1])
        checks.append(Check("$", whole))
    return checks


def capture(path: str, outcome: Mapping[str, Any]) -> Any:
    """The one value a JSONPath selects, or the list of them where it selects several. Raises LookupError for none."""
    found = select(path, outcome)
    if not found:
        raise LookupError(f"`{path}` selects nothing")
    return found[0] if len(found) == 1 and is_singular(path) else found


def select(path: str, document: Any) -> list[Any]:
    """Every value a JSONPath selects. Raises ExpectFault for what is no JSONPath."""
    return list(compile_path(path).find(document).values())


def is_singular(path: str) -> bool:
    """Whether a JSONPath can select one value at most."""
    return bool(compile_path(path).singular_query())


def is_path(key: str) -> bool:
    """Whether a key is a JSONPath rather than a keyword such as `$ref`."""
    return key == "$" or key.startswith(("$.", "$["))


@lru_cache(maxsize=1024)
def compile_path(path: str) -> Any:
    """A JSONPath (RFC 9535), compiled. Raises ExpectFault."""
    from jsonpath_rfc9535 import JSONPathError
    from jsonpath_rfc9535 import compile as compile_query

    try:
        return compile_query(path)
    except (JSONPathError, RecursionError) as error:
        raise ExpectFault(f"is no JSONPath: {str(error).splitlines()[0]}", path) from None


def _with_ending(expect: Mapping[str, Any]) -> list[Check]:
    checks = compile_expectations(expect)
    return checks if _mentions_ending(expect) else [Check("$.ok", {"const": True}), *checks]


def _mentions_ending(expect: Mapping[str, Any]) -> bool:
    properties = expect.get("properties")
    named = [*expect, *(properties if isinstance(properties, Mapping) else ())]
    return any(key in ENDINGS or key.startswith(tuple(f"$.{name}" for name in ENDINGS)) for key in named)


def _problems(check: Check, document: Any) -> Iterator[Problem]:
    from ...schemas.given import given_problems

    nodes = list(compile_path(check.path).find(document))
    if check.exists is False:
        if nodes:
            yield Problem(check.path, f"is there: {_shown(nodes[0].value)}")
        return
    if not nodes:
        yield Problem(check.path, "is not there")
    for node in nodes:
        place = _dotted(node.path()) if check.path != "$" else "$"
        for problem in given_problems(check.schema, node.value):
            yield Problem(place + problem.path.removeprefix("$"), _in_words(check.schema, node.value, problem))


def _in_words(schema: Schema, value: Any, problem: Problem) -> str:
    if "const" in schema and problem.path == "$":
        return f"is {_shown(value)}, not {_shown(schema['const'])}"
    return problem.message


def _check(path: str, wanted: Any, key: str) -> Check:
    """The check of one line; operators that say the same keyword twice are joined by `allOf`."""
    if not isinstance(wanted, Mapping):
        return Check(path, {"const": wanted})
    exists: bool | None = None
    parts: list[Schema] = []
    for operator, operand in wanted.items():
        if operator == "exists":
            if not isinstance(operand, bool):
                raise ExpectFault("`exists` is true or false", key, operator)
            exists = operand
        else:
            parts.append(_operator(operator, operand, key))
    if exists is False and parts:
        raise ExpectFault("what does not exist has no other property", key)
    keywords = [keyword for part in parts for keyword in part]
    if len(keywords) == len(set(keywords)):
        return Check(path, {name: value for part in parts for name, value in part.items()}, exists)
    return Check(path, {"allOf": parts}, exists)


def _operator(operator: str, operand: Any, key: str) -> Schema:
    compiler = OPERATORS.get(operator)
    if compiler is None:
        raise ExpectFault(_unknown(operator, list(OPERATORS), "is no operator"), key, operator)
    try:
        return compiler(operand)
    except ValueError as error:
        raise ExpectFault(f"`{operator}` {error}", key, operator) from None


def _equals(operand: Any) -> Schema:
    return {"const": operand}


def _differs(operand: Any) -> Schema:
    return {"not": {"const": operand}}


def _bound(keyword: str) -> Callable[[Any], Schema]:
    def compiled(operand: Any) -> Schema:
        if isinstance(operand, bool) or not isinstance(operand, (int, float)):
            raise ValueError("takes a number")
        return {"type": "number", keyword: operand}

    return compiled


def _matches(operand: Any) -> Schema:
    if not isinstance(operand, str):
        raise ValueError("takes a regular expression")
    try:
        re.compile(operand)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"takes a regular expression: {error}") from None
    return {"type": "string", "pattern": operand}


def _contains(operand: Any) -> Schema:
    """A text within a text, an item of a list, or a key of an object."""
    item = {"type": "array", "contains": {"const": operand}}
    if not isinstance(operand, str):
        return item
    text = {"type": "string", "pattern": re.escape(operand)}
    return {"anyOf": [text, item, {"type": "object", "required": [operand]}]}


def _starts_with(operand: Any) -> Schema:
    if not isinstance(operand, str):
        raise ValueError("takes a text")
    return {"type": "string", "pattern": "^" + re.escape(operand)}


def _length(operand: Any) -> Schema:
    """The length of a text or list, the size of an object: a number, or bounds such as `{">=": 1}`."""
    least, most = _bounds_of_length(operand)
    sizes: Schema = {"type": ["string", "array", "object"]}
    for keyword in ("Length", "Items", "Properties"):
        if least is not None:
            sizes[f"min{keyword}"] = least
        if most is not None:
            sizes[f"max{keyword}"] = most
    return sizes


def _bounds_of_length(operand: Any) -> tuple[int | None, int | None]:
    if isinstance(operand, int) and not isinstance(operand, bool) and operand >= 0:
        return operand, operand
    least: int | None = None
    most: int | None = None
    if not isinstance(operand, Mapping) or not operand:
        raise ValueError("takes a number, or bounds such as `{'>=': 1}`")
    for operator, bound in operand.items():
        if operator not in ("==", "<", "<=", ">", ">=") or isinstance(bound, bool) or not isinstance(bound, int):
            raise ValueError(f"takes a number, or bounds such as `{{'>=': 1}}`, not `{operator}: {bound}`")
        if operator in ("==", ">", ">="):
            least = max(0, bound + (operator == ">"))
        if operator in ("==", "<", "<="):
            most = max(0, bound - (operator == "<"))
    return least, most


def _type(operand: Any) -> Schema:
    names = operand if isinstance(operand, list) else [operand]
    if not names or any(name not in TYPES for name in names):
        raise ValueError(f"takes one of {', '.join(f'`{name}`' for name in TYPES)}")
    return {"type": operand}


def _one_of(operand: Any) -> Schema:
    if not isinstance(operand, list) or not operand:
        raise ValueError("takes a list of values")
    return {"enum": operand}


def _not(operand: Any) -> Schema:
    if not isinstance(operand, Mapping):
        return _differs(operand)
    parts = [_operator(name, value, "not") for name, value in operand.items()]
    return {"not": {"allOf": parts}}


def _each(operand: Any) -> Schema:
    if not isinstance(operand, Mapping):
        return {"type": "array", "items": {"const": operand}}
    return {"type": "array", "items": {"allOf": [_operator(name, value, "each") for name, value in operand.items()]}}


def _schema(operand: Any) -> Schema:
    from ...schemas.given import schema_problems

    for problem in schema_problems(operand):
        raise ValueError(f"takes a JSON Schema: {problem}")
    return {"allOf": [operand]}


OPERATORS: dict[str, Callable[[Any], Schema]] = {
    "equals": _equals,
    "==": _equals,
    "!=": _differs,
    "<": _bound("exclusiveMaximum"),
    "<=": _bound("maximum"),
    ">": _bound("exclusiveMinimum"),
    ">=": _bound("minimum"),
    "matches": _matches,
    "contains": _contains,
    "starts_with": _starts_with,
    "length": _length,
    "type": _type,
    "one_of": _one_of,
    "not": _not,
    "each": _each,
    "schema": _schema,
}
"""The short forms besides `exists`, each with what compiles its operand."""


def _unknown(key: str, known: list[str], words: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, known, n=1)
    return f"`{key}` {words}" + (f", did you mean `{near[0]}`?" if near else "")


def _dotted(normalized: str) -> str:
    """A normalised path as people write it: `$.result['a b']`."""
    return re.sub(r"\['([A-Za-z_][A-Za-z0-9_]*)'\]", r".\1", normalized)


def _shown(value: Any) -> str:
    import json

    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:50]}…{text[-49:]}"
