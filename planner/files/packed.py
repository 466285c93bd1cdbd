"""The steps of a file as they are held while it runs: packed, each unpacked only while somebody looks at it.

A file of many steps is many small values; as Python objects they take some twenty times what their text does.
"""

from __future__ import annotations

import marshal
from array import array
from typing import Any

from attrs import define, field

DEEPEST = 100
"""How deeply a value may be nested for the short ways of reading; the long one has its own bound and its own words."""


class Unsure(Exception):
    """A short way of reading met what it does not know well enough: the long way decides, and says what is wrong."""


@define(eq=False)
class Packed:
    """The items of one list of a document, packed, each with the line and column it begins at."""

    _values: list[bytes] = field(factory=list)
    _lines: array[int] = field(factory=lambda: array("L"))
    _columns: array[int] = field(factory=lambda: array("L"))

    def add(self, value: Any, line: int, column: int) -> None:
        """Take one more item, a JSON value."""
        self._values.append(marshal.dumps(value))
        self._lines.append(line)
        self._columns.append(column)

    def __len__(self) -> int:
        return len(self._values)

    def value(self, position: int) -> Any:
        """A fresh copy of an item."""
        return marshal.loads(self._values[position])

    def place(self, position: int) -> tuple[int, int]:
        """The line and the column of an item."""
        return self._lines[position], self._columns[position]


def refuse_deep(value: Any) -> None:
    """Raise Unsure where a value is nested so deeply that code which walks it may run out of stack."""
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise Unsure
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its pairs, for the standard JSON decoder. Raises Unsure where a key is given twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unsure
    return found
