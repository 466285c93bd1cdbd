"""`localllm logs`: the newest lines of the server's log, and those to come."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..planner.report import Facts
from .events import Record, Result
from .logbook import LEVELS, part, redacted
from .preview import previewed
from .state import log_file

if TYPE_CHECKING:
    from ..planner.plans.logs import Logs
    from .context import Context
    from .events import Events

POLL_S = 0.25
BLOCK = 1 << 16
LONGEST_LINE = 1 << 20


def preview_logs(_plan: Logs, ctx: Context) -> Facts:
    """Which file would be read."""
    path = log_file(ctx.settings.log_dir)
    warnings = () if path.exists() else (f"there is no log at `{path}` yet",)
    return Facts(effects=("read",), resolved={"file": str(path)}, warnings=warnings)


@previewed(preview_logs)
async def logs(plan: Logs, ctx: Context) -> Events:
    """The newest lines, oldest first, as the result; with `follow` as records, without an end."""
    import asyncio

    path = log_file(ctx.settings.log_dir)
    secrets = (ctx.settings.api_key or "",)
    follower = Follower(path, at_end=True, keep=ctx.settings.log_keep)
    try:
        newest = await asyncio.to_thread(newest_lines, path, plan.lines, plan.level, follower.offset)
        if not plan.follow:
            shown = {} if ctx.on_server else {"file": str(path)}
            yield Result(data={**shown, "lines": redacted(newest, tuple(filter(None, secrets)))})
            return
        for row in newest:
            yield Record(data=redacted(row, tuple(filter(None, secrets))))
        while True:
            for row in follower.read():
                if _counts(row, plan.level):
                    yield Record(data=redacted(row, tuple(filter(None, secrets))))
            await asyncio.sleep(POLL_S)
    finally:
        follower.close()


def newest_lines(path: Path, count: int, level: str, end: int | None = None) -> list[dict[str, Any]]:
    """Up to `count` lines of at least that level from all parts of the log, oldest first.

    Files are read backwards, so that a large log costs what is shown. `end` is where the current part stops.
    """
    found: deque[dict[str, Any]] = deque()
    number = 0
    while len(found) < count and part(path, number).exists():
        with part(path, number).open("rb") as file:
            for line in _backwards(file, end if number == 0 else None):
                row = parse_line(line)
                if row is not None and _counts(row, level):
                    found.appendleft(row)
                    if len(found) == count:
                        break
        number += 1
    return list(found)


class Follower:
    """Reads what is appended to the log, through rotations, `keep` of them between two reads."""

    def __init__(self, path: Path, *, at_end: bool, keep: int = 100) -> None:
        self.path = path
        self.keep = keep
        self._file: BinaryIO | None = _opened(path)
        self._rest = b""
        if at_end and self._file is not None:
            self._file.seek(0, os.SEEK_END)

    @property
    def offset(self) -> int:
        """Where in the current part it is; 0 where there is no log yet."""
        return 0 if self._file is None else self._file.tell()

    def read(self) -> Iterator[dict[str, Any]]:
        """The whole lines that came since."""
        yield from self._lines()
        while (later := self._later()) is not None:
            yield from self._lines()  # what came between the read and the rotation
            self.close()
            self._file, self._rest = later, b""
            yield from self._lines()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _lines(self) -> Iterator[dict[str, Any]]:
        while self._file is not None and (block := self._file.read(BLOCK)):
            *lines, self._rest = (self._rest + block).split(b"\n")
            if len(self._rest) > LONGEST_LINE:
                self._rest = b""
            for line in lines:
                row = parse_line(line)
                if row is not None:
                    yield row

    def _later(self) -> BinaryIO | None:
        """The part after the one that is read; None where that is still the current one."""
        if self._file is None:
            return _opened(self.path)
        here = os.fstat(self._file.fileno())
        number = self._number_of(here)
        if number == 0:
            if here.st_size < self._file.tell():
                self._file.seek(0)  # emptied in place by another program
            return None
        later = _opened(self.path if number is None else part(self.path, number - 1))
        if later is not None and number is not None and self._number_of(here) != number:
            later.close()  # rotated again meanwhile: this is not the next one
            return self._later()
        return later

    def _number_of(self, here: os.stat_result) -> int | None:
        """Which part of the log the file is now; None where it has been dropped."""
        for number in range(self.keep + 1):
            try:
                there = part(self.path, number).stat()
            except OSError:
                continue
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                return number
        return None


def _opened(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except OSError:
        return None


def parse_line(line: bytes) -> dict[str, Any] | None:
    """A line of the log; one that is no JSON object (another program wrote it) is kept as a `text`."""
    if not line.strip():
        return None
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    return row if isinstance(row, dict) else {"level": "info", "event": "text", "text": line.decode("utf-8", "replace")}


def _counts(row: dict[str, Any], level: str) -> bool:
    rank: dict[str, int] = {name: number for number, name in enumerate(LEVELS)}
    return rank.get(str(row.get("level")), rank["info"]) >= rank[level]


def _backwards(file: BinaryIO, end: int | None) -> Iterator[bytes]:
    """The file's lines from the last to the first, up to `end`."""
    position = file.seek(0, os.SEEK_END) if end is None else end
    rest = b""
    while position > 0:
        step = min(BLOCK, position)
        position -= step
        file.seek(position)
        first, *lines = (file.read(step) + rest).split(b"\n")
        yield from reversed(lines)
        rest = first
    yield rest
