"""What differs between two JSON documents, value by value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from .files.nodes import Path, json_path

MISSING = object()


@frozen
class Difference:
    """One value that differs; `before` or `after` is absent where only one document has it."""

    path: str
    before: Any = MISSING
    after: Any = MISSING

    def as_dict(self) -> dict[str, Any]:
        """The difference as JSON; what one side lacks is left out."""
        out = {"path": self.path}
        if self.before is not MISSING:
            out["before"] = self.before
        if self.after is not MISSING:
            out["after"] = self.after
        return out


def differences(before: Any, after: Any, path: Path = ()) -> Iterator[Difference]:
    """Every smallest part that differs, in the order of the first document; 1 and true differ, 1 and 1.0 do not."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key, MISSING), after.get(key, MISSING), (*path, str(key)))
    elif isinstance(before, list) and isinstance(after, list):
        for position in range(max(len(before), len(after))):
            old = before[position] if position < len(before) else MISSING
            new = after[position] if position < len(after) else MISSING
            yield from differences(old, new, (*path, position))
    elif before is MISSING or after is MISSING or not _equal(before, after):
        yield Difference(json_path(path), before, after)


def _equal(before: Any, after: Any) -> bool:
    return bool(before == after) and isinstance(before, bool) == isinstance(after, bool)
