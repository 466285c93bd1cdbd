"""A document with the place of each of its values, so that a fault can be shown where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import define, frozen

Step = str | int
Path = tuple[Step, ...]


@frozen(order=True)
class Place:
    """Where something stands in a file; lines and columns count from 1."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@define(eq=False)
class Node:
    """One value of a text. `value` is a scalar, a list of nodes, or a list of `(key node, node)` pairs.

    `start` and `end` are offsets into the text; `key` of a pair is a node whose value is a string.
    """

    value: Any
    line: int
    column: int
    start: int
    end: int
    is_mapping: bool = False

    def pairs(self) -> list[tuple[Node, Node]]:
        """The pairs of a mapping, in order; none for anything else."""
        return self.value if self.is_mapping else []

    def items(self) -> list[Node]:
        """The items of a list; none for anything else."""
        return self.value if isinstance(self.value, list) and not self.is_mapping else []

    def child(self, step: Step) -> Node | None:
        """The value of a key, or the item of an index; None where there is none."""
        if self.is_mapping:
            return next((value for key, value in self.value if key.value == step), None)
        items = self.items()
        return items[step] if isinstance(step, int) and step < len(items) else None

    def at(self, path: Sequence[Step]) -> Node:
        """The value at a path, or the nearest one above it that exists."""
        node = self
        for step in path:
            found = node.child(step)
            if found is None:
                break
            node = found
        return node

    def key_at(self, path: Sequence[Step]) -> Node:
        """Like `at`, but the key itself where the path ends in a mapping: the place of an unknown field."""
        if path:
            above = self.at(path[:-1])
            for key, _ in above.pairs():
                if key.value == path[-1]:
                    return key
        return self.at(path)


def plain(node: Node) -> Any:
    """The document as JSON values."""
    if node.is_mapping:
        return {key.value: plain(value) for key, value in node.value}
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    return node.value


def path_of(json_path: str) -> Path:
    """The steps of a normalised JSONPath such as `$.steps[0].plan['a b']`, as problems carry it."""
    return tuple(_steps(json_path))


def json_path(steps: Sequence[Step]) -> str:
    """The JSONPath of a path."""
    parts = ["$"]
    for step in steps:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append(f".{step}" if step.isidentifier() else f"[{step!r}]")
    return "".join(parts)


def _steps(text: str) -> Iterator[Step]:
    import re
    from ast import literal_eval

    for match in re.finditer(r"\.([^.\[\]'\"]+)|\[(\d+)\]|\[('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]", text):
        name, index, quoted = match.groups()
        if name is not None:
            yield name
        elif index is not None:
            yield int(index)
        else:
            yield str(literal_eval(quoted))
