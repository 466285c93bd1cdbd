"""The server's log: one JSON object a line, bounded by rotation, without secrets, and never in the way."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .state import log_file

if TYPE_CHECKING:
    from ..planner.settings import ResolvedSettings

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
HIDDEN = "***"
LONGEST_VALUE = 8000

_SECRET_NAME = re.compile(r"authorization|api.?key|password|secret|cookie|(^|_)(key|token)$", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"llm_[A-Za-z0-9_-]{20,}|(?i:bearer\s+)[^\s\"',]+|\bsk-[A-Za-z0-9_-]{16,}")


class LogBook:
    """Appends lines to the log and rotates it. A log that cannot be written never stops a request.

    Any thread may write. After a rotation readers find the older parts as `NAME.1` (newest) to `NAME.<keep>`, so
    there are at most `keep` + 1 files of about `max_bytes` each.
    """

    def __init__(
        self,
        path: Path,
        *,
        level: Level = "info",
        max_bytes: int = 10_000_000,
        keep: int = 3,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.level = level
        self.max_bytes = max_bytes
        self.keep = keep
        self.lost = 0
        """Lines that could not be written."""
        self._secrets = tuple(secret for secret in secrets if secret)
        self._lock = threading.Lock()

    def write(self, event: str, /, *, level: Level = "info", **fields: Any) -> None:
        """Append one event. Values are JSON, or shown by `str`; prompts and answers do not belong here."""
        if LEVELS.index(level) < LEVELS.index(self.level):
            return
        line = self._line(event, level, fields)
        with self._lock:
            try:
                self._rotate_before(len(line))
                # opened each time: a reader, an editor or a second process may have moved the file
                with self.path.open("ab") as file:
                    file.write(line)
            except OSError:
                self.lost += 1

    def _line(self, event: str, level: Level, fields: Mapping[str, Any]) -> bytes:
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        row = {"time": time, "level": level, "event": event}
        row |= {name: value for name, value in redacted(fields, self._secrets).items() if name not in row}
        # ASCII: control characters and line breaks of a name become escapes, so one event stays one line
        line = json.dumps(row, default=str, separators=(",", ":")) + "\n"
        if len(line) > min(self.max_bytes, 64_000):
            shortened = {"time": time, "level": level, "event": event[:200], "shortened": line[:400]}
            line = json.dumps(shortened, separators=(",", ":")) + "\n"
        return line.encode("ascii")

    def _rotate_before(self, coming: int) -> None:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return
        if size + coming <= self.max_bytes:
            return
        if self.keep == 0:
            self.path.unlink()
            return
        for number in range(self.keep, 1, -1):
            older = part(self.path, number - 1)
            if older.exists():
                older.replace(part(self.path, number))
        self.path.replace(part(self.path, 1))


def open_logbook(settings: ResolvedSettings) -> LogBook:
    """The log as the settings have it."""
    return LogBook(
        log_file(settings.log_dir),
        level=settings.log_level,
        max_bytes=settings.log_max_bytes,
        keep=settings.log_keep,
        secrets=(settings.api_key or "",),
    )


def part(path: Path, number: int) -> Path:
    """The file of an older part of the log; 0 is the current one."""
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


def redacted(value: Any, secrets: tuple[str, ...] = ()) -> Any:
    """The value with every secret shown as `***`: by the name it has, by its form, or because it is known."""
    if isinstance(value, Mapping):
        return {
            str(name): HIDDEN if item is not None and _is_secret(str(name), item) else redacted(item, secrets)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted(item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    text = hidden(value, secrets)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "…"


def hidden(text: str, secrets: tuple[str, ...] = ()) -> str:
    """A text of any length with known secrets, and what looks like one, shown as `***`."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _SECRET_TEXT.sub(HIDDEN, text)


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, (str, bytes)) and _SECRET_NAME.search(name) is not None
