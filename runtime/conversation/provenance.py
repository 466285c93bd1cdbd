"""Text that remembers, character by character, who wrote it.

A chat template is trusted to write control tokens, the people in the conversation are not. `Traced` is a `str` whose
`marks` hold one byte a character: 0 for the template's own text, anything else for text that came with the request. It
goes through everything a template does to a string (slices, `split`, `replace`, `+`, `join`, `format`, …) and compares,
hashes and measures like the plain string, so that a template cannot tell the difference.

What cannot be followed exactly (a filter that rewrites its input) counts as the request's text as a whole: too little
may become control, never too much.
"""

from __future__ import annotations

import operator
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

OWN = 0
"""The mark of the template's own text."""

OTHER = 1
"""The mark of text from the request that is not looked for in the prompt."""


class Traced(str):
    """A string with a mark for each character; see the module."""

    __slots__ = ("marks",)
    marks: bytes

    def __new__(cls, text: str, marks: bytes | int = OTHER) -> Traced:
        self = super().__new__(cls, text)
        if isinstance(marks, int):
            marks = bytes((marks,)) * len(text)
        self.marks = marks
        return self

    def __str__(self) -> str:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Traced, (plain(self), self.marks))

    def __add__(self, other: str) -> Traced:
        if not isinstance(other, str):
            return NotImplemented
        return Traced(str.__add__(self, other), self.marks + marks_of(other))

    def __radd__(self, other: str) -> Traced:
        if not isinstance(other, str):
            return NotImplemented
        return Traced(str.__add__(other, self), marks_of(other) + self.marks)

    def __mul__(self, times: SupportsIndex) -> Traced:
        return Traced(str.__mul__(self, times), self.marks * operator.index(times))

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> Traced:
        return traced(printf(self, values))

    def __rmod__(self, template: str) -> Traced:
        return traced(printf(template, self))

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        if isinstance(key, slice):
            return Traced(str.__getitem__(self, key), self.marks[key])
        index = operator.index(key)
        return Traced(str.__getitem__(self, index), self.marks[index : index + 1 or None])

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __format__(self, spec: str) -> str:
        return embedded(str.__format__(plain(self), spec), self)

    def cut(self, start: int, end: int) -> Traced:
        """The characters from `start` to `end`."""
        return Traced(str.__getitem__(self, slice(start, end)), self.marks[start:end])

    # -- methods that keep the characters and choose some of them

    def strip(self, chars: str | None = None) -> Traced:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> Traced:
        return self.cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None) -> Traced:
        return self.cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> Traced:
        return self.cut(len(prefix) if str.startswith(self, prefix) else 0, len(self))

    def removesuffix(self, suffix: str, /) -> Traced:
        return self.cut(0, len(self) - len(suffix) if suffix and str.endswith(self, suffix) else len(self))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return list(self._located(str.split(self, sep, maxsplit)))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return list(self._located(str.rsplit(self, sep, maxsplit)))

    def splitlines(self, keepends: bool = False) -> list[Any]:
        lines: list[Traced] = []
        at = 0
        for whole, kept in zip(str.splitlines(self, True), str.splitlines(self, keepends), strict=True):
            lines.append(self.cut(at, at + len(kept)))
            at += len(whole)
        return lines

    def partition(self, sep: str, /) -> tuple[Any, Any, Any]:
        return self._three(str.partition(self, sep))

    def rpartition(self, sep: str, /) -> tuple[Any, Any, Any]:
        return self._three(str.rpartition(self, sep))

    def _located(self, parts: list[str]) -> Iterator[Traced]:
        """The parts of a split; they follow each other, so each is found after the one before."""
        at = 0
        for part in parts:
            at = str.find(self, part, at)
            yield self.cut(at, at + len(part))
            at += len(part)

    def _three(self, parts: tuple[str, str, str]) -> tuple[Traced, Traced, Traced]:
        a, b = len(parts[0]), len(parts[0]) + len(parts[1])
        return self.cut(0, a), self.cut(a, b), self.cut(b, len(self))

    # -- methods that put other text in

    def join(self, parts: Iterable[str], /) -> Traced:
        return traced(joined(self, parts))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Traced:
        limit = operator.index(count)
        if old:
            return traced(joined(new, str_split(self, old, limit)))
        out = str.replace(plain(self), old, plain(new), limit)
        return Traced(out, OTHER) if out != self else self

    def format(self, *args: Any, **kwargs: Any) -> Traced:
        return traced(formatted(self, args, kwargs))

    def format_map(self, mapping: Any, /) -> Traced:
        return traced(formatted(self, (), mapping))

    def center(self, width: SupportsIndex, fillchar: str = " ", /) -> Traced:
        return traced(embedded(str.center(self, width, fillchar), self))

    def ljust(self, width: SupportsIndex, fillchar: str = " ", /) -> Traced:
        return traced(embedded(str.ljust(self, width, fillchar), self))

    def rjust(self, width: SupportsIndex, fillchar: str = " ", /) -> Traced:
        return traced(embedded(str.rjust(self, width, fillchar), self))

    def zfill(self, width: SupportsIndex, /) -> Traced:
        return Traced(str.zfill(self, width))

    def expandtabs(self, tabsize: SupportsIndex = 8) -> Traced:
        return Traced(str.expandtabs(self, tabsize))

    def translate(self, table: Any, /) -> Traced:
        return Traced(str.translate(self, table))

    # -- methods that change characters one by one

    def lower(self) -> Traced:
        return self._recased(str.lower)

    def upper(self) -> Traced:
        return self._recased(str.upper)

    def title(self) -> Traced:
        return self._recased(str.title)

    def capitalize(self) -> Traced:
        return self._recased(str.capitalize)

    def swapcase(self) -> Traced:
        return self._recased(str.swapcase)

    def casefold(self) -> Traced:
        return self._recased(str.casefold)

    def _recased(self, change: Callable[[str], str]) -> Traced:
        out = change(plain(self))
        return Traced(out, self.marks if len(out) == len(self) else OTHER)


