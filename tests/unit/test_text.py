"""Text as it may be shown: whole characters, and nothing of a stop string."""

from __future__ import annotations

import pytest
from localllm.runtime.engine.text import TextStream, find_stop, held_back


def stream(pieces: list[bytes | str], stops: tuple[str, ...] = ()) -> tuple[list[str], str | None]:
    text = TextStream(stops)
    shown = []
    for piece in pieces:
        shown.append(text.push(piece.encode() if isinstance(piece, str) else piece))
        if text.stop_text is not None:
            break
    shown.append(text.finish())
    return shown, text.stop_text


def test_split_characters_wait_for_their_rest_and_stray_bytes_become_one_mark() -> None:
    pieces = [b"\xf0\x9f", b"\x91\x8d", b" ok ", b"\xe2\x9c\x85", b"\x85", b"end", b"\xe2\x9c"]
    shown, _ = stream(pieces)

    assert "".join(shown) == "👍 ok ✅\ufffdend\ufffd"
    assert shown[0] == ""
    assert shown[1] == "👍"


def test_a_stop_over_a_token_boundary_never_leaks() -> None:
    assert stream(["Hi", "\nUs", "er", ": no"], ("\nUser:", "XYZ")) == (["Hi", "", "", "", ""], "\nUser:")


def test_text_held_back_for_a_stop_that_does_not_come_is_shown() -> None:
    shown, stop = stream(["Hi", "\nUs", "ual"], ("\nUser:", "XYZ"))

    assert ("".join(shown), stop) == ("Hi\nUsual", None)
    assert shown[1] == ""


def test_text_held_back_at_the_end_is_shown() -> None:
    assert stream(["ends XY"], ("XYZ",)) == (["ends ", "XY"], None)


def test_a_stop_of_split_bytes_is_found() -> None:
    assert stream([b"a\xf0\x9f", b"\x91\x8db"], ("👍",)) == (["a", "", ""], "👍")


@pytest.mark.parametrize(
    "text, stops, found",
    [
        ("abcd", ("cd", "bc"), (1, "bc")),
        ("abcde", ("abcde", "cd"), (2, "cd")),
        ("xYZ", ("YZ", "xYZ"), (0, "xYZ")),
        ("abc", ("d",), None),
    ],
)
def test_the_stop_that_ends_first_wins_and_then_the_one_that_begins_first(
    text: str, stops: tuple[str, ...], found: tuple[int, str] | None
) -> None:
    assert find_stop(text, stops) == found


def test_what_could_become_a_stop_is_counted_once_and_longest() -> None:
    assert held_back("aab", ("abc", "bx")) == 2
    assert held_back("zzz", ("abc",)) == 0
    assert held_back("ab", ("ab",)) == 0
