"""What a chat template may use: time, and the sizes of the texts, lists and numbers it makes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from attrs import define, field

from .provenance import printf

MAX_SOURCE = 1 << 20
"""Characters a template may have."""

MAX_TEXT = 1 << 24
"""Characters any text a template makes may have."""

MAX_ITEMS = 100_000
"""Items of a list, steps of a `range` and nodes of a value that is compared or printed."""

MAX_NUMBER = 1_000_000
"""The largest number a method or a filter takes as a size."""


class TemplateLimit(Exception):
    """The template ran too long or made something too large."""


class TemplateRaised(Exception):
    """The template called `raise_exception`; the text is its own."""


@define
class Budget:
    """What one render may still use."""

    deadline: float
    """In the processor time of the thread that renders: what else a busy machine does is no fault of a template."""
    ticks: int = 0
    printed: set[int] = field(factory=set)
    """The marks of lists and dicts that went into the prompt in Python's notation."""

    def tick(self, weight: int = 1) -> None:
        """Count a step; every thousandth looks at the clock."""
        before, self.ticks = self.ticks, self.ticks + weight
        if before // 1000 != self.ticks // 1000 and time.thread_time() > self.deadline:
            raise TemplateLimit("the chat template takes too long")


def grown(length: int, limit: int = MAX_TEXT) -> None:
    """Refuse a text or list of this length."""
    if length > limit:
        raise TemplateLimit("the chat template makes a value that is too large")


def weigh(*values: Any) -> None:
    """Refuse values with too many parts; shared parts count each time they are reached."""
    waiting, seen = list(values), 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen > MAX_ITEMS:
            raise TemplateLimit("the chat template handles a value with too many parts")
        if isinstance(value, dict):
            waiting.extend(value.keys())
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting.extend(value)


def check_numbers(values: Iterable[Any]) -> None:
    """Refuse sizes that are too large."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise TemplateLimit("the chat template asks for a size that is too large")


def check_replace(text: str, old: Any, new: Any) -> None:
    """Refuse a replacement that makes a text too large."""
    if isinstance(old, str) and isinstance(new, str):
        times = text.count(old) if old else len(text) + 1
        grown(len(text) + times * len(new))


def plus(left: Any, right: Any) -> Any:
    """`left + right` within bounds."""
    if isinstance(left, str) and isinstance(right, str):
        grown(len(left) + len(right))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        grown(len(left) + len(right), MAX_ITEMS)
    return left + right


def times(left: Any, right: Any) -> Any:
    """`left * right` within bounds."""
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
            grown(len(sequence) * max(count, 0), MAX_TEXT if isinstance(sequence, str) else MAX_ITEMS)
    if isinstance(left, int) and isinstance(right, int):
        grown(left.bit_length() + right.bit_length(), MAX_ITEMS)
    return left * right


def power(left: Any, right: Any) -> Any:
    """`left ** right` within bounds."""
    if isinstance(left, int) and isinstance(right, int):
        grown(left.bit_length() * abs(right), MAX_ITEMS)
    return left**right


def modulo(left: Any, right: Any) -> Any:
    """`left % right`, also of texts, within bounds and with marks."""
    return printf(left, right) if isinstance(left, str) else left % right
