"""Changes values within the text of a plan file and leaves every other character, comments too, as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from attrs import frozen

from .nodes import Node, Path, plain
from .outline import read_recording
from .texts import TextFault, compose, scalar

Edits = Mapping[Path, Any]
"""New values by their path within the document; the last key of a path may be new."""


@frozen
class _Change:
    """Text to put in place of what is between two offsets."""

    start: int
    end: int
    text: str


def rewrite(text: str, edits: Edits, *, is_json: bool) -> str:
    """The text with new values at some paths; only what differs is touched.

    Raises TextFault, also for a value that an alias shares with another place, and KeyError for a path whose parent
    does not exist.
    """
    recorded = None if is_json else _rewrite_lines(text, edits)
    if recorded is not None:
        return recorded
    root = compose(text, is_json=is_json)
    shared = [] if is_json else _shared(root)
    changes: list[_Change] = []
    for path, value in edits.items():
        above = root
        for step in path[:-1]:
            found = above.child(step)
            if found is None:
                raise KeyError(path)
            above = found
        node = above.child(path[-1])
        if node is None:
            own = [_insertion(text, above, str(path[-1]), value, is_json)]
            least = above.pairs()[-1][0].start if above.pairs() else above.start
        else:
            own, least = _changes(text, above, node, value, is_json), 0
        _refuse_shared(shared, node or above, own, least)
        changes += own
    for change in sorted(changes, key=lambda change: change.start, reverse=True):
        text = text[: change.start] + change.text + text[change.end :]
    return text


def _shared(root: Node) -> list[tuple[int, int]]:
    """The offsets of what aliases name. An alias is read as a copy that stands where its original does: before its
    own place."""
    found: list[tuple[int, int]] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        before = node.start
        pairs = [(key.start, value) for key, value in node.pairs()]
        for at, value in pairs or [(before, item) for item in node.items()]:
            if value.start < at or (not pairs and value.start <= before):
                found.append((value.start, value.end))
                continue
            before = value.start
            waiting.append(value)
    return found


def _refuse_shared(shared: list[tuple[int, int]], node: Node, changes: list[_Change], least: int) -> None:
    """Raise TextFault where a change touches what an alias names, or would begin before `least` because its place
    is told from an alias."""
    for change in changes if shared else ():
        misplaced = change.end < change.start or change.start < least
        if misplaced or any(first <= change.end and change.start <= last for first, last in shared):
            message = "is shared by an alias: write it out at each place for it to be updated"
            raise TextFault(message, node.line, node.column)


def _rewrite_lines(text: str, edits: Edits) -> str | None:
    """A recording with each of its steps rewritten for itself, which takes a fraction of the memory of the whole; None
    for any other text, and for edits outside of its steps."""
    steps = read_recording(text)
    if steps is None or not all(len(path) > 2 and path[0] == "steps" for path in edits):
        return None
    by_line: dict[int, dict[Path, Any]] = {}
    for path, value in edits.items():
        if not isinstance(path[1], int) or path[1] >= len(steps):
            raise KeyError(path)
        line, _ = steps.place(path[1])
        by_line.setdefault(line - 1, {})[(0, *path[2:])] = value
    lines = text.split("\n")
    for number, own in by_line.items():
        lines[number] = rewrite(lines[number], own, is_json=False)
    return "\n".join(lines)


def dump_yaml(value: Any) -> str:
    """A JSON value as YAML in block style, which reads back as the same value."""
    import yaml

    text: str = yaml.dump(
        value, Dumper=_dumper(), default_flow_style=False, allow_unicode=True, sort_keys=False, width=120
    )
    return text.removesuffix("...\n")


def _changes(text: str, above: Node, node: Node, value: Any, is_json: bool) -> list[_Change]:
    """The smallest changes that make a node mean a value."""
    old = plain(node)
    if _same(old, value):
        return []
    if isinstance(old, dict) and isinstance(value, dict) and old and list(value)[: len(old)] == list(old):
        changes = [
            change for key, child in node.pairs() for change in _changes(text, node, child, value[key.value], is_json)
        ]
        added = list(value.items())[len(old) :]
        if not added:
            return changes
        if len(added) == 1:
            return [*changes, _insertion(text, node, *added[0], is_json)]
    if isinstance(old, list) and isinstance(value, list) and len(old) == len(value):
        pairs = zip(node.items(), value, strict=True)
        return [change for child, item in pairs for change in _changes(text, node, child, item, is_json)]
    rendered = _rendered(text, above, value, _indent_of(text, above) + 2, is_json)
    start = node.start
    if rendered.startswith("\n"):
        start = len(text[:start].rstrip(" "))  # no blanks stay at the end of a line,
        start -= text[start - 1] == "\n"  # and no empty line where the old value had lines of its own
    return [_Change(start, _end(text, node), rendered)]


def _insertion(text: str, above: Node, key: str, value: Any, is_json: bool) -> _Change:
    """A new pair at the end of a mapping."""
    pairs = above.pairs()
    if is_json or _is_flow(text, above):
        word = _flow(key, is_json)
        at = _end(text, pairs[-1][1]) if pairs else above.start + 1
        separator = ", " if pairs else ""
        if is_json and pairs and "\n" in text[above.start : pairs[-1][0].start]:
            separator = ",\n" + " " * (pairs[-1][0].column - 1)
        return _Change(at, at, f"{separator}{word}: {_flow(value, is_json)}")
    indent = _indent_of(text, above)
    last = _end(text, pairs[-1][1])
    at = text.find("\n", last)  # behind a comment on the same line
    at = len(text) if at < 0 else at
    block = dump_yaml({key: value}).rstrip("\n").replace("\n", "\n" + " " * indent)
    return _Change(at, at, "\n" + " " * indent + block)


def _rendered(text: str, above: Node, value: Any, indent: int, is_json: bool) -> str:
    if is_json or _is_flow(text, above) or not isinstance(value, (dict, list)) or not value:
        return _flow(value, is_json)
    block = dump_yaml(value).rstrip("\n")
    return "\n" + " " * indent + block.replace("\n", "\n" + " " * indent)


def _flow(value: Any, is_json: bool) -> str:
    """JSON on one line, which is YAML too once what YAML takes for no character is escaped in its way."""
    text = json.dumps(value, ensure_ascii=False)
    if is_json or text.isprintable():
        return text
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)


def _is_flow(text: str, node: Node) -> bool:
    return text[node.start : node.start + 1] in ("{", "[")


def _indent_of(text: str, above: Node) -> int:
    """The column of a mapping's keys; a key after `? ` stands further in."""
    pairs = above.pairs()
    if not pairs:
        return above.column - 1
    key = pairs[0][0]
    before = text[key.start - key.column + 1 : key.start].rstrip()
    return len(before) - 1 if before.endswith("?") else key.column - 1


def _end(text: str, node: Node) -> int:
    """Where a value really ends: a block's own mark lies behind the comments and blank lines that follow it."""
    if isinstance(node.value, list) and not _is_flow(text, node):
        children = [value for _, value in node.value] if node.is_mapping else node.value
        return _end(text, children[-1]) if children else node.end
    return node.start + len(text[node.start : node.end].rstrip())


def _same(old: Any, new: Any) -> bool:
    """Equality of JSON values, which tells 1 from true and 1.0 as Python does not."""
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)


@lru_cache(maxsize=1)
def _dumper() -> type[Any]:
    """PyYAML's dumper with quotes where our reader would take a text for something else."""
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    def represent_text(dumper: Any, text: str) -> Any:
        style = None if text.isprintable() and text != "<<" and scalar(text) is text else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    def represent_number(dumper: Any, number: float) -> Any:
        text = json.dumps(number)
        # whatever PyYAML takes it for (`1e-7` is a text to it), so that it spells out no tag
        return dumper.represent_scalar(dumper.resolve(yaml.ScalarNode, text, (True, False)), text)

    Dumper.add_representer(str, represent_text)
    Dumper.add_representer(float, represent_number)
    return Dumper
