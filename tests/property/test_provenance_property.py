"""Marked text behaves like the plain text, and its marks stay with its characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localllm.runtime.conversation.provenance import OWN, Traced, formatted, joined, marks_of, plain, printf, traced

LETTERS = st.text("ab <|\n", max_size=12)
MIXED = st.lists(st.tuples(LETTERS, st.booleans()), max_size=5)


def built(parts: list[tuple[str, bool]]) -> Traced:
    return traced(joined("", [Traced(text) if theirs else text for text, theirs in parts]))


# Upper-case letters are the request's and lower-case ones the template's, so a mark can be told from the character.
COLOURED = st.text("abAB <|\n", max_size=14).map(
    lambda text: Traced(text, bytes(1 if char.isupper() else 0 for char in text))
)


def consistent(text: Any) -> bool:
    """Every letter still has its own mark."""
    if isinstance(text, str):
        marks = marks_of(text)
        return len(marks) == len(text) and all(
            bool(mark) == char.isupper() for char, mark in zip(text, marks, strict=True) if char.isalpha()
        )
    return all(consistent(item) for item in text)


OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "strip": lambda t: t.strip(),
    "strip chars": lambda t: t.strip("a<"),
    "lstrip": lambda t: t.lstrip(),
    "rstrip": lambda t: t.rstrip("\n"),
    "split": lambda t: t.split("|"),
    "split at most once": lambda t: t.split("<", 1),
    "split on space": lambda t: t.split(),
    "rsplit": lambda t: t.rsplit("a", 1),
    "rsplit on space": lambda t: t.rsplit(None, 1),
    "splitlines": lambda t: t.splitlines(),
    "splitlines with ends": lambda t: t.splitlines(True),
    "partition": lambda t: t.partition("<|"),
    "rpartition": lambda t: t.rpartition("B"),
    "replace": lambda t: t.replace("<", "xx"),
    "replace once": lambda t: t.replace("a", "", 1),
    "slice": lambda t: t[1:-1],
    "step": lambda t: t[::2],
    "reverse": lambda t: t[::-1],
    "first": lambda t: t[:1],
    "removeprefix": lambda t: t.removeprefix("a"),
    "removesuffix": lambda t: t.removesuffix("A"),
    "add": lambda t: t + "x",
    "radd": lambda t: "x" + t,
    "times": lambda t: t * 2,
    "join": lambda t: joined(t, ["a", t, "b"]),
    "percent": lambda t: printf("x%s%%y%5s", (t, t)),
    "format": lambda t: formatted("x{}{{y}}{k}", (t,), {"k": t}),
    "centre": lambda t: t.center(20),
    "iterate": lambda t: joined("", list(t)),
}
PLAINLY: dict[str, Callable[[str], Any]] = {
    "join": lambda t: t.join(["a", t, "b"]),
    "percent": lambda t: "x%s%%y%5s" % (t, t),  # noqa: UP031 (this is what a template writes)
    "format": lambda t: "x{}{{y}}{k}".format(t, k=t),  # noqa: UP032 (this is what a template writes)
    "iterate": lambda t: t,
}


@pytest.mark.parametrize("name", OPERATIONS)
@given(text=COLOURED)
def test_an_operation_gives_the_plain_result_and_keeps_marks(name: str, text: Traced) -> None:
    result = OPERATIONS[name](text)
    expected = PLAINLY.get(name, OPERATIONS[name])(plain(text))

    assert result == expected
    assert consistent(result)


@given(MIXED)
def test_joined_text_keeps_who_wrote_it(parts: list[tuple[str, bool]]) -> None:
    text = built(parts)

    assert text == "".join(part for part, _ in parts)
    assert [mark == OWN for mark in text.marks] == [not theirs for part, theirs in parts for _ in part]


@given(st.text(max_size=20))
def test_changes_of_case_stay_the_request_s(text: str) -> None:
    for method in ("lower", "upper", "title", "capitalize", "swapcase", "casefold"):
        result = getattr(Traced(text), method)()

        assert result == getattr(text, method)()
        assert OWN not in result.marks


def test_marked_text_is_found_in_dicts_and_compares_like_plain_text() -> None:
    assert {"role": 1}[Traced("role")] == 1
    assert Traced("a") == "a"
    assert "a" in Traced("xay")
    assert type(plain(Traced("a"))) is str
