"""The ledger: what changed this machine's localllm, who did it, and what it was before.

One entry a line, `CRC32 JSON`, appended by a single write under a lock and synced once its plan has ended. A crash at
any byte leaves at most a torn last line: readers skip it, the next writer takes it away. While a plan runs, what is
known of it is a file in `ledger.running/`; one whose process died shows as interrupted, and the next plan that begins
makes its line. The files are readable by their owner alone. A full ledger becomes `ledger.jsonl.1`, and what that held
is forgotten, so the disk a ledger takes is bounded.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

from ..errors import AmbiguousName, NotFound
from .state import is_still, sync_folder

Door = Literal["cli", "http", "server", "apply", "replay"]
Outcome = Literal["done", "no", "failed", "interrupted", "running"]
"""`no` ran and answered no; `running` has no end yet and its process lives."""

VERSION = 2
BLOCK_BYTES = 64 * 1024
MOST_BYTES = 8_000_000
"""Size at which a file is full: some ten thousand entries."""


@frozen(kw_only=True)
class Actor:
    """Who asked for a plan: by which door, and by which key where one was shown. `secrets` within it stay unsaid."""

    door: Door = "cli"
    key: str | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)


@frozen(kw_only=True)
class Entry:
    """One executed plan as its line has it, or as far as it is known while it runs."""

    id: str
    record: dict[str, Any]

    @property
    def command(self) -> str:
        return str(self.record["plan"]["command"])

    @property
    def undo(self) -> dict[str, Any] | None:
        """What is needed to take it back, None where nothing can."""
        undo: dict[str, Any] | None = self.record.get("undo")
        return undo

    @property
    def outcome(self) -> Outcome:
        if "outcome" in self.record:
            ended: Outcome = self.record["outcome"]
            return ended
        return "running" if _lives(self.record) else "interrupted"


@frozen(kw_only=True)
class Ledger:
    """The file of one state folder. Any number of processes may append at once."""

    path: Path
    durable: bool = field(default=True)
    """Whether an append waits for the disk; a test of many entries may do without."""
    most_bytes: int = MOST_BYTES

    @property
    def older(self) -> Path:
        """The file before this one."""
        return self.path.with_name(f"{self.path.name}.1")

    @property
    def running(self) -> Path:
        """The folder of the plans that have not ended."""
        return self.path.with_name(f"{self.path.stem}.running")

    def begin(self, entry: str, record: dict[str, Any]) -> None:
        """Keep what is known of a plan that is about to run. Raises OSError, and then nothing of it stays."""
        with self._locked(0) as handle:
            self._settle(handle)
            path = self.running / entry
            self.running.mkdir(mode=0o700, exist_ok=True)
            marker = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                self._write(marker, framed({**record, "entry": entry}))
            except OSError:
                path.unlink()
                raise
            finally:
                os.close(marker)
            if self.durable:
                sync_folder(self.running)

    def end(self, entry: str, record: dict[str, Any]) -> None:
        """Write the one line of a plan that has ended. Raises OSError, and then it still shows as begun."""
        line = framed({**record, "entry": entry})
        with self._locked(len(line)) as handle:
            self._write(handle, line)
            # not synced: a marker that comes back after a power cut has its line already
            (self.running / entry).unlink(missing_ok=True)

    def append(self, record: dict[str, Any]) -> None:
        """Write one record. Raises OSError, and then nothing of it stays."""
        line = framed(record)
        with self._locked(len(line)) as handle:
            self._write(handle, line)

    def records(self) -> Iterator[dict[str, Any]]:
        """Every whole record, oldest first; damaged lines are skipped."""
        with ExitStack() as held:
            files = []
            for path in (self.path, self.older):  # the newer one first: a file that moves meanwhile is seen twice
                with suppress(FileNotFoundError):
                    files.append(held.enter_context(path.open("rb")))
            for file in reversed(files):
                yield from filter(None, map(unframed, file))

    def entries(self) -> list[Entry]:
        """Every entry, oldest first."""
        # those that run first: one that ends meanwhile is seen twice and not missed
        begun = [record for _, record in self._begun() if record is not None]
        found = {str(record["entry"]): record for record in self.records() if "plan" in record and "entry" in record}
        for record in sorted(begun, key=lambda each: str(each.get("time"))):
            found.setdefault(str(record["entry"]), record)
        return [Entry(id=name, record=record) for name, record in found.items()]

    def entry(self, name: str) -> Entry:
        """The entry of an id, of the unique beginning of one, or `last`. Raises NotFound and AmbiguousName."""
        entries = self.entries()
        if name == "last" and entries:
            return entries[-1]
        fitting = [entry for entry in entries if entry.id.startswith(name)]
        exact = [entry for entry in fitting if entry.id == name]
        if len(exact or fitting) == 1:
            return (exact or fitting)[0]
        if fitting:
            candidates = [entry.id for entry in fitting[:10]]
            raise AmbiguousName(f"several entries begin with `{name}`", candidates=candidates, param="entry")
        raise NotFound(f"the ledger has no entry `{name}`", hint="`localllm plan log` lists them", param="entry")

    def _begun(self) -> Iterator[tuple[Path, dict[str, Any] | None]]:
        """The plans that have not ended; None for a file that is not whole."""
        try:
            paths = sorted(self.running.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            with suppress(FileNotFoundError):
                yield path, unframed(path.read_bytes())

    def _settle(self, handle: int) -> None:
        """Make lines of the plans whose processes died. Under the lock, so a file that is not whole was never begun."""
        dead = [(path, record) for path, record in self._begun() if record is None or not _lives(record)]
        written = {str(record.get("entry")) for record in self.records()} if dead else set()
        for path, record in dead:
            if record is not None and path.name not in written:
                self._write(handle, framed({**record, "outcome": "interrupted"}))
            path.unlink(missing_ok=True)

    def _write(self, handle: int, line: bytes) -> None:
        """Append to an open file, as a whole or not at all."""
        size = os.fstat(handle).st_size
        try:
            written = os.write(handle, line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes fit")
            if self.durable:
                os.fsync(handle)
        except OSError:
            os.ftruncate(handle, size)
            raise

    @contextmanager
    def _locked(self, coming: int) -> Iterator[int]:
        handle = self._ready(coming)
        try:
            yield handle
        finally:
            os.close(handle)  # releases the lock

    def _ready(self, coming: int) -> int:
        """The open file with room for what is coming, locked until it is closed."""
        while True:
            handle = self._open()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if is_still(handle, self.path):  # else another writer moved it away while this one waited
                    size = _repaired(handle)
                    if size == 0 or size + coming <= self.most_bytes:
                        return handle
                    os.replace(self.path, self.older)
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(self.path, flags & ~os.O_CREAT)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, flags, 0o600)
            sync_folder(self.path.parent)
            return handle


def ledger_of(state_dir: str | Path) -> Ledger:
    """The ledger of a state folder."""
    return Ledger(path=Path(state_dir) / "ledger.jsonl")


def new_entry_id() -> str:
    """A name for an entry that no other has."""
    return secrets.token_hex(5)


def now() -> str:
    """This moment as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def described(actor: Actor) -> dict[str, Any]:
    """The actor as the ledger keeps it, with this process's user and pid."""
    from .instance import process_start

    out: dict[str, Any] = {"door": actor.door, "user": _user(), "pid": os.getpid()}
    if actor.key is not None:
        out["key"] = actor.key
    started = process_start(os.getpid())
    return out | ({"started": started} if started else {})


