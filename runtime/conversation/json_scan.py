"""Readers of JSON that arrives in pieces: one value, and the object that calls a function."""

from __future__ import annotations

import json
from typing import Any, Literal

from attrs import define, field


class NotJson(Exception):
    """The text is not what the scanner reads."""


@define
class ValueScanner:
    """Finds the end of one JSON value, character by character; it does not check what is between the brackets."""

    depth: int = 0
    kind: Literal["", "string", "container", "scalar"] = ""
    done: bool = False
    _in_string: bool = False
    _escaped: bool = False

    def takes(self, char: str) -> bool:
        """Whether the character still belongs to the value; sets `done` with its last one."""
        if self.done:
            return False
        if not self.kind:
            self.kind = "string" if char == '"' else "container" if char in "{[" else "scalar"
            self._in_string = char == '"'
            self.depth = 1 if self.kind == "container" else 0
            if self.kind == "scalar" and char not in "-0123456789tfn":
                raise NotJson(char)
            return True
        if self._in_string:
            self._inside_string(char)
        elif self.kind == "container":
            self._inside_container(char)
        elif char in ",}] \t\r\n":
            self.done = True
            return False
        return True

    def _inside_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            self.done = self.kind == "string"

    def _inside_container(self, char: str) -> None:
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]":
            self.depth -= 1
            self.done = self.depth == 0


NAME_KEYS = ("name", "function", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")


@define
class CallScanner:
    """Reads `{"name": …, "arguments": …}` in either order and hands out the arguments' own text as it comes."""

    name: str | None = None
    done: bool = False
    failed: bool = False
    """The text is no such object."""
    _expect: Literal["object", "key", "colon", "value", "comma"] = "object"
    _key: str = ""
    _value: ValueScanner = field(factory=ValueScanner)
    _text: list[str] = field(factory=list)
    _arguments: list[str] = field(factory=list)
    _had_arguments: bool = False

    def feed(self, text: str) -> int:
        """Read on; how many characters were taken. Pauses where the name is known, stops where `done` or `failed`."""
        nameless = self.name is None
        for at, char in enumerate(text):
            try:
                self._take(char)
            except NotJson:
                self.failed = True
                return at
            if self.done or (nameless and self.name is not None):
                return at + 1
        return len(text)

    def arguments(self) -> str:
        """The text of the arguments that came since the last time; only once the name is known."""
        if self.name is None:
            return ""
        out = "".join(self._arguments)
        self._arguments.clear()
        if (self.done or self.failed) and not self._had_arguments:
            self._had_arguments = True
            return "{}"
        return out

    def _take(self, char: str) -> None:
        if self._expect == "value" and self._value.kind:
            self._take_value(char)
        elif self._expect == "key" and self._text:
            self._take_key(char)
        elif char in " \t\r\n":
            return
        elif self._expect == "object" and char == "{":
            self._expect = "key"
        elif self._expect in ("key", "comma") and char == "}":
            if self.name is None:
                raise NotJson("no name")
            self.done = True
        elif self._expect == "key" and char == '"':
            self._begin_value(char)
        elif self._expect == "colon" and char == ":":
            self._expect = "value"
        elif self._expect == "value":
            self._begin_value(char)
        elif self._expect == "comma" and char == ",":
            self._expect = "key"
        else:
            raise NotJson(char)

    def _begin_value(self, char: str) -> None:
        self._value = ValueScanner()
        self._value.takes(char)
        self._keep(char)

    def _take_key(self, char: str) -> None:
        self._value.takes(char)
        self._text.append(char)
        if self._value.done:
            self._key = str(_loads("".join(self._text)))
            self._text.clear()
            self._value = ValueScanner()
            self._expect = "colon"

    def _take_value(self, char: str) -> None:
        taken = self._value.takes(char)
        if taken:
            self._keep(char)
        if self._value.done:
            self._end_value()
        if not taken:
            self._take(char)

    def _keep(self, char: str) -> None:
        if self._expect == "value" and self._key in ARGUMENT_KEYS and self._value.kind != "string":
            self._had_arguments = True
            self._arguments.append(char)
        else:
            self._text.append(char)

    def _end_value(self) -> None:
        text = "".join(self._text)
        self._text.clear()
        self._expect = "comma"
        self._value = ValueScanner()
        if self._key in ARGUMENT_KEYS and text:
            self._had_arguments = True
            self._arguments.append(str(_loads(text)))
        elif self._key in NAME_KEYS and self.name is None and text.startswith('"'):
            self.name = str(_loads(text))


def _loads(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        raise NotJson(text) from None
