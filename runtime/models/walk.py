"""Finds the GGUF files under a folder: through links, past loops and unreadable folders, in a stable order."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

from attrs import frozen

SUFFIX: Final = ".gguf"


@frozen(kw_only=True)
class FoundFile:
    """A file by the name it was found under; `device` and `inode` tell two names of one file."""

    path: str
    relative_path: str
    size_bytes: int
    mtime_ns: int
    device: int
    inode: int
    linked: bool
    """Reached through a symbolic link, its own or a folder's."""


def find_files(root: str) -> tuple[list[FoundFile], list[str]]:
    """Every GGUF file under `root`, sorted by relative path, and warnings about what could not be looked at.

    Linked folders are followed once, after all real ones, so that a file keeps the name of its real place.
    """
    found: list[FoundFile] = []
    warnings: list[str] = []
    seen: set[tuple[int, int]] = set()
    real, linked = [("", False)], list[tuple[str, bool]]()
    while real or linked:
        folder, through_link = real.pop() if real else linked.pop(0)
        path = os.path.join(root, folder) if folder else root
        try:
            info = os.stat(path)
            if (info.st_dev, info.st_ino) in seen:
                continue
            seen.add((info.st_dev, info.st_ino))
            with os.scandir(path) as entries:
                names = sorted(entries, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            where = f"the folder `{display_name(folder)}`" if folder else "the models folder"
            warnings.append(f"{where} cannot be read: {_reason(error)}")
            continue
        for entry, status in _look(names, folder, warnings):
            relative = f"{folder}/{entry.name}" if folder else entry.name
            is_link = entry.is_symlink()
            if stat.S_ISDIR(status.st_mode):
                (linked if is_link else real).append((relative, through_link or is_link))
            elif is_model_name(entry.name):
                if not stat.S_ISREG(status.st_mode):
                    warnings.append(f"`{display_name(relative)}` is not a regular file")
                    continue
                found.append(_found(root, relative, status, linked=through_link or is_link))
    found.sort(key=lambda file: os.fsencode(file.relative_path))
    return found, sorted(warnings)


def is_model_name(name: str) -> bool:
    """Whether a file name says GGUF; macOS writes `._x.gguf` beside files on foreign disks, which are no models."""
    return name.lower().endswith(SUFFIX) and not name.startswith("._")


def display_name(name: str) -> str:
    """A file name as text that JSON, a URL and a terminal can carry: odd bytes and control characters escaped."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(f"\\x{ord(char):02x}" if ord(char) < 32 or 127 <= ord(char) < 160 else char for char in text)


def _look(
    entries: list[os.DirEntry[str]], folder: str, warnings: list[str]
) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    for entry in entries:
        try:
            yield entry, entry.stat()
        except OSError as error:
            relative = display_name(f"{folder}/{entry.name}" if folder else entry.name)
            what = "is a dangling link" if isinstance(error, FileNotFoundError) else f"cannot be read: {_reason(error)}"
            warnings.append(f"`{relative}` {what}")


def _found(root: str, relative: str, status: os.stat_result, *, linked: bool) -> FoundFile:
    return FoundFile(
        path=os.path.join(root, relative),
        relative_path=relative,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        device=status.st_dev,
        inode=status.st_ino,
        linked=linked,
    )


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
