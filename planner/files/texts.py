"""The text of a plan file, YAML 1.2 or JSON, as nodes with places. Nothing in a text is ever executed.

Values follow YAML's core schema, so that `no` is a word and `12:30` a text; a key given twice, a tag and a merge key
are faults. PyYAML composes the nodes, by libyaml where it is built in.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from ...errors import BadInput, NotFound, PayloadTooLarge
from .nodes import Node, Place
from .recordings import whole_part

LARGEST_FILE_BYTES = 16 * 1024 * 1024
LARGEST_DOCUMENT_NODES = 2_000_000
"""How many values a document may have when its aliases are written out; a few lines of YAML can mean billions."""

_PLAIN = (
    (re.compile(r"(?:|~|null|Null|NULL)"), lambda text: None),
    (re.compile(r"(?:true|True|TRUE)"), lambda text: True),
    (re.compile(r"(?:false|False|FALSE)"), lambda text: False),
    (re.compile(r"[-+]?[0-9]{1,4000}"), lambda text: int(text)),
    (re.compile(r"0o[0-7]{1,4000}"), lambda text: int(text, 8)),
    (re.compile(r"0x[0-9a-fA-F]{1,4000}"), lambda text: int(text, 16)),
    (re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"), lambda text: float(text)),
)


class TextFault(Exception):
    """A text that cannot be read: what is wrong, and where."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


