"""The schema of plan files, generated like those of plans; an editor that is given it completes every command."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from ..schema import Schema, class_schema, head, union_schema
from .document import PlanFileDocument

REFERENCE: Schema = {"type": "string", "pattern": "\\$\\{"}
"""A text with a variable, which may stand where something else than a text belongs."""
PLAN = "plan"
"""The definition that plans within steps keep."""


def plan_file_schema(plans: dict[str, Schema]) -> Schema:
    """The schema of a plan file, given each command's own."""
    definitions: dict[str, Schema] = {}
    body = class_schema(PlanFileDocument, definitions)
    step = definitions["StepDocument"]
    step["properties"]["plan"] = {"description": step["properties"]["plan"]["description"], "$ref": f"#/$defs/{PLAN}"}
    step["oneOf"] = [{"required": ["plan"]}, {"required": ["include"]}]
    union = union_schema({command: _with_references(schema) for command, schema in plans.items()})
    definitions.update(union.pop("$defs"))
    definitions[PLAN] = {key: value for key, value in union.items() if key not in ("$schema", "$id", "title")}
    return {
        **head("plan-file", "localllm plan file", "Plans as steps, with variables, expectations and captures"),
        **body,
        "$defs": dict(sorted(definitions.items())),
    }


def _with_references(schema: Schema) -> Schema:
    """A plan's schema in which any value may be a reference, and what defaults may give is not required."""
    relaxed = deepcopy(schema)
    _relax(relaxed)
    relaxed["required"] = ["command"]
    return relaxed


def _relax(schema: Any) -> None:
    if not isinstance(schema, dict):
        return
    for name, value in schema.get("properties", {}).items():
        _relax(value)
        if "const" not in value and value.get("type") != "string":
            described = {key: value.pop(key) for key in ("description", "default", "examples") if key in value}
            schema["properties"][name] = {**described, "anyOf": [dict(value), REFERENCE]}
    for key in ("items", "additionalProperties"):
        _relax(schema.get(key))
    for definition in schema.get("$defs", {}).values():
        _relax(definition)
