"""Groups the parts of split GGUF sets by their file names: `big-00001-of-00003.gguf`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from attrs import frozen

from .walk import SUFFIX, FoundFile

_PART: Final = re.compile(r"^(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$", re.DOTALL)


@frozen(kw_only=True)
class FileSet:
    """One model's files, in order of their parts; an ordinary file is a set of one."""

    stem: str
    """Relative path of the first part, without `.gguf`; its id where nothing else has the same name."""
    files: tuple[FoundFile, ...]
    count: int = 1
    prefix: str | None = None
    """The stem without `-00001-of-00003`; None for an ordinary file."""
    problem: str | None = None

    @property
    def first(self) -> FoundFile:
        """The file that stands for the set: part 1, or the lowest part there is."""
        return self.files[0]


def stem_of(relative_path: str) -> str:
    """A relative path without `.gguf`; a file named only `.gguf` keeps its name."""
    folder, _, name = relative_path.rpartition("/")
    stem = name[: -len(SUFFIX)] if name.lower().endswith(SUFFIX) and len(name) > len(SUFFIX) else name
    return f"{folder}/{stem}" if folder else stem


def group(files: Iterable[FoundFile]) -> list[FileSet]:
    """File sets in the order of their first files. `-00001-of-00001` is an ordinary file, part 4 of 3 a problem."""
    sets: list[FileSet] = []
    parts: dict[tuple[str, int], dict[int, FoundFile]] = {}
    for file in files:
        stem = stem_of(file.relative_path)
        match = _PART.match(stem)
        number, count = (int(match["number"]), int(match["count"])) if match else (1, 1)
        if match is None or (number, count) == (1, 1):
            sets.append(FileSet(stem=stem, files=(file,)))
        elif not 1 <= number <= count:
            problem = f"has an impossible part number in its name: part {number} of {count}"
            sets.append(FileSet(stem=stem, files=(file,), problem=problem))
        elif number in (known := parts.setdefault((match["prefix"], count), {})):
            problem = f"is part {number} of {count} a second time"
            sets.append(FileSet(stem=file.relative_path, files=(file,), problem=problem))
        else:
            known[number] = file
    sets.extend(_split_set(prefix, count, numbered) for (prefix, count), numbered in parts.items())
    return sorted(sets, key=lambda each: each.first.relative_path)


def sibling_parts(path: str) -> tuple[str, ...]:
    """The files of the set that `path` is the first part of, by their names alone; an ordinary file is its own set."""
    folder, slash, name = path.rpartition("/")
    suffix = name[-len(SUFFIX) :]
    match = _PART.match(name[: -len(SUFFIX)]) if suffix.lower() == SUFFIX else None
    if match is None or int(match["number"]) != 1:
        return (path,)
    count = int(match["count"])
    names = (f"{match['prefix']}-{number:05d}-of-{count:05d}{suffix}" for number in range(1, count + 1))
    return tuple(f"{folder}{slash}{each}" for each in names)


def _split_set(prefix: str, count: int, numbered: dict[int, FoundFile]) -> FileSet:
    name = prefix.rpartition("/")[2]
    missing = [number for number in range(1, count + 1) if number not in numbered]
    problem = None
    if missing:
        listed = ", ".join(f"`{name}-{number:05d}-of-{count:05d}{SUFFIX}`" for number in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        problem = f"is incomplete: {listed}{more} {'is' if len(missing) == 1 else 'are'} missing"
    return FileSet(
        stem=f"{prefix}-{1:05d}-of-{count:05d}",
        files=tuple(numbered[number] for number in sorted(numbered)),
        count=count,
        prefix=prefix,
        problem=problem,
    )
