"""From token bytes to the characters that may be shown: UTF-8 hold-back and stop strings. Pure."""

from __future__ import annotations

import codecs

from attrs import define, field


def find_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Where the first complete stop string begins, and which it is.

    First is the one that ends first, and among those the one that begins first: so the answer does not depend on
    how the text was cut into tokens.
    """
    found: tuple[int, int, str] | None = None
    for stop in stops:
        at = text.find(stop)
        if at >= 0 and (found is None or (at + len(stop), at) < found[:2]):
            found = (at + len(stop), at, stop)
    return (found[1], found[2]) if found else None


def held_back(text: str, stops: tuple[str, ...]) -> int:
    """How many characters at the end of `text` could still become a stop string."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest


@define
class TextStream:
    """One answer's text as it grows. Feed bytes, take whole characters that no stop string can swallow."""

    stops: tuple[str, ...] = ()
    stop_text: str | None = None
    """The stop string that ended the text, once one did."""
    _decoder: codecs.IncrementalDecoder = field(factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    _pending: str = ""

    def push(self, piece: bytes) -> str:
        """Add a token's bytes; returns the text to show now. A stray byte becomes U+FFFD."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """The text that was held back, at the end of the answer; a cut character becomes one U+FFFD."""
        if self.stop_text is not None:
            return ""
        shown = self._release(self._decoder.decode(b"", final=True))
        rest, self._pending = self._pending, ""
        return shown + rest

    def _release(self, new: str) -> str:
        if not self.stops:
            return new
        if self.stop_text is not None or not new:
            return ""
        text = self._pending + new
        stop = find_stop(text, self.stops)
        if stop is not None:
            at, self.stop_text = stop
            self._pending = ""
            return text[:at]
        keep = len(text) - held_back(text, self.stops)
        self._pending = text[keep:]
        return text[:keep]
