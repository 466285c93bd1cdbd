"""What a plan file says, read step by step: its steps packed, and everything else as JSON values.

The short ways know sound files only: JSON by the standard decoder, a recording line by line, YAML by its events.
Whatever else they meet is left to `compose`, which knows the place of every value and finds the words for a fault;
what a file means never depends on the way.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from attrs import define, field

from .nodes import plain
from .packed import DEEPEST, Packed, Unsure, refuse_deep, unique
from .recordings import MARK
from .texts import JsonReader, TextFault, compose, loader, scalar

LISTS = ("steps", "finally")
"""The keys of a plan file whose items are steps."""
NOT_SURE = (Unsure, TextFault, ValueError, IndexError, RecursionError)
_UNLIKE_YAML = re.compile("[\r\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|\\\\u[dD][89a-fA-F]|[0-9]{4001}")
"""What YAML reads otherwise than JSON, or does not take at all."""


@define(eq=False)
class Outline:
    """A document: in `document` each list of steps is empty, its items lie in `lists`."""

    document: Any
    lists: dict[str, Packed] = field(factory=dict)


def read_outline(text: str, *, is_json: bool) -> Outline:
    """The outline of a text. Raises TextFault with line and column."""
    for read in (_json,) if is_json else (_recording, _yaml):
        try:
            return read(text)
        except NOT_SURE:
            continue
    return _composed(text, is_json)


def read_recording(text: str) -> Packed | None:
    """The steps of a recording as the recorder writes it, each on a line of its own; None for any other text."""
    try:
        return _recording(text).lists["steps"]
    except NOT_SURE:
        return None


def _composed(text: str, is_json: bool) -> Outline:
    """The long way: every value with its place, then packed."""
    root = compose(text, is_json=is_json)
    if not root.is_mapping:
        return Outline(plain(root))
    found = Outline({})
    for key, node in root.pairs():
        if key.value not in LISTS or node.is_mapping or not isinstance(node.value, list):
            found.document[key.value] = plain(node)
            continue
        found.document[key.value] = []
        found.lists[key.value] = packed = Packed()
        for item in node.items():
            packed.add(plain(item), item.line, item.column)
    return found


def _json(text: str) -> Outline:
    return _JsonOutline(text).outline()


class _JsonOutline(JsonReader):
    """Reads the outermost object and its lists of steps; the standard decoder reads whole values within."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        decoder: Any = json.JSONDecoder(parse_constant=self._constant, object_pairs_hook=unique)
        self.scan = decoder.scan_once

    def outline(self) -> Outline:
        """The outline of the text. Raises Unsure and TextFault."""
        found = Outline({})
        at = self._open(self._skip(0), "{")
        closed = False
        while not closed:
            key, at = self._key(at)
            if key.value in found.document:
                raise Unsure
            if key.value in LISTS and self.text[at] == "[":
                found.document[key.value] = []
                found.lists[key.value], at = self._steps(at)
            else:
                found.document[key.value], at = self._whole(at)
            at, closed = self._next(at, "}")
        if self._skip(at) != len(self.text):
            raise Unsure
        return found

    def _steps(self, at: int) -> tuple[Packed, int]:
        packed = Packed()
        at = self._open(at, "[")
        if self.text[at] == "]":
            return packed, at + 1
        closed = False
        while not closed:
            line, column = self._place(at)
            value, at = self._whole(at)
            packed.add(value, line, column)
            at, closed = self._next(at, "]")
        return packed, at

    def _whole(self, at: int) -> tuple[Any, int]:
        value, at = self._scalar(at)
        refuse_deep(value)
        return value, at

    def _open(self, at: int, bracket: str) -> int:
        if self.text[at] != bracket:
            raise Unsure
        return self._skip(at + 1)

    def _next(self, at: int, closing: str) -> tuple[int, bool]:
        """Where to go on behind a value, and whether that is behind the closing bracket."""
        at = self._skip(at)
        if self.text[at] == closing:
            return at + 1, True
        if self.text[at] != ",":
            raise Unsure
        return self._skip(at + 1), False


