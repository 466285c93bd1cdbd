"""What an executor yields (progress, records, deltas and one result) and how that travels as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from attrs import field, fields, frozen

from ..errors import LocalLLMError, error_from_dict


@frozen(kw_only=True)
class Progress:
    """How far a long piece of work is; for people, on stderr, never part of the result.

    `current` and `total` count `unit`; `total` is None where it is not known.
    """

    stage: str
    message: str = ""
    current: float | None = None
    total: float | None = None
    unit: str = ""


@frozen(kw_only=True)
class Record:
    """One row of an answer that grows, such as a log line; `data` holds JSON values only."""

    data: dict[str, Any]


@frozen(kw_only=True)
class Delta:
    """A piece of a chat answer: the `choices[0]` part of one OpenAI chunk.

    `delta` has OpenAI's shape (`role`, `content`, `reasoning_content`, `tool_calls`); `finish_reason` is set on
    the last delta of each `index`; `logprobs` has OpenAI's chat shape.
    """

    index: int = 0
    delta: dict[str, Any] = field(factory=dict)
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


@frozen(kw_only=True)
class Result:
    """The end of a plan that ran; `ok=False` means the answer is no (exit 1). `data` holds JSON values only."""

    data: dict[str, Any]
    ok: bool = True


Event = Progress | Record | Delta | Result
Events = AsyncIterator[Event]

KINDS: dict[str, type[Any]] = {"result": Result, "record": Record, "delta": Delta, "progress": Progress}


def event_to_dict(event: Event) -> dict[str, Any]:
    """The event as one JSON object with `event` naming its kind; fields at their defaults are left out."""
    if isinstance(event, Result):
        return {"event": "result", "ok": event.ok, "data": event.data}
    if isinstance(event, Record):
        return {"event": "record", "data": event.data}
    if isinstance(event, Delta):
        return _without_defaults("delta", event, ("index", "delta"))
    return _without_defaults("progress", event, ("stage",))


def error_to_dict(error: LocalLLMError) -> dict[str, Any]:
    """The line that ends a stream of events instead of a result."""
    return {"event": "error", "error": error.as_dict()}


def event_from_dict(raw: dict[str, Any]) -> Event:
    """Rebuild what `event_to_dict` wrote. Raises the error of an error line, and ValueError for anything else."""
    kind = raw.get("event")
    if kind == "error":
        raise error_from_dict(raw.get("error") or {})
    cls = KINDS.get(str(kind))
    if cls is None:
        raise ValueError(f"`{kind}` is not a kind of event")
    # a newer server may add fields: what we don't know is dropped
    given = {attribute.name: raw[attribute.name] for attribute in fields(cls) if attribute.name in raw}
    try:
        event: Event = cls(**given)
    except TypeError as error:
        raise ValueError(f"a `{kind}` event lacks a field: {error}") from None
    return event


def to_line(event: Event | LocalLLMError) -> str:
    """One NDJSON line, newline included; ASCII only, so that no encoding can break it."""
    raw = error_to_dict(event) if isinstance(event, LocalLLMError) else event_to_dict(event)
    return json.dumps(raw, separators=(",", ":")) + "\n"


def _without_defaults(kind: str, event: Progress | Delta, always: tuple[str, ...]) -> dict[str, Any]:
    out: dict[str, Any] = {"event": kind}
    for attribute in fields(type(event)):
        value = getattr(event, attribute.name)
        if attribute.name in always or value not in (None, ""):
            out[attribute.name] = value
    return out