def framed(record: dict[str, Any]) -> bytes:
    """One line of the ledger; ASCII, so that no text of a plan can look like a line's end."""
    body = json.dumps({"v": VERSION, **record}, separators=(",", ":"), default=str).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(body), body)


def unframed(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None for one that is torn, damaged or not ours."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    try:
        if len(checksum) != 8 or int(checksum, 16) != zlib.crc32(body):
            return None
        record = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def duration_ms(began: float) -> float:
    """Milliseconds since a moment of the monotonic clock."""
    return round((time.monotonic() - began) * 1000, 3)


def _lives(record: dict[str, Any]) -> bool:
    """Whether the process that began a plan is there still."""
    from .instance import process_start

    actor = record.get("actor") or {}
    return bool(actor.get("started")) and process_start(int(actor["pid"])) == actor["started"]


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _repaired(handle: int) -> int:
    """End the file with a whole line, and give its size: a torn last line goes, one that lacks only its end stays."""
    size = os.fstat(handle).st_size
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return size
    start, tail = size, b""
    while start > 0 and b"\n" not in tail:
        start = max(0, start - BLOCK_BYTES)
        tail = os.pread(handle, size - start, start)
    torn = tail.rpartition(b"\n")[2]
    if unframed(torn) is not None:
        os.write(handle, b"\n")
        return size + 1
    os.ftruncate(handle, size - len(torn))
    return size - len(torn)
