"""What an executor yields: progress, records, deltas and one result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from attrs import field, frozen


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
    """The end of a plan that ran; `ok=False` means it ran and the answer is no (exit 1). `data` holds JSON values only."""

    data: dict[str, Any]
    ok: bool = True


Event = Progress | Record | Delta | Result
Events = AsyncIterator[Event]
