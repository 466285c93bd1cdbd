"""The messages between the pool and a worker, and their plain form: nested lists of what msgpack knows.

A message is written as `[tag, field, field, …]` without field names: both ends run the same files, so the order of the
fields is the contract. The converters are made from the annotations once a class, at its first use.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import attrs
from attrs import field, frozen

from .types import Done, Finished, GenerateRequest, LoadSpec, Piece, SlotStatus, Started


@frozen
class Load:
    """To the worker, first: load this model. Answered by `Loading`s, then `Loaded` or `LoadRefused`."""

    spec: LoadSpec


@frozen
class Generate:
    """To the worker: answer this request. Answered inside `Outputs`, up to a `Done` or a `Failure`."""

    request: GenerateRequest


@frozen
class Cancel:
    """To the worker: forget this request; nothing about it is sent once the current step is over."""

    request_id: str


@frozen
class AskStatus:
    """To the worker: report; answered by a `Status` with the same number between two steps."""

    number: int


@frozen
class Shutdown:
    """To the worker: end now."""


@frozen
class Hello:
    """From the worker, first: the process runs."""

    pid: int


@frozen
class Loading:
    """From the worker: how far the load is, 0..1 within a stage."""

    stage: str
    fraction: float


@frozen
class Loaded:
    """From the worker: the model answers requests from now on."""

    applied: dict[str, Any]
    origins: dict[str, str]
    warnings: tuple[str, ...]
    memory: dict[str, Any]


@frozen
class LoadRefused:
    """From the worker: the model cannot be loaded; `error` is a `LocalLLMError.as_dict()`."""

    error: dict[str, Any]


@frozen
class Failure:
    """Inside `Outputs`: the request ended with this error (`LocalLLMError.as_dict()`)."""

    error: dict[str, Any]


@frozen
class Outputs:
    """From the worker: what one engine step brought, by request and in order."""

    items: tuple[tuple[str, Piece | Started | Finished | Done | Failure], ...]


@frozen
class Status:
    """From the worker: its slots and counters."""

    number: int
    slots: tuple[SlotStatus, ...] = ()
    metrics: dict[str, Any] = field(factory=dict)


@frozen
class Log:
    """From the worker: a line for the log, beside what it writes to stderr."""

    level: str
    text: str


ToWorker = Load | Generate | Cancel | AskStatus | Shutdown
FromWorker = Hello | Loading | Loaded | LoadRefused | Outputs | Status | Log
Message = ToWorker | FromWorker

_Convert = Callable[[Any], Any]


@frozen
class _Converter:
    """A type's two directions; None stands for "as it is", so that plain fields cost nothing."""

    dump: _Convert | None = None
    load: _Convert | None = None


_AS_IS = _Converter()


def to_plain(message: Message) -> Any:
    """The message as nested tuples of plain values, its tag first."""
    dump = _converter(Message).dump
    assert dump is not None
    return dump(message)


def from_plain(plain: Any) -> Message:
    """The message that `to_plain` wrote. Raises ValueError, TypeError or LookupError where it is none."""
    load = _converter(Message).load
    assert load is not None
    message: Message = load(plain)
    return message


@cache
def _converter(kind: Any) -> _Converter:
    if attrs.has(kind):
        return _of_class(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return _of_tuple(args)
    if origin in (typing.Union, types.UnionType):
        return _of_union(args)
    return _AS_IS


def _of_class(cls: type) -> _Converter:
    """A class is the row of its fields in order."""
    hints = typing.get_type_hints(cls)
    names = tuple(attribute.name for attribute in attrs.fields(cls))
    parts = [_converter(hints[name]) for name in names]
    dumps = [(at, part.dump) for at, part in enumerate(parts) if part.dump]
    loads = [(at, part.load) for at, part in enumerate(parts) if part.load]
    row = _row(names)

    def dump(value: Any) -> Any:
        if not dumps:
            return row(value)
        fields = list(row(value))
        for at, convert in dumps:
            fields[at] = convert(fields[at])
        return fields

    def load(plain: Any) -> Any:
        if len(plain) != len(names):
            raise ValueError(f"`{cls.__name__}` has {len(names)} fields, not {len(plain)}")
        fields = list(plain)
        for at, convert in loads:
            fields[at] = convert(fields[at])
        return cls(**dict(zip(names, fields, strict=True)))

    return _Converter(dump, load)


def _row(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda _value: ()
    get = attrgetter(names[0])
    return lambda value: (get(value),)


def _of_tuple(args: tuple[Any, ...]) -> _Converter:
    """`tuple[X, ...]` or `tuple[A, B]`; msgpack packs tuples and gives lists back."""
    if len(args) == 2 and args[1] is Ellipsis:
        part = _converter(args[0])
        dump_one, load_one = part.dump, part.load
        return _Converter(
            (lambda value: [dump_one(one) for one in value]) if dump_one else None,
            (lambda plain: tuple([load_one(one) for one in plain])) if load_one else tuple,
        )
    parts = [_converter(arg) for arg in args]
    if not any(part.dump for part in parts):
        return _Converter(None, tuple)
    dumps = [part.dump or _same for part in parts]
    loads = [part.load or _same for part in parts]
    return _Converter(
        lambda value: [convert(one) for convert, one in zip(dumps, value, strict=True)],
        lambda plain: tuple([convert(one) for convert, one in zip(loads, plain, strict=True)]),
    )


def _same(value: Any) -> Any:
    return value


def _of_union(args: tuple[Any, ...]) -> _Converter:
    """Several classes get a tag; a class or a tuple beside scalars is told by being a list."""
    classes = [arg for arg in args if attrs.has(arg)]
    if len(classes) > 1:
        return _tagged(classes)
    rich = [part for part in map(_converter, args) if part.load]
    if not rich:
        return _AS_IS
    if len(rich) > 1:
        raise TypeError(f"two kinds of lists in one union cannot be told apart: {args}")
    (part,) = rich
    dump_rich, load_rich = part.dump, part.load
    assert load_rich is not None
    scalars = (str, int, float, bool, type(None), dict, bytes)
    return _Converter(
        (lambda value: value if isinstance(value, scalars) else dump_rich(value)) if dump_rich else None,
        lambda plain: load_rich(plain) if isinstance(plain, list) else plain,
    )


def _tagged(classes: list[type]) -> _Converter:
    tags = {cls: tag for tag, cls in enumerate(classes)}
    dumps = [_converter(cls).dump or _same for cls in classes]
    loads = [_converter(cls).load or _same for cls in classes]

    def dump(value: Any) -> Any:
        tag = tags[type(value)]
        return (tag, *dumps[tag](value))

    def load(plain: Any) -> Any:
        return loads[plain[0]](plain[1:])

    return _Converter(dump, load)
