"""What a model thinks apart from what it answers, while the text arrives in pieces.

Thinking is only what an answer begins with: a tag later in the answer is ordinary text. Blank space at both ends of the
thinking, and between it and the answer, is nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field


def thinking_asked(options: Mapping[str, Any]) -> Any:
    """What a request's template options say of thinking; None where they say nothing."""
    extra = options.get("chat_template_kwargs")
    given = {**options, **(extra if isinstance(extra, Mapping) else {})}
    return given.get("enable_thinking", False if given.get("reasoning_effort") == "none" else None)


def held_back(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of `text` could be the beginning of a marker."""
    longest = min(len(text), max((len(marker) for marker in markers), default=1) - 1)
    for length in range(longest, 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0


@define
class ReasoningSplitter:
    """Splits pieces of text into (thinking, answer); joined, the two are the same for every way to cut the text.

    `tags` are pairs of an opening and a closing tag; none of them means that all text is the answer, byte for byte.
    `opened` is the opening tag that the prompt ended with.
    """

    tags: tuple[tuple[str, str], ...] = ()
    opened: str | None = None
    _pending: str = field(default="", init=False)
    _closing: str | None = field(default=None, init=False)
    _state: str = field(default="start", init=False)
    _any_thought: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        if self.opened is not None:
            self._think(next((closing for opening, closing in self.tags if opening == self.opened), "</think>"))
        elif not self.tags:
            self._state = "answer"

    @property
    def thinking(self) -> bool:
        """Whether the next text is thinking, as far as is known."""
        return self._state == "thinking"

    def feed(self, text: str) -> tuple[str, str]:
        """Take the next text; give the thinking and the answer that are certain now."""
        self._pending += text
        thought = answer = ""
        if self._state == "start":
            self._start()
        if self._state == "thinking":
            thought = self._thought()
        if self._state == "after":
            self._pending = self._pending.lstrip()
            self._state = "answer" if self._pending else "after"
        if self._state == "answer":
            answer, self._pending = self._pending, ""
        return thought, answer

    def finish(self) -> tuple[str, str]:
        """The text that was held back."""
        rest, self._pending = self._pending, ""
        if self._state == "thinking":
            return (rest.rstrip() if self._any_thought else rest.strip()), ""
        return "", "" if self._state == "after" else rest

    def _start(self) -> None:
        seen = self._pending.lstrip()
        for opening, closing in self.tags:
            if seen.startswith(opening):
                self._pending = seen[len(opening) :]
                self._think(closing)
                return
        if not any(opening.startswith(seen) for opening, _ in self.tags):
            self._state = "answer"

    def _think(self, closing: str) -> None:
        self._closing, self._state = closing, "thinking"

    def _thought(self) -> str:
        if not self._any_thought:
            self._pending = self._pending.lstrip()
        closing = self._closing or ""
        thought, found, after = self._pending.partition(closing)
        if found:
            self._pending, self._state = after, "after"
            return thought.rstrip()
        certain = len(self._pending) - held_back(self._pending, (closing,))
        thought = self._pending[:certain].rstrip()
        self._pending = self._pending[len(thought) :]
        self._any_thought = self._any_thought or bool(thought)
        return thought
