"""Tool calls in the text of an answer, found while it arrives in pieces.

Each family writes calls in a form of its own (`tool_formats`). `CallParser` gives text and calls in order, the
same for every way to cut the text. What looks like a call and is none, or calls a function that was not offered, stays
text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from secrets import choice
from typing import Any, Literal

from attrs import define, field, frozen

from .json_scan import CallScanner, ValueScanner
from .reasoning import held_back
from .tool_formats import After, ToolFormat


@frozen
class CallStart:
    """A call begins; its place, its id and the function it calls."""

    index: int
    id: str
    name: str


@frozen
class CallArguments:
    """More of the arguments' JSON text of a call."""

    index: int
    text: str


_XML_OPEN = "<function="

Event = str | CallStart | CallArguments


def fresh_id(form: ToolFormat) -> str:
    """An id in the style of the format."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return form.id_prefix + "".join(choice(letters) for _ in range(form.id_length))


@define
class CallParser:
    """Reads an answer's text; `functions` maps the names that may be called to the schemas of their arguments."""

    form: ToolFormat
    functions: Mapping[str, Mapping[str, Any]]
    parallel: bool = True
    new_id: Callable[[ToolFormat], str] = fresh_id
    calls: int = field(default=0, init=False)
    """How many calls were found."""
    _buffer: str = field(default="", init=False)
    _mode: Literal["start", "text", "call", "value", "tail"] = field(default="start", init=False)
    _raw: str = field(default="", init=False)
    _scanner: CallScanner | ValueScanner | None = field(default=None, init=False)
    _open: CallStart | None = field(default=None, init=False)
    _ids: set[str] = field(factory=set, init=False)
    _drops_space: bool = field(default=False, init=False)
    _final: bool = field(default=False, init=False)
    _events: list[Event] = field(factory=list, init=False)

    def feed(self, text: str) -> list[Event]:
        """Take the next text; what is certain now."""
        self._buffer += text
        while self._step():
            pass
        out, self._events = self._events, []
        return out

    def finish(self) -> list[Event]:
        """The text ended: what was held back."""
        self._final = True
        out = self.feed("")
        if self._mode == "call" and self._open is None and (self._raw or self._buffer):
            self._give_up()
            while self._step():
                pass
            out += self._events
            self._events = []
        return out

    # -- one step a mode: True when it got on and another may follow

    def _step(self) -> bool:
        match self._mode:
            case "start":
                return self._start()
            case "text":
                return self._text()
            case "call":
                return self._call()
            case "value":
                return self._value()
            case "tail":
                return self._tail()

    def _start(self) -> bool:
        seen = self._buffer.lstrip()
        if not seen and not self._final:
            return False
        if seen[:1] and seen[0] in self.form.bare:
            self._raw = self._buffer[: len(self._buffer) - len(seen)]
            self._buffer = seen
            self._mode = "call"
        else:
            self._mode = "text"
        return True

    def _text(self) -> bool:
        if self._drops_space:
            self._buffer = self._buffer.lstrip()
            self._drops_space = not self._buffer
        found = [(at, marker) for marker in self.form.opens if (at := self._buffer.find(marker)) >= 0]
        if found:
            at, marker = min(found, key=lambda hit: (hit[0], -len(hit[1])))
            text = self._buffer[:at]
            self._say(text.rstrip())
            self._raw = text[len(text.rstrip()) :] + marker
            self._buffer = self._buffer[at + len(marker) :]
            self._mode = "call"
            return True
        certain = len(self._buffer) if self._final else len(self._buffer) - held_back(self._buffer, self.form.opens)
        text = self._buffer[:certain]
        if not self._final:
            # blank space before a call belongs to nobody, so it waits for what follows
            text = text.rstrip()
        self._say(text)
        self._buffer = self._buffer[len(text) :]
        return False

    def _call(self) -> bool:
        """Between a call's opening and its arguments."""
        if self._scanner is not None:
            return self._object()
        seen = self._buffer.lstrip()
        if not seen:
            return False
        if self._raw.endswith(_XML_OPEN):
            return self._xml(_XML_OPEN + self._buffer)
        body = self.form.body
        if body in ("object", "mistral", "python") and seen[0] == "[" and self.form.name != "llama3":
            self._skip(seen[1:])
            return True
        if seen[0] == "{" and body in ("object", "mistral", "python", "xml"):
            self._skip(seen)
            self._scanner = CallScanner()
            return True
        match body:
            case "kimi":
                return self._head(seen, _kimi_head)
            case "deepseek":
                return self._head(seen, _deepseek_head)
            case "mistral":
                return self._head(seen, _mistral_head)
            case "xml":
                return self._xml(seen)
            case "python":
                return self._python()
        return self._give_up()

    def _object(self) -> bool:
        scanner = self._scanner
        assert isinstance(scanner, CallScanner)
        if not self._buffer:
            return False
        taken = scanner.feed(self._buffer)
        if scanner.failed and self._open is None:
            return self._give_up()
        if scanner.name is not None and self._open is None:
            if scanner.name not in self.functions:
                return self._give_up()
            self._begin(scanner.name, None)
        self._raw += self._buffer[:taken]
        self._buffer = self._buffer[taken:]
        if self._open is not None:
            self._argue(scanner.arguments())
        if scanner.done or scanner.failed:
            self._end()
        return True

    def _head(self, seen: str, read: Callable[[str], _Head | None]) -> bool:
        head = read(seen)
        if head is None:
            return self._give_up() if self._final else False
        if head.name not in self.functions or not head.rest.startswith("{"):
            return self._give_up()
        self._begin(head.name, head.id)
        self._raw, self._buffer = "", head.rest
        self._scanner, self._mode = ValueScanner(), "value"
        return True

    def _value(self) -> bool:
        scanner = self._scanner
        assert isinstance(scanner, ValueScanner)
        at = 0
        for char in self._buffer:
            if not scanner.takes(char):
                break
            at += 1
        self._argue(self._buffer[:at])
        self._buffer = self._buffer[at:]
        if scanner.done:
            self._end()
        return scanner.done

    def _tail(self) -> bool:
        seen = self._buffer.lstrip()
        for marker, then in self.form.after.items():
            if seen.startswith(marker):
                self._buffer = seen[len(marker) :]
                self._go_on(then)
                return True
        if not self._final and any(marker.startswith(seen) for marker in (*self.form.after, *self.form.opens)):
            return False
        self._go_on("text")
        return True

    def _xml(self, seen: str) -> bool:
        whole = re.match(r"<function=\s*([^>\s]+)\s*>(.*?)</function>", seen, re.DOTALL)
        if whole is None:
            could_be = seen.startswith(_XML_OPEN) or _XML_OPEN.startswith(seen)
            return False if could_be and not self._final else self._give_up()
        name = whole[1].strip("\"'")
        if name not in self.functions:
            return self._give_up()
        self._begin(name, None)
        self._argue(_xml_arguments(whole[2], self.functions[name]))
        self._buffer = seen[whole.end() :]
        self._end()
        return True

    def _python(self) -> bool:
        """Code after `<|python_tag|>`: a call in Python's notation, or the input of a code interpreter."""
        if not self._final:
            return False
        code = self._buffer.strip()
        called = _python_call(code, self.functions)
        if called is None:
            return self._give_up()
        self._begin(called[0], None)
        self._argue(called[1])
        self._buffer = ""
        self._end()
        return True

    # -- small moves

    def _say(self, text: str) -> None:
        if text:
            self._events.append(text)

    def _skip(self, rest: str) -> None:
        self._raw += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest

    def _begin(self, name: str, given_id: str | None) -> None:
        identity = given_id if given_id and given_id not in self._ids else self.new_id(self.form)
        self._ids.add(identity)
        self._open = CallStart(self.calls, identity, name)
        if self.parallel or self.calls == 0:
            self._events.append(self._open)
        self.calls += 1

    def _argue(self, text: str) -> None:
        if text and self._open is not None and (self.parallel or self._open.index == 0):
            self._events.append(CallArguments(self._open.index, text))

    def _end(self) -> None:
        self._scanner, self._open, self._raw = None, None, ""
        self._mode = "tail"

    def _go_on(self, then: After) -> None:
        self._mode = then
        self._drops_space = then == "text"

    def _give_up(self) -> bool:
        """It was no call: what was read is text, and what follows is looked at as text."""
        self._say(self._raw)
        self._raw, self._scanner, self._open = "", None, None
        self._mode = "text"
        self._drops_space = False
        return True


