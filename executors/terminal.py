"""Text that is safe to print: no raw control characters, no crash on a narrow encoding, colour only where wanted."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

# C0 and C1 controls, DEL, and the marks that reorder a line: a name must not rewrite what is around it
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# an answer keeps its line breaks, its tabs, and the marks of right-to-left scripts
_CONTROL_IN_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(value: object) -> str:
    """A name or value for one line of output, its control characters shown as escapes."""
    return _CONTROL.sub(_escape, str(value))


def printable_text(text: str) -> str:
    """A model's text for a terminal: lines and tabs stay, every other control character is shown as an escape."""
    return _CONTROL_IN_TEXT.sub(_escape, text.replace("\r\n", "\n"))


def write(stream: TextIO, text: str) -> None:
    """Write text; what the stream's encoding lacks is written as an escape instead of raising."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def is_interactive(stream: TextIO, env: Mapping[str, str] | None = None) -> bool:
    """Whether cursor codes may go to the stream: a terminal, not a dumb one, and no `NO_COLOR`."""
    env = os.environ if env is None else env
    try:
        terminal = stream.isatty()
    except ValueError:
        return False  # closed
    return terminal and env.get("TERM") != "dumb" and not env.get("NO_COLOR")


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns padded with blanks, readable without colour; `None` is shown as `-`."""
    cells = [list(headers), *([_cell(value) for value in row] for row in rows)]
    widths = [max(_width(row[i]) for row in cells) for i in range(len(headers))]
    lines = ("  ".join(text + " " * (widths[i] - _width(text)) for i, text in enumerate(row)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
    """`name  value` lines, the values in one column; pairs whose value is None are left out."""
    shown = [(name, _cell(value)) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in shown)


def size(count: float | None) -> str:
    """Bytes as people read them, in powers of 1000: `94.5 MB`."""
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def plural(count: int, noun: str) -> str:
    """`1 model`, `2 models`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(printable(item) for item in value) or "-"
    return printable(value)


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")