def read_text(file: str) -> str:
    """The text of a file, `-` for standard input. Raises NotFound, BadInput, and PayloadTooLarge (exit 2) above
    16 MB, before anything is parsed."""
    import sys
    from pathlib import Path

    try:
        if file == "-":
            content = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as source:
                content = source.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no file `{file}`") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"`{file}` cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise PayloadTooLarge(f"`{file}` is larger than 16 MB, which no plan file is")
    try:
        return whole_part(content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{file}:{line}: is not UTF-8") from None


def compose(text: str, *, is_json: bool) -> Node:
    """The nodes of a text. Raises TextFault with line and column."""
    return JsonReader(text).document() if is_json else _compose_yaml(text)


def looks_like_json(file: str, text: str) -> bool:
    """Whether a file is JSON: by its name, or where that says nothing by its first character."""
    if file.endswith(".json"):
        return True
    return not file.endswith((".yaml", ".yml")) and text.lstrip()[:1] == "{"


def place_of(file: str, node: Node) -> Place:
    """The place of a node in a file."""
    return Place(file, node.line, node.column)


def scalar(text: str) -> Any:
    """What an unquoted word means in YAML's core schema: null, a boolean, a number, or the text itself."""
    for pattern, convert in _PLAIN:
        if pattern.fullmatch(text):
            value = convert(text)
            return text if value in (float("inf"), float("-inf")) else value
    return text


@lru_cache(maxsize=1)
def loader() -> type[Any]:
    """A composer that resolves no tag: an empty tag is one that the text does not spell out."""
    try:
        from yaml.cyaml import CParser
    except ImportError:
        from yaml.composer import Composer
        from yaml.parser import Parser
        from yaml.reader import Reader
        from yaml.scanner import Scanner

        class Slow(Reader, Scanner, Parser, Composer):  # type: ignore[misc]
            def __init__(self, stream: str) -> None:
                Reader.__init__(self, stream)
                Scanner.__init__(self)
                Parser.__init__(self)
                Composer.__init__(self)

        base: Any = Slow
    else:
        base = CParser

    class Loader(base):  # type: ignore[misc]
        def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
            return ""

        def descend_resolver(self, *_: Any) -> None:
            """No resolver."""

        def ascend_resolver(self) -> None:
            """No resolver."""

    return Loader


def _compose_yaml(text: str) -> Node:
    from yaml.error import MarkedYAMLError, YAMLError

    try:
        root = loader()(text).get_single_node()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = error.problem or error.context or "is not YAML"
        raise TextFault(f"is not YAML: {words}", mark.line + 1 if mark else 1, mark.column + 1 if mark else 1) from None
    except (YAMLError, UnicodeError) as error:
        raise TextFault(f"is not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise TextFault("is nested too deeply") from None
    if root is None:
        raise TextFault("is empty")
    return _YamlReader().node(root)


class _YamlReader:
    """Turns PyYAML's nodes into ours, an alias into a copy of what it names."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.count = 0

    def node(self, raw: Any) -> Node:
        start, end = raw.start_mark, raw.end_mark
        self.count += 1
        if self.count > LARGEST_DOCUMENT_NODES:
            raise TextFault("its aliases make it larger than any plan file", start.line + 1, start.column + 1)
        if id(raw) in self.open:
            raise TextFault("an alias names what holds it", start.line + 1, start.column + 1)
        value, is_mapping = self._value(raw)
        return Node(value, start.line + 1, start.column + 1, start.index, end.index, is_mapping)

    def _value(self, raw: Any) -> tuple[Any, bool]:
        kind = raw.id
        if kind == "scalar":
            return _yaml_scalar(raw), False
        if raw.tag not in ("", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise _tag_fault(raw)
        self.open.add(id(raw))
        try:
            if kind == "sequence":
                return [self.node(item) for item in raw.value], False
            return self._pairs(raw), True
        except RecursionError:
            raise TextFault("is nested too deeply", raw.start_mark.line + 1, raw.start_mark.column + 1) from None
        finally:
            self.open.discard(id(raw))

    def _pairs(self, raw: Any) -> list[tuple[Node, Node]]:
        pairs: list[tuple[Node, Node]] = []
        seen: set[str] = set()
        for key, value in raw.value:
            mark = key.start_mark
            if key.id != "scalar":
                raise TextFault("a key is a text", mark.line + 1, mark.column + 1)
            if key.value == "<<" and not key.style:
                raise TextFault("merge keys (`<<`) are not part of YAML 1.2", mark.line + 1, mark.column + 1)
            if key.value in seen:
                raise TextFault(f"the key `{_short(key.value)}` is given twice", mark.line + 1, mark.column + 1)
            seen.add(key.value)
            node = Node(key.value, mark.line + 1, mark.column + 1, mark.index, key.end_mark.index)
            pairs.append((node, self.node(value)))
        return pairs


def _yaml_scalar(raw: Any) -> Any:
    if raw.tag == "":
        return raw.value if raw.style else scalar(raw.value)
    if raw.tag == "tag:yaml.org,2002:str":
        return raw.value
    raise _tag_fault(raw)


def _tag_fault(raw: Any) -> TextFault:
    mark = raw.start_mark
    return TextFault(f"the tag `{_short(raw.tag)}` is not known here", mark.line + 1, mark.column + 1)


_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\s,\[\]{}:\"]*")


class JsonReader:
    """Reads JSON into nodes; the standard decoder reads the scalars."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.scan: Any = json.JSONDecoder(parse_constant=self._constant).scan_once  # type: ignore[attr-defined]
        self.line = 1
        self.line_start = 0
        self.counted = 0

    def document(self) -> Node:
        try:
            node, end = self._value(self._skip(0))
        except RecursionError:
            raise TextFault("is nested too deeply") from None
        end = self._skip(end)
        if end != len(self.text):
            raise self._fault("more follows after the end of the document", end)
        return node

    def _value(self, at: int) -> tuple[Node, int]:
        line, column = self._place(at)
        opening = self.text[at : at + 1]
        value: Any
        if opening == "{":
            value, end = self._object(at + 1)
        elif opening == "[":
            value, end = self._array(at + 1)
        else:
            value, end = self._scalar(at)
        return Node(value, line, column, at, end, opening == "{"), end

    def _scalar(self, at: int) -> tuple[Any, int]:
        try:
            value, end = self.scan(self.text, at)
        except json.JSONDecodeError as error:
            raise self._fault(error.msg[:1].lower() + error.msg[1:], error.pos) from None
        except (StopIteration, ValueError):
            word = _WORD.match(self.text, at)
            shown = _short(word.group()) if word and word.group() else _short(self.text[at : at + 1])
            message = f"unexpected `{shown}`" if shown else "ends too early"
            raise self._fault(message, at) from None
        return value, end

    def _array(self, at: int) -> tuple[list[Node], int]:
        items: list[Node] = []
        at = self._skip(at)
        if self.text[at : at + 1] == "]":
            return items, at + 1
        while True:
            node, at = self._value(at)
            items.append(node)
            at = self._skip(at)
            closing = self.text[at : at + 1]
            if closing == "]":
                return items, at + 1
            if closing != ",":
                raise self._fault("expected `,` or `]`", at)
            at = self._skip(at + 1)

    def _object(self, at: int) -> tuple[list[tuple[Node, Node]], int]:
        pairs: list[tuple[Node, Node]] = []
        seen: set[str] = set()
        at = self._skip(at)
        if self.text[at : at + 1] == "}":
            return pairs, at + 1
        while True:
            key, at = self._key(at)
            if key.value in seen:
                raise TextFault(f"the key `{_short(key.value)}` is given twice", key.line, key.column)
            seen.add(key.value)
            node, at = self._value(at)
            pairs.append((key, node))
            at = self._skip(at)
            closing = self.text[at : at + 1]
            if closing == "}":
                return pairs, at + 1
            if closing != ",":
                raise self._fault("expected `,` or `}`", at)
            at = self._skip(at + 1)

    def _key(self, at: int) -> tuple[Node, int]:
        if self.text[at : at + 1] != '"':
            raise self._fault("expected a key in double quotes", at)
        line, column = self._place(at)
        value, end = self._scalar(at)
        colon = self._skip(end)
        if self.text[colon : colon + 1] != ":":
            raise self._fault("expected `:`", colon)
        return Node(value, line, column, at, end), self._skip(colon + 1)

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        assert match is not None
        return match.end()

    def _place(self, at: int) -> tuple[int, int]:
        """Line and column of an offset; offsets come in rising order, so each line is counted once."""
        newlines = self.text.count("\n", self.counted, at)
        if newlines:
            self.line += newlines
            self.line_start = self.text.rindex("\n", self.counted, at) + 1
        self.counted = at
        return self.line, at - self.line_start + 1

    def _fault(self, message: str, at: int) -> TextFault:
        line = self.text.count("\n", 0, at) + 1
        return TextFault(f"is not JSON: {message}", line, at - (self.text.rfind("\n", 0, at) + 1) + 1)

    def _constant(self, name: str) -> None:
        raise ValueError(name)


def _short(text: str) -> str:
    from ..argv import printable

    return printable(text)