@frozen
class _Head:
    """A call's name and id, and the text after them."""

    name: str
    id: str | None
    rest: str


MAX_HEAD = 400
"""Characters that may stand between a call's opening and its arguments."""

_NO_CALL = _Head("", None, "")


def _until(text: str, marker: str) -> tuple[str, str] | Literal[False] | None:
    """The text before and after the marker; None if it may still come, False if it does not come in time."""
    at = text.find(marker, 0, MAX_HEAD + len(marker))
    if at >= 0:
        return text[:at], text[at + len(marker) :]
    return None if len(text) < MAX_HEAD + len(marker) else False


def _kimi_head(text: str) -> _Head | None:
    parts = _until(text, "<|tool_call_argument_begin|>")
    if not parts:
        return _NO_CALL if parts is False else None
    identity, rest = parts[0].strip().removeprefix("<|tool_call_begin|>").strip(), parts[1].lstrip()
    if not rest:
        return None
    return _Head(re.sub(r":\d+$", "", identity.removeprefix("functions.")), identity, rest)


def _deepseek_head(text: str) -> _Head | None:
    parts = _until(text, "<｜tool▁sep｜>")
    if parts and parts[0].strip().removeprefix("<｜tool▁call▁begin｜>").strip() == "function":
        parts = _until(parts[1], "\n")
    if not parts:
        return _NO_CALL if parts is False else None
    name, rest = parts[0].strip().removeprefix("<｜tool▁call▁begin｜>").strip(), parts[1].lstrip()
    if "```json".startswith(rest):
        return None
    rest = rest.removeprefix("```json").lstrip()
    return _Head(name, None, rest) if rest else None


