"""Jinja's filters, bounded in size and keeping the marks of who wrote what."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context

from .limits import check_numbers, check_replace, grown, weigh
from .provenance import OTHER, Traced, embedded, holds_traced, joined, plain, printf, spoken, traced

COMPARING_TESTS = frozenset(
    {
        "eq",
        "equalto",
        "==",
        "ne",
        "!=",
        "lt",
        "lessthan",
        "<",
        "le",
        "<=",
        "gt",
        "greaterthan",
        ">",
        "ge",
        ">=",
        "in",
        "sameas",
    }
)
_SHALLOW_FILTERS = frozenset(
    {
        "length",
        "count",
        "first",
        "last",
        "list",
        "items",
        "reverse",
        "map",
        "select",
        "reject",
        "selectattr",
        "rejectattr",
        "attr",
        "default",
        "d",
        "batch",
        "slice",
        "trim",
        "upper",
        "lower",
        "capitalize",
        "abs",
        "int",
        "float",
        "round",
        "safe",
        "random",
    }
)
_SIZING_FILTERS = frozenset({"center", "truncate", "wordwrap", "batch", "slice", "round", "filesizeformat"})


def guarded(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its sizes checked, and with the request's marks on text it makes from the request's."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        if name in _SIZING_FILTERS:
            check_numbers([*args[1:], *kwargs.values()])
        if name not in _SHALLOW_FILTERS:
            weigh(*[arg for arg in args if not isinstance(arg, (jinja2.Environment, Context, nodes.EvalContext))])
        result = filter_(*args, **kwargs)
        if isinstance(result, str) and not isinstance(result, Traced):
            grown(len(result))
            for arg in args:
                if isinstance(arg, Traced):
                    return embedded(plain(result), arg)
            return Traced(plain(result)) if holds_traced([*args, *kwargs.values()]) else plain(result)
        return result

    # jinja2 passes the context to filters that carry its mark
    checked.__dict__.update(getattr(filter_, "__dict__", {}))
    return checked


def weighed(test: Callable[..., Any]) -> Callable[..., Any]:
    """The test with its operands bounded."""

    def checked(*args: Any) -> Any:
        weigh(*[arg for arg in args if not isinstance(arg, str)])
        return test(*args)

    return checked


def _text(value: Any) -> str:
    weigh(value)
    return spoken(value)


@jinja2.pass_environment
def _join(environment: jinja2.Environment, value: Any, d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = environment.call_filter("map", value, kwargs={"attribute": attribute})
    items = [_text(item) for item in value]
    grown(sum(len(item) + len(d) for item in items))
    return joined(_text(d), items)


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = _text(value), _text(old), _text(new)
    check_replace(text, old, new)
    times = -1 if count is None else count
    kept = isinstance(text, Traced) or isinstance(new, Traced)
    return traced(text).replace(old, new, times) if kept else text.replace(old, new, times)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    check_numbers((width,))
    pad = width if isinstance(width, str) else " " * width
    text = _text(value)
    lines = (text + "\n").splitlines()
    grown(len(text) + len(lines) * len(pad))
    rest = [pad + line if line or blank else line for line in lines[1:]]
    return joined("\n", [pad + lines[0] if first else lines[0], *rest])


def _title(value: Any) -> str:
    text = _text(value)
    out = "".join(part[:1].upper() + part[1:].lower() for part in re.split(r"([-\s({\[<]+)", plain(text)) if part)
    if not isinstance(text, Traced):
        return out
    return Traced(out, text.marks if len(out) == len(text) else OTHER)


def _percent(value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    return printf(_text(value), kwargs or args)


def _escape(value: Any) -> str:
    parts = {"&": "&amp;", ">": "&gt;", "<": "&lt;", "'": "&#39;", '"': "&#34;"}
    text = _text(value)
    for character, entity in parts.items():
        text = _replace(text, character, entity)
    return text


FILTERS: dict[str, Callable[..., Any]] = {
    "join": _join,
    "replace": _replace,
    "indent": _indent,
    "title": _title,
    "format": _percent,
    "safe": _text,
    "escape": _escape,
    "e": _escape,
    "forceescape": _escape,
}
"""Filters in place of Jinja's own, which would forget who wrote what."""
