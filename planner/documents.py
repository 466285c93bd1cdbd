"""The schemas of what localllm writes: reports, events, errors, and the config file it reads."""

from __future__ import annotations

from typing import Any, get_args

from ..errors import error_classes
from .fields import Effect, Where
from .schema import Schema, class_schema, head
from .settings import ResolvedSettings

ANY_OBJECT: Schema = {"type": "object"}
TEXTS: Schema = {"type": "array", "items": {"type": "string"}}


def documents() -> dict[str, Schema]:
    """Every schema that is not a plan's, by its name. Results are open: a newer writer may say more."""
    return {"config": _config(), "error": _error(), "events": _events(), "report": _report()}


def _config() -> Schema:
    definitions: dict[str, Schema] = {}
    body = class_schema(ResolvedSettings, definitions)
    # A secret has no place in a file.
    body["properties"] = {
        name: schema for name, schema in body["properties"].items() if name not in ResolvedSettings.secrets()
    }
    return {**head("config", "localllm config", "The TOML file of settings"), **body}


def _error_object() -> Schema:
    classes = error_classes()
    return {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": f"One of {', '.join(sorted(classes))}, or a newer one"},
            "message": {"type": "string", "minLength": 1},
            "exit_code": {"type": "integer", "enum": sorted({cls.exit_code for cls in classes.values()})},
            "hint": {"type": "string"},
            "param": {"type": "string"},
            "data": ANY_OBJECT,
        },
        "required": ["code", "message", "exit_code"],
    }


def _error() -> Schema:
    return {
        **head("error", "localllm error", "What `--output json` prints when a command fails"),
        "type": "object",
        "properties": {"error": _error_object()},
        "required": ["error"],
    }


def _event(name: str, properties: Schema, *required: str) -> Schema:
    return {
        "if": {"properties": {"event": {"const": name}}, "required": ["event"]},
        "then": {"properties": properties, "required": list(required)},
    }


def _events() -> Schema:
    text, number = {"type": "string"}, {"type": ["number", "null"]}
    progress = {"stage": text, "message": text, "current": number, "total": number, "unit": text}
    delta = {
        "index": {"type": "integer", "minimum": 0},
        "delta": ANY_OBJECT,
        "finish_reason": {"type": ["string", "null"]},
    }
    return {
        **head("events", "localllm event", "One line of an event stream; the last is a result or an error"),
        "type": "object",
        "properties": {"event": {"enum": ["progress", "record", "delta", "result", "error"]}},
        "required": ["event"],
        "allOf": [
            _event("progress", progress, "stage"),
            _event("record", {"data": ANY_OBJECT}, "data"),
            _event("delta", delta, "delta"),
            _event("result", {"ok": {"type": "boolean"}, "data": ANY_OBJECT}, "ok", "data"),
            _event("error", {"error": _error_object()}, "error"),
        ],
    }


def _report() -> Schema:
    origin: dict[str, Any] = {
        "type": "object",
        "properties": {
            "value": {},
            "origin": {"type": "string"},
            "fate": {"enum": ["applied", "approximated", "ignored", "rejected"]},
            "reason": {"type": "string"},
        },
        "required": ["value", "origin"],
    }
    return {
        **head("report", "localllm plan report", "What `--dry-run` prints"),
        "type": "object",
        "properties": {
            "format_version": {"type": "string", "pattern": "^[0-9]+\\.[0-9]+$"},
            "plan": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
            "plan_id": {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
            "summary": {"type": "string", "minLength": 1},
            "effects": {"type": "array", "items": {"enum": list(get_args(Effect))}, "uniqueItems": True},
            "where": {"enum": list(get_args(Where))},
            "depth": {"enum": ["offline", "server"]},
            "resolved": ANY_OBJECT,
            "provenance": {"type": "object", "additionalProperties": origin},
            "preconditions": {
                "type": "array",
                "items": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
            },
            "unknown": TEXTS,
            "warnings": TEXTS,
            "diff": {"type": "object", "properties": {"before": {}, "after": {}}, "required": ["before", "after"]},
        },
        "required": [
            "format_version",
            "plan",
            "plan_id",
            "summary",
            "effects",
            "where",
            "resolved",
            "provenance",
            "preconditions",
            "unknown",
            "warnings",
        ],
    }
