"""What localllm keeps on disk: where it lies, and writes that neither a crash nor a second writer can spoil."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InUse

LOCK_TIMEOUT_S = 10.0


def keys_file(state_dir: str | Path) -> Path:
    """The file with the hash of the API key."""
    return Path(state_dir) / "keys.json"


def instance_file(state_dir: str | Path) -> Path:
    """The file in which a running server says who and where it is."""
    return Path(state_dir) / "server.json"


def log_file(log_dir: str | Path) -> Path:
    """The server's current log; older parts have `.1`, `.2` behind the name."""
    return Path(log_dir) / "server.jsonl"


def write_atomically(path: Path, content: bytes, *, mode: int | None = None) -> None:
    """Replace the file's content as one step: a reader, or a crash at any point, sees the old or the new whole.

    `mode` None keeps the mode of the file that is there, 0600 for a new one. A link is followed, so that a config
    file kept elsewhere stays a link. Raises OSError.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    if mode is None:
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o600
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".new")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse to sync a folder
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, *, timeout_s: float = LOCK_TIMEOUT_S, passing: bool = False) -> Iterator[None]:
    """Hold the file for a read-change-write, so that two writers' changes both survive.

    The lock lies beside the file (`.NAME.lock`), because the file itself is replaced. It goes with the process,
    so a crash leaves nothing behind that blocks; `passing` takes its file away too, for paths that keep changing.
    Raises InUse when another holds it for longer than `timeout_s`.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    handle = _acquire(lock, path, timeout_s)
    try:
        yield
    finally:
        if passing:
            lock.unlink(missing_ok=True)
        os.close(handle)  # releases the lock


def is_still(handle: int, path: Path) -> bool:
    """Whether an open file is the one at the path, and was not moved or taken away since it was opened."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _acquire(lock: Path, path: Path, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_still(handle, lock):  # else its holder took it away between the two calls
                return handle
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(handle)
                raise InUse(f"another process holds `{path}`", hint="try again in a moment") from None
            time.sleep(0.01)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
