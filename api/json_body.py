"""JSON as RFC 8259 has it, out of a request's bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import BadInput


def parse_json(body: bytes) -> Any:
    """The body's JSON value. Raises BadInput for anything RFC 8259 does not know, NaN and lone surrogates included."""
    if not body.strip():
        raise BadInput("the request body is empty", hint="send a JSON object")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise BadInput(f"the request body is not valid JSON: {fault}", hint="send a JSON object") from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Like `parse_json`, for bodies that must be an object."""
    value = parse_json(body)
    if not isinstance(value, dict):
        raise BadInput("the request body must be a JSON object")
    return value
