"""What the last replay of a file came to, kept after each step: for `--resume`, `--only-failed`, and for reports.

One line a step in a file of the state folder, so that memory stays flat however many steps there are and a killed
replay loses at most the step that ran. Values that steps captured are kept with it, unless they hold a secret.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

from attrs import define, field, frozen

from ...errors import InUse
from ..logbook import redacted
from ..state import locked

Key = tuple[int, int]
"""A step's number within its file and which of its iterations, 0 where it has but one."""
Mark = Literal["passed", "failed", "skipped"]
MARKS: dict[str, Mark] = {"passed": "passed", "failed": "failed", "skipped": "skipped"}
NOTHING: dict[str, Any] = {}
"""What most steps capture, one object for all of them."""


@frozen
class Earlier:
    """What an earlier replay left: each step's mark, and what the passed ones captured."""

    marks: dict[Key, tuple[str, Mark]] = field(factory=dict)
    captured: dict[Key, dict[str, Any]] = field(factory=dict)
    digest: str | None = None
    ended: bool = True

    def passed(self, key: Key, name: str) -> bool:
        """Whether that very step passed, with everything it captured kept."""
        return self.marks.get(key) == (name, "passed") and key in self.captured


@define
class Memory:
    """The file of one plan file's replay; without one (another replay holds it, or it can't be written) a spare one
    below the temporary folder serves the reports."""

    path: Path
    earlier: Earlier = field(factory=Earlier)
    _file: BinaryIO | None = None
    _held: ExitStack = field(factory=ExitStack)

    def start(self, digest: str) -> None:
        """Begin anew; what was read of the earlier replay stays, here and on disk, until each step has come to
        something new: who kills this replay as well goes on from there."""
        new = self.path.with_name(f"{self.path.name}.new")
        self._file = new.open("w+b")
        os.fchmod(self._file.fileno(), 0o600)
        self._write({"replay": "begin", "digest": digest})
        for (number, iteration), (name, mark) in self.earlier.marks.items():
            record = {"step": number, "iteration": iteration, "status": mark, "earlier": True, "before": True}
            self.keep(record, self.earlier.captured.get((number, iteration)), name)
        with suppress(OSError):  # that costs the memory, not the replay
            os.replace(new, self.path)

    def keep(self, record: dict[str, Any], captured: dict[str, Any] | None, name: str) -> None:
        """Keep a step's record; `captured` None says that the step captures what must not be kept."""
        line = {"record": record, "name": name}
        if captured is not None:
            line["captured"] = captured
        self._write(line)

    def end(self) -> None:
        """Say that the replay came to its end."""
        self._write({"replay": "end"})

    def records(self) -> Iterator[dict[str, Any]]:
        """Every step's record, in the order they were kept."""
        if self._file is None:
            return
        self._file.flush()
        self._file.seek(0)
        for line in self._file:
            record = json.loads(line).get("record")
            if record is not None:
                yield record
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Let go of the file, which stays for the next replay."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._held.close()

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n")
            self._file.flush()  # a killed process must not take it along
        except OSError:
            pass  # a full disk costs the memory, not the replay


def open_memory(source: str, state_dir: str | Path, *, recall: bool = True) -> Memory:
    """The memory of a plan file, with what the last replay left where `recall` asks for it.

    Raises InUse where another process replays the same file at this moment, and OSError.
    """
    name = hashlib.sha256(os.fsencode(os.path.abspath(source))).hexdigest()[:32]
    path = Path(state_dir) / "replay" / f"{name}.jsonl"
    held = ExitStack()
    held.enter_context(locked(path, timeout_s=0))
    return Memory(path=path, earlier=read_earlier(path) if recall else Earlier(), held=held)


def spare_memory() -> Memory:
    """A memory that nobody finds again."""
    import tempfile

    held = ExitStack()
    folder = held.enter_context(tempfile.TemporaryDirectory(prefix="localllm-replay-"))
    return Memory(path=Path(folder) / "records.jsonl", held=held)


def memory_of(source: str, state_dir: str | Path, *, recall: bool = True) -> tuple[Memory, str | None]:
    """A memory in any case, and why it is a spare one."""
    if source == "-":
        return spare_memory(), None
    try:
        return open_memory(source, state_dir, recall=recall), None
    except InUse:
        return spare_memory(), "another process replays it at this moment"
    except OSError as error:
        return spare_memory(), f"the state folder cannot be written: {error.strerror or error}"


def read_earlier(path: Path) -> Earlier:
    """What a replay left; damaged lines (the last one of a killed replay) are skipped."""
    marks: dict[Key, tuple[str, Mark]] = {}
    captured: dict[Key, dict[str, Any]] = {}
    digest: str | None = None
    ended = False
    before: dict[int, list[Key]] = {}
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    raw = json.loads(line)
                    if "record" in raw:
                        key = (int(raw["record"]["step"]), int(raw["record"].get("iteration", 0)))
                        if raw["record"].get("before"):
                            before.setdefault(key[0], []).append(key)
                        else:  # from here on the step is another one: it may have fewer iterations
                            for old in before.pop(key[0], ()):
                                marks.pop(old, None)
                                captured.pop(old, None)
                        marks[key] = (str(raw["name"]), MARKS[raw["record"]["status"]])
                        if "captured" in raw:
                            captured[key] = raw["captured"] or NOTHING
                    elif raw.get("replay") == "begin":
                        digest = raw.get("digest")
                    ended = raw.get("replay") == "end"
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue
    except OSError:
        return Earlier()
    return Earlier(marks, captured, digest, ended)


def keepable(captured: dict[str, Any], secrets: frozenset[str]) -> dict[str, Any] | None:
    """What was captured, or None where a secret is among it: no file of ours holds one."""
    hidden = redacted(captured, tuple(secrets))
    return captured if hidden == captured else None
