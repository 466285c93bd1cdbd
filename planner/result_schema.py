"""The schemas of results, generated from the classes that describe them; open, unlike those of plans."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from .fields import first_line
from .plans import COMMANDS, plan_class
from .results import RESULTS
from .schema import PLAIN, Schema, head


def result_schemas() -> dict[str, Schema]:
    """`result.<command>` for every command."""
    return {f"result.{command}": _result_schema(command) for command in COMMANDS}


def _result_schema(command: str) -> Schema:
    cls = RESULTS[command]
    title = f"localllm {command.replace('.', ' ')}: result"
    if cls is None:
        return {**head(f"result.{command}", title, first_line(plan_class(command))), "type": "object"}
    definitions: dict[str, Schema] = {}
    body = _object(cls, definitions)
    schema = {**head(f"result.{command}", title, first_line(cls)), **body}
    return {**schema, "$defs": dict(sorted(definitions.items()))} if definitions else schema


def _object(cls: type[Any], definitions: dict[str, Schema]) -> Schema:
    attrs.resolve_types(cls)
    fields = attrs.fields(cls)
    return {
        "type": "object",
        "properties": {field.name: _value(field.type, definitions) for field in fields},
        "required": [field.name for field in fields if field.default is attrs.NOTHING],
    }


def _value(annotation: Any, definitions: dict[str, Schema]) -> Schema:
    origin = get_origin(annotation)
    if annotation is Any:
        return {}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_value(member, definitions) for member in get_args(annotation)]}
    if origin is Literal:
        return {"enum": list(get_args(annotation))}
    if origin is tuple:
        return {"type": "array", "items": _value(get_args(annotation)[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _value(get_args(annotation)[1], definitions)}
    if attrs.has(annotation):
        name = annotation.__name__
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = {"description": first_line(annotation), **_object(annotation, definitions)}
        return {"$ref": f"#/$defs/{name}"}
    return {"type": PLAIN[annotation]}