def plain(text: str) -> str:
    """The same characters as an ordinary `str`."""
    return str.__getitem__(text, slice(None))


def traced(text: str) -> Traced:
    """The text as `Traced`; an ordinary string is the template's own."""
    return text if isinstance(text, Traced) else Traced(text, OWN)


def marks_of(text: str) -> bytes:
    """One mark for each character."""
    return text.marks if isinstance(text, Traced) else bytes(len(text))


def str_split(text: str, sep: str, maxsplit: int) -> list[str]:
    """`text.split(sep, maxsplit)` without losing marks."""
    return text.split(sep, maxsplit)


def joined(sep: str, parts: Iterable[Any]) -> str:
    """`sep.join(parts)`; `Traced` as soon as a part or the separator is."""
    items = list(parts)
    if not isinstance(sep, Traced) and not any(isinstance(item, Traced) for item in items):
        return sep.join(items)
    text = str.join(plain(sep), items)
    return Traced(text, marks_of(sep).join([marks_of(item) for item in items]))


def embedded(out: str, source: Traced) -> str:
    """`out` with the marks of `source` where it holds it once, else all of it the request's."""
    if out == source:
        return source
    at = out.find(source) if len(source) else -1
    if at < 0:
        return Traced(out) if len(source) else out
    return Traced(out, bytes(at) + source.marks + bytes(len(out) - at - len(source)))


def holds_traced(value: Any) -> bool:
    """Whether text of the request is in the value, its lists and its dicts."""
    if isinstance(value, Traced):
        return True
    if isinstance(value, dict):
        return any(holds_traced(key) or holds_traced(item) for key, item in value.items())
    return isinstance(value, (list, tuple, set, frozenset)) and any(holds_traced(item) for item in value)


def spoken(value: Any) -> str:
    """`str(value)`, as the request's text where it holds any."""
    if isinstance(value, Traced):
        return value
    text = str(value)
    return Traced(text, mark_in(value)) if not isinstance(value, str) and holds_traced(value) else text


