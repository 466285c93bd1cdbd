"""An answer's events as the frames of a stream: OpenAI's chunks, of a conversation and of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import LocalLLMError
from ..executors.events import Delta
from .errors import error_object

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


class Chunks:
    """Turns one answer's deltas into the chunks of a `chat.completion`; one object a stream.

    The first chunk of each index carries the role, whatever the deltas say, and no later one does.
    """

    kind = "chat.completion.chunk"

    def __init__(self, envelope: Mapping[str, Any], *, include_usage: bool) -> None:
        self._head = {
            "id": envelope["id"],
            "object": self.kind,
            "created": envelope["created"],
            "model": envelope["model"],
        }
        self._include_usage = include_usage
        self._spoken: set[int] = set()

    def delta(self, event: Delta) -> bytes:
        """The frame of one delta."""
        return self._frame([self._choice(event)], None)

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The last chunk before `[DONE]`, empty where usage was not asked for."""
        return self._frame([], usage) if self._include_usage else b""

    def _choice(self, event: Delta) -> dict[str, Any]:
        delta = {key: value for key, value in event.delta.items() if key != "role"}
        if event.index not in self._spoken:
            self._spoken.add(event.index)
            delta = {"role": "assistant", "content": "", **delta}
        return {
            "index": event.index,
            "delta": delta,
            "logprobs": event.logprobs,
            "finish_reason": event.finish_reason,
        }

    def _frame(self, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None) -> bytes:
        chunk = {**self._head, "choices": choices}
        if self._include_usage:
            chunk["usage"] = usage
        return b"data: " + encode(chunk) + b"\n\n"


class TextChunks(Chunks):
    """The same for a `text_completion`, whose chunks look like the whole."""

    kind = "text_completion"

    def _choice(self, event: Delta) -> dict[str, Any]:
        return {
            "index": event.index,
            "text": event.delta.get("content") or "",
            "logprobs": event.logprobs,
            "finish_reason": event.finish_reason,
        }


def error_frame(error: LocalLLMError) -> bytes:
    """The one frame that ends a stream whose headers are out."""
    return b"data: " + encode(error_object(error)) + b"\n\n"
