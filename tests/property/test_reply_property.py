"""However an answer's text is cut into pieces, its parts are the same."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from localllm.runtime.conversation.reasoning import ReasoningSplitter
from localllm.runtime.conversation.reply import ReplyFormat, ReplyParser
from localllm.runtime.conversation.tool_formats import FORMATS

FUNCTIONS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "g": {"type": "object", "properties": {"b": {"type": "string"}}},
}
SNIPPETS = [
    *[mark for form in FORMATS.values() for mark in (*form.opens, *form.after)],
    *[
        text
        for form in FORMATS.values()
        for text in (form.shape.call, form.shape.middle, form.shape.close, form.shape.closing)
    ],
    *['{"name": "f", ', '"arguments": ', '{"a": 1}', '"name":"g"', '{"b": "x\\"}"}', "f[ARGS]", "functions.f:0"],
    *["<function=f>", "<parameter=a>", "1</parameter>", "</function>", "```json\n", '"f"', "f", "g", "zzz"],
    *["<think>", "</think>", " ", "\n", "{", "}", "[", "]", ",", ":", '"', "\\", "é😀"],
]
TEXTS = st.lists(st.sampled_from(SNIPPETS), max_size=12).map("".join)
CUTS = st.lists(st.integers(1, 12), max_size=60)


def pieces(text: str, lengths: list[int]) -> list[str]:
    """The text cut into pieces of these lengths; what is left over is the last."""
    out: list[str] = []
    for length in lengths:
        out.append(text[:length])
        text = text[length:]
    return [*out, text]


def read(form: ReplyFormat, parts: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The whole message, and the deltas in OpenAI's shape."""
    numbers = count()
    parser = ReplyParser(form, lambda _: f"id{next(numbers)}")
    deltas = [delta for part in parts for delta in parser.feed(part)] + parser.finish()
    return parser.message(), [delta.as_openai() for delta in deltas]


def accumulated(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of deltas, as OpenAI's accumulators do."""
    content, reasoning = "", ""
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for piece in delta.get("tool_calls", ()):
            index = piece["index"]
            if index not in calls:
                assert piece["id"]
                assert piece["type"] == "function"
                assert piece["function"]["name"]
                calls[index] = {"id": piece["id"], "type": "function", "function": {**piece["function"]}}
            else:
                assert set(piece) == {"index", "function"}
                assert set(piece["function"]) == {"arguments"}
                calls[index]["function"]["arguments"] += piece["function"]["arguments"]
    assert sorted(calls) == list(range(len(calls)))
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if reasoning or calls else "")}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


@settings(max_examples=600)
@given(TEXTS, CUTS, st.sampled_from(sorted(FORMATS)), st.booleans(), st.sampled_from([None, "<think>"]))
def test_the_same_parts_come_out_of_any_cut(
    text: str, lengths: list[int], tool_format: str, parallel: bool, opened: str | None
) -> None:
    form = ReplyFormat(
        reasoning=(("<think>", "</think>"),),
        reasoning_open=opened,
        tool_format=tool_format,
        functions=FUNCTIONS,
        parallel=parallel,
    )
    whole, _ = read(form, [text])
    cut, deltas = read(form, pieces(text, lengths))
    single, _ = read(form, list(text))

    assert cut == whole
    assert single == whole
    assert accumulated(deltas) == whole
    assert parallel or len(whole.get("tool_calls", ())) <= 1


@settings(max_examples=300)
@given(TEXTS, CUTS)
def test_nothing_is_lost_where_nothing_is_taken_apart(text: str, lengths: list[int]) -> None:
    message, _ = read(ReplyFormat(), pieces(text, lengths))

    assert message == {"role": "assistant", "content": text}


@settings(max_examples=300)
@given(TEXTS, CUTS, st.sampled_from([None, "<think>"]))
def test_thinking_and_answer_hold_every_character_but_tags_and_blank_space(
    text: str, lengths: list[int], opened: str | None
) -> None:
    splitter = ReasoningSplitter((("<think>", "</think>"),), opened)
    parts = [splitter.feed(piece) for piece in pieces(text, lengths)] + [splitter.finish()]
    thought, answer = "".join(part[0] for part in parts), "".join(part[1] for part in parts)
    kept = "".join(f"{thought}{answer}".split())
    given_text = "".join(text.split())

    assert kept in (given_text, *(_without_tags(given_text)))


def _without_tags(text: str) -> list[str]:
    opened = text.removeprefix("<think>")
    return [opened, text.replace("</think>", "", 1), opened.replace("</think>", "", 1)]