def _mistral_head(text: str) -> _Head | None:
    parts = _until(text, "{")
    if not parts:
        return _NO_CALL if parts is False else None
    found = re.fullmatch(r"([^\[\s]+)\s*(?:\[CALL_ID\]\s*([^\[\s]+)\s*)?(?:\[ARGS\])?\s*", parts[0])
    return _Head(found[1], found[2], "{" + parts[1]) if found else _NO_CALL


def _xml_arguments(body: str, schema: Mapping[str, Any]) -> str:
    """The JSON text of `<parameter=k>v</parameter>` pairs, or of the JSON object in their place."""
    if body.strip().startswith("{"):
        return body.strip()
    properties = schema.get("properties", {})
    arguments: dict[str, Any] = {}
    for key, value in re.findall(r"<parameter=\s*([^>\s]+)\s*>(.*?)</parameter>", body, re.DOTALL):
        text = value.removeprefix("\n").removesuffix("\n")
        arguments[key] = _xml_value(text, properties.get(key, {}))
    return json.dumps(arguments, ensure_ascii=False)


def _xml_value(text: str, schema: Any) -> Any:
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _python_call(code: str, functions: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    try:
        tree = ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if isinstance(tree, ast.Call):
        target = tree.func
        if isinstance(target, ast.Attribute) and target.attr == "call":
            target = target.value
        if isinstance(target, ast.Name) and target.id in functions and not tree.args:
            try:
                arguments = {word.arg: ast.literal_eval(word.value) for word in tree.keywords if word.arg}
                return target.id, json.dumps(arguments, ensure_ascii=False)
            except (ValueError, TypeError, RecursionError):
                return None
    for name in ("python", "code_interpreter", "ipython"):
        if name in functions and code:
            key = next(iter(functions[name].get("properties", {})), "code")
            return name, json.dumps({key: code}, ensure_ascii=False)
    return None