def _recording(text: str) -> Outline:
    """A recording as the recorder writes it: a head, then one step a line, which is JSON; comments may lie between."""
    at = text.find("\nsteps:\n")
    if not text.startswith(MARK.decode()) or at < 0:
        raise Unsure
    head = text[: at + 1]
    found = _yaml(f"{head}steps: []\n")
    decoder = json.JSONDecoder(object_pairs_hook=unique, parse_float=_finite, parse_constant=_finite)
    packed = found.lists["steps"]
    at = len(head) + len("steps:\n")
    line = head.count("\n") + 2
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        row = text[at:end]
        if row.startswith("- {") and _UNLIKE_YAML.search(row) is None:
            value = decoder.decode(row[2:])
            refuse_deep(value)
            packed.add(value, line, 3)
        elif row and not row.startswith("#"):
            raise Unsure
        at = end + 1
        line += 1
    if not len(packed):
        raise Unsure  # a key without a value is null
    return found


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise Unsure
    return number


def _yaml(text: str) -> Outline:
    from yaml.error import YAMLError

    try:
        return _YamlOutline(text).outline()
    except YAMLError:
        raise Unsure from None


class _YamlOutline:
    """Builds values from the events of a YAML text; one with tags, anchors or aliases goes the long way."""

    def __init__(self, text: str) -> None:
        from yaml import events

        self.kinds = {
            events.ScalarEvent: self._scalar,
            events.SequenceStartEvent: self._list,
            events.MappingStartEvent: self._mapping,
        }
        self.events = events
        self.take = loader()(text).get_event

    def outline(self) -> Outline:
        """The outline of the text. Raises Unsure, and PyYAML's own errors."""
        found = Outline({})
        self._expect(self.events.StreamStartEvent)
        self._expect(self.events.DocumentStartEvent)
        self._expect(self.events.MappingStartEvent)
        while (key := self._key(found.document)) is not None:
            event = self.take()
            if key in LISTS and type(event) is self.events.SequenceStartEvent:
                found.document[key] = []
                found.lists[key] = self._steps(event)
            else:
                found.document[key] = self._value(event, 1)
        self._expect(self.events.DocumentEndEvent)
        self._expect(self.events.StreamEndEvent)
        return found

    def _expect(self, kind: type[Any]) -> None:
        event = self.take()
        if type(event) is not kind:
            raise Unsure
        if kind is self.events.MappingStartEvent:
            _refuse_properties(event)

    def _steps(self, start: Any) -> Packed:
        _refuse_properties(start)
        packed = Packed()
        while type(event := self.take()) is not self.events.SequenceEndEvent:
            mark = event.start_mark
            packed.add(self._value(event, 2), mark.line + 1, mark.column + 1)
        return packed

    def _value(self, event: Any, depth: int) -> Any:
        read = self.kinds.get(type(event))
        if read is None or depth > DEEPEST:
            raise Unsure
        _refuse_properties(event)
        return read(event, depth)

    def _scalar(self, event: Any, _: int) -> Any:
        return event.value if event.style else scalar(event.value)

    def _list(self, _: Any, depth: int) -> list[Any]:
        found: list[Any] = []
        while type(event := self.take()) is not self.events.SequenceEndEvent:
            found.append(self._value(event, depth + 1))
        return found

    def _mapping(self, _: Any, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while (key := self._key(found)) is not None:
            found[key] = self._value(self.take(), depth + 1)
        return found

    def _key(self, found: dict[str, Any]) -> str | None:
        """The next key of a mapping, new to it and no merge key; None at its end."""
        event = self.take()
        if type(event) is self.events.MappingEndEvent:
            return None
        if type(event) is not self.events.ScalarEvent:
            raise Unsure
        _refuse_properties(event)
        key: str = event.value
        if key in found or (key == "<<" and not event.style):
            raise Unsure
        return key


def _refuse_properties(event: Any) -> None:
    if event.tag is not None or event.anchor is not None:
        raise Unsure