def mark_in(value: Any) -> int:
    """The first mark in the value that is looked for in the prompt, else `OTHER`."""
    if isinstance(value, Traced):
        return value.marks[0] if value else OTHER
    children: Iterable[Any] = ()
    if isinstance(value, dict):
        children = [*value.values(), *value.keys()]
    elif isinstance(value, (list, tuple)):
        children = value
    return next((mark for child in children if (mark := mark_in(child)) != OTHER), OTHER)


MAX_WIDTH = 10_000
"""The widest field that formatting may pad to."""

_PRINTF = re.compile(
    r"%(?:\((?P<key>[^)]*)\))?(?P<flags>[#0\- +]*)(?P<width>\d*)(?P<precision>\.\d*)?[hlL]?(?P<type>.)", re.S
)


def printf(template: str, values: Any) -> str:
    """`template % values`, each value keeping its marks."""
    out: list[str] = []
    at, taken = 0, 0
    row = values if isinstance(values, tuple) else (values,)
    keyed = isinstance(values, Mapping)
    for found in _PRINTF.finditer(template):
        out.append(template[at : found.start()])
        at = found.end()
        if found["type"] == "%":
            out.append("%")
            continue
        if int(found["width"] or 0) > MAX_WIDTH or int((found["precision"] or ".0")[1:] or 0) > MAX_WIDTH:
            raise ValueError("a field is too wide")
        if found["key"] is not None:
            value = values[found["key"]]
        elif taken < len(row):
            value = row[taken]
            taken += 1
        else:
            raise TypeError("not enough arguments for format string")
        spec = f"%{found['flags']}{found['width']}{found['precision'] or ''}{found['type']}"
        if isinstance(value, Traced):
            out.append(embedded(spec % (plain(value),), value))
        else:
            out.append(Traced(spec % (value,)) if holds_traced(value) else spec % (value,))
    if taken < len(row) and not keyed:
        raise TypeError("not all arguments converted during string formatting")
    out.append(template[at:])
    return joined("", out)


def formatted(template: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], formatter: Any = None) -> str:
    """`template.format(*args, **kwargs)`, each value keeping its marks.

    `formatter` looks fields up; a sandboxed one refuses private attributes.
    """
    fields = formatter or string.Formatter()
    out: list[str] = []
    at, automatic = 0, 0
    # `parse` gives plain pieces: literals are found again by their place, with doubled braces undone
    for literal, field, spec, conversion in fields.parse(plain(template)):
        out.append(_literal(template, at, literal))
        at = _after(template, at, literal, field, spec, conversion)
        if field is None:
            continue
        if field == "" or field[0] in ".[":
            field, automatic = f"{automatic}{field}", automatic + 1
        value, _ = fields.get_field(field, args, kwargs)
        if spec and "{" in spec:
            spec = plain(formatted(spec, args, kwargs, fields))
        if any(int(number) > MAX_WIDTH for number in re.findall(r"\d{1,18}", spec or "")):
            raise ValueError("a field is too wide")
        if conversion:
            value = spoken(value) if conversion == "s" else fields.convert_field(value, conversion)
        out.append(value if isinstance(value, Traced) and not spec else _padded(fields, value, spec))
    return joined("", out)


def _padded(fields: Any, value: Any, spec: str | None) -> str:
    text: str = fields.format_field(value, spec or "")
    return Traced(text) if holds_traced(value) and not isinstance(text, Traced) else text


def _literal(template: str, at: int, literal: str) -> str:
    if not isinstance(template, Traced):
        return literal
    if template[at : at + len(literal)] == literal:
        return template[at : at + len(literal)]
    return Traced(literal) if any(template.marks) else literal


def _after(template: str, at: int, literal: str, field: str | None, spec: str | None, conversion: str | None) -> int:
    at += len(literal)
    if field is None:
        return at + (1 if literal[-1:] in ("{", "}") and template[at : at + 1] == literal[-1:] else 0)
    return at + 2 + len(field) + (2 if conversion else 0) + (len(spec) + 1 if spec else 0)
