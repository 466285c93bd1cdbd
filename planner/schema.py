"""Writes the published JSON Schemas from the plan classes: `python -m localllm.planner.schema [--check]`."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from ..schemas import FOLDER, SUFFIX
from .fields import METADATA_KEY, FieldSpec, default_of, first_line
from .plans import COMMANDS, plan_class

DIALECT = "https://json-schema.org/draft/2020-12/schema"
VERSION = "1.0"
FIX = "the committed schemas are stale: run `make schemas` and commit the result"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "string", type(None): "null"}

Schema = dict[str, Any]


def generate() -> dict[str, Schema]:
    """Every published schema by its name."""
    from .documents import documents
    from .files.schema import plan_file_schema
    from .result_schema import result_schemas

    plans = {command: plan_schema(command) for command in COMMANDS}
    named = {f"plan.{command}": schema for command, schema in plans.items()}
    return {
        **named,
        "command-plan": union_schema(plans),
        "plan-file": plan_file_schema(plans),
        **documents(),
        **result_schemas(),
    }


def head(name: str, title: str, description: str) -> Schema:
    """The first lines of a published schema; the version in `$id` is the format's."""
    return {
        "$schema": DIALECT,
        "$id": f"urn:localllm:schema:{name}:{VERSION}",
        "title": title,
        "description": description,
    }


def plan_schema(command: str) -> Schema:
    """The schema of one command's plan."""
    cls = plan_class(command)
    definitions: dict[str, Schema] = {}
    body = class_schema(cls, definitions)
    body["properties"] = {"command": {"const": command}, **body["properties"]}
    body["required"] = ["command", *body.get("required", ())]
    schema = {**head(f"plan.{command}", f"localllm {command.replace('.', ' ')}", first_line(cls)), **body}
    if definitions:
        schema["$defs"] = dict(sorted(definitions.items()))
    return schema


def union_schema(plans: dict[str, Schema]) -> Schema:
    """Any plan: `command` picks the schema that the rest must keep, so a fault is named where it is.

    Self-contained, because an editor that is given one file finds no other.
    """
    definitions: dict[str, Schema] = {}
    for command, schema in plans.items():
        definitions.update(schema.get("$defs", {}))
        definitions[f"plan.{command}"] = {
            key: value for key, value in schema.items() if key not in ("$schema", "$id", "$defs")
        }
    return {
        **head("command-plan", "localllm plan", "Any command of localllm as a plan"),
        "type": "object",
        "properties": {"command": {"enum": list(plans), "description": "What to do"}},
        "required": ["command"],
        "allOf": [
            {
                "if": {"properties": {"command": {"const": command}}, "required": ["command"]},
                "then": {"$ref": f"#/$defs/plan.{command}"},
            }
            for command in plans
        ],
        "$defs": definitions,
    }


def class_schema(cls: type[Any], definitions: dict[str, Schema]) -> Schema:
    """The closed object schema of an attrs class; nested classes land in `definitions`."""
    attrs.resolve_types(cls)
    fields = [field for field in attrs.fields(cls) if METADATA_KEY in field.metadata]
    schema: Schema = {
        "type": "object",
        "properties": {json_name(field): property_schema(field, definitions) for field in fields},
        "additionalProperties": False,
    }
    required = [json_name(field) for field in fields if field.default is attrs.NOTHING]
    if required:
        schema["required"] = required
    return schema


def json_name(field: attrs.Attribute[Any]) -> str:
    """The name of a field in JSON: a Python keyword such as `if` is an attribute with `_` behind it."""
    return field.name.rstrip("_")


def property_schema(field: attrs.Attribute[Any], definitions: dict[str, Schema]) -> Schema:
    """One property: description, type, bounds, default, example."""
    spec: FieldSpec = field.metadata[METADATA_KEY]
    schema = {"description": spec.help, **type_schema(field.type, spec, definitions)}
    if spec.choices is not None:
        schema["enum"] = list(spec.choices)
    if field.default is not attrs.NOTHING and not spec.secret:
        default = default_of(field)
        if not isinstance(default, Path):
            schema["default"] = list(default) if isinstance(default, tuple) else default
    if spec.example is not None:
        schema["examples"] = [spec.example]
    return schema


def type_schema(annotation: Any, spec: FieldSpec, definitions: dict[str, Schema]) -> Schema:
    """The schema of a type with the bounds that apply to it. Raises TypeError for a type JSON cannot carry."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _union(get_args(annotation), spec, definitions)
    if origin is Literal:
        return {"enum": list(get_args(annotation))}
    if origin is tuple:
        bounds = _present(minItems=spec.min_length, maxItems=spec.max_length)
        item = FieldSpec(help="", min_length=spec.item_min_length, ge=spec.item_ge)
        return {"type": "array", "items": type_schema(get_args(annotation)[0], item, definitions), **bounds}
    if origin is dict:
        item = FieldSpec(help="")
        return {"type": "object", "additionalProperties": type_schema(get_args(annotation)[1], item, definitions)}
    if annotation is Any:
        return {}
    if attrs.has(annotation):
        if annotation.__name__ not in definitions:
            definitions[annotation.__name__] = {}
            body = {"description": first_line(annotation), **class_schema(annotation, definitions)}
            definitions[annotation.__name__] = body
        return {"$ref": f"#/$defs/{annotation.__name__}"}
    if annotation not in PLAIN:
        raise TypeError(f"no JSON Schema for the type {annotation!r}")
    return {"type": PLAIN[annotation], **_plain_bounds(annotation, spec)}


def _union(members: tuple[Any, ...], spec: FieldSpec, definitions: dict[str, Schema]) -> Schema:
    nullable = type(None) in members
    schemas = [type_schema(member, spec, definitions) for member in members if member is not type(None)]
    if nullable and len(schemas) == 1:
        return _or_null(schemas[0])
    return {"anyOf": [*schemas, {"type": "null"}] if nullable else schemas}


def _or_null(schema: Schema) -> Schema:
    """One schema that takes null too: flat where it can be, for speed and for plain messages."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "type" in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _plain_bounds(annotation: Any, spec: FieldSpec) -> Schema:
    if annotation is str:
        return _present(minLength=spec.min_length, maxLength=spec.max_length, pattern=spec.pattern)
    if annotation in (int, float):
        return _present(minimum=spec.ge, exclusiveMinimum=spec.gt, maximum=spec.le)
    return {}


def _present(**keywords: Any) -> Schema:
    return {key: value for key, value in keywords.items() if value is not None}


def render(schema: Schema) -> str:
    """The text of a schema file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def stale(folder: Path = FOLDER) -> list[str]:
    """The file names that `write` would change, add or remove."""
    wanted = {f"{name}{SUFFIX}": render(schema) for name, schema in generate().items()}
    present = {path.name: path.read_text("utf-8") for path in folder.glob(f"*{SUFFIX}")}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def write(folder: Path = FOLDER) -> list[str]:
    """Bring the folder up to date and return the file names that changed."""
    changed = stale(folder)
    wanted = {f"{name}{SUFFIX}": render(schema) for name, schema in generate().items()}
    for name in changed:
        if name in wanted:
            (folder / name).write_text(wanted[name], "utf-8")
        else:
            (folder / name).unlink()
    return changed


def main(argv: list[str]) -> int:
    """Write the schemas, or with `--check` only say whether they are stale (exit 1)."""
    if argv not in ([], ["--check"]):
        print("usage: python -m localllm.planner.schema [--check]", file=sys.stderr)
        return 2
    if argv:
        names = stale()
        if names:
            print(f"error: {FIX}\nhint: stale: {', '.join(names)}", file=sys.stderr)
        return 1 if names else 0
    for name in write():
        print(f"wrote schemas/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
