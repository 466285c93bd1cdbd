"""A request's outputs as OpenAI's objects: reasoning, tool calls, log-probabilities, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from localllm.executors.answer import Answer, Continuation
from localllm.executors.events import Delta
from localllm.runtime.conversation.reply import ReplyFormat
from localllm.runtime.engine.text import TextStream
from localllm.runtime.types import Done, Finished, Piece, Started, TokenLogprob, Usage

THINK = ReplyFormat(reasoning=(("<think>", "</think>"),))
OPENED = ReplyFormat(reasoning=(("<think>", "</think>"),), reasoning_open="<think>")
TWO_CALLS = (
    '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {"b": "x\\"y"}}\n</tool_call>'
)


def cut(text: str, length: int = 3) -> list[str]:
    return [text[at : at + length] for at in range(0, len(text), length)]


def answered(pieces: list[str], form: ReplyFormat, reason: str = "stop") -> tuple[list[Delta], dict[str, Any]]:
    """The deltas of an answer, and the completion."""
    answer = Answer(id="chatcmpl-1", created=7, model="m")
    answer.start(Started(prompt_tokens=3, model_id="m", reply=form.as_dict()))
    deltas = [delta for text in pieces for delta in answer.piece(Piece(index=0, text=text))]
    deltas += answer.finished(Finished(index=0, reason=reason))  # type: ignore[arg-type]
    return deltas, answer.completion(Done(usage=Usage(prompt_tokens=3, completion_tokens=len(pieces))))


def joined(deltas: list[Delta], name: str) -> str:
    return "".join(delta.delta.get(name) or "" for delta in deltas)


@pytest.mark.parametrize(
    ("pieces", "form", "thought", "content"),
    [
        (["<thi", "nk>r</th", "ink>ans"], THINK, "r", "ans"),
        (["r", "</think>ans"], OPENED, "r", "ans"),
        (["<think>r</think>ans"], THINK, "r", "ans"),
        (["<think>r</think>write </think> here"], THINK, "r", "write </think> here"),
        (["use `<think>`"], THINK, "", "use `<think>`"),
        (["<think>r</think>ans"], ReplyFormat(), "", "<think>r</think>ans"),
    ],
)
def test_reasoning_is_told_apart_in_a_stream_and_in_the_whole(
    pieces: list[str], form: ReplyFormat, thought: str, content: str
) -> None:
    deltas, completion = answered(pieces, form)

    message = completion["choices"][0]["message"]
    assert joined(deltas, "reasoning_content") == message.get("reasoning_content", "") == thought
    assert joined(deltas, "content") == message["content"] == content


def test_a_thought_that_takes_all_tokens_is_no_success() -> None:
    deltas, completion = answered(["<think>", "r"], THINK, "length")

    choice = completion["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning_content"] == "r"
    assert deltas[-1].finish_reason == "length"


def calls_of(deltas: list[Delta]) -> list[dict[str, Any]]:
    """The calls as a client puts them together from the deltas."""
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for news in delta.delta.get("tool_calls") or ():
            if news["index"] == len(calls):
                calls.append({"id": news["id"], "type": news["type"], "function": dict(news["function"])})
            else:
                assert "id" not in news
                assert "name" not in news["function"]
                calls[news["index"]]["function"]["arguments"] += news["function"]["arguments"]
    return calls


def test_calls_in_a_stream_join_to_those_of_the_whole() -> None:
    form = ReplyFormat(tool_format="hermes", functions={"f": {}, "g": {}})
    deltas, completion = answered(cut(TWO_CALLS), form)

    choice = completion["choices"][0]
    assert calls_of(deltas) == choice["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls_of(deltas)] == ["f", "g"]
    assert [json.loads(call["function"]["arguments"]) for call in calls_of(deltas)] == [{"a": 1}, {"b": 'x"y'}]
    assert len({call["id"] for call in calls_of(deltas)}) == 2
    assert all(call["id"] for call in calls_of(deltas))
    assert choice["message"]["content"] is None
    assert joined(deltas, "content") == ""
    assert choice["finish_reason"] == deltas[-1].finish_reason == "tool_calls"


def test_without_parallel_calls_only_the_first_is_told() -> None:
    form = ReplyFormat(tool_format="hermes", functions={"f": {}, "g": {}}, parallel=False)
    deltas, completion = answered(cut(TWO_CALLS), form)

    (call,) = completion["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "f"
    assert calls_of(deltas) == [call]
    assert joined(deltas, "content") == ""


def test_a_call_cut_by_the_limit_ends_with_length() -> None:
    form = ReplyFormat(tool_format="hermes", functions={"f": {}})
    _, completion = answered(cut(TWO_CALLS[:45]), form, "length")

    assert completion["choices"][0]["finish_reason"] == "length"


HALF = TokenLogprob(token=b"\xf0\x9f", logprob=-1.0, top=((b"\xf0\x9f", -1.0), (b"a", -2.0)))
REST = TokenLogprob(token=b"\x91\x8d", logprob=-0.5, top=((b"\x91\x8d", -0.5), (b"b", -3.0)))


def test_log_probabilities_have_the_chat_shape_and_bytes_that_join_to_the_text() -> None:
    answer = Answer(id="chatcmpl-1", created=7, model="m")
    answer.start(Started(prompt_tokens=3, model_id="m"))
    deltas = [*answer.piece(Piece(index=0, text="", logprobs=(HALF,)))]
    deltas += answer.piece(Piece(index=0, text="👍", logprobs=(REST,)))
    deltas += answer.finished(Finished(index=0, reason="stop"))
    choice = answer.completion(Done(usage=Usage()))["choices"][0]

    rows = choice["logprobs"]["content"]
    assert bytes(byte for row in rows for byte in row["bytes"]) == "👍".encode()
    assert set(rows[0]) == {"token", "logprob", "bytes", "top_logprobs"}
    assert [top["token"] for top in rows[0]["top_logprobs"]] == ["bytes:\\xf0\\x9f", "a"]
    assert [row for delta in deltas if delta.logprobs for row in delta.logprobs["content"]] == rows


def test_log_probabilities_of_a_text_have_the_older_shape() -> None:
    choice = Continuation(index=2)
    first = choice.piece(Piece(index=0, text="He", logprobs=(TokenLogprob(token=b"He", logprob=-1.0),)))
    choice.piece(Piece(index=0, text="llo", logprobs=(TokenLogprob(token=b"llo", logprob=-2.0, top=((b"y", -3.0),)),)))
    choice.finished("stop")

    assert first.logprobs == {"tokens": ["He"], "token_logprobs": [-1.0], "top_logprobs": [{}], "text_offset": [0]}
    assert choice.choice() == {
        "index": 2,
        "text": "Hello",
        "logprobs": {
            "tokens": ["He", "llo"],
            "token_logprobs": [-1.0, -2.0],
            "top_logprobs": [{}, {"y": -3.0}],
            "text_offset": [0, 2],
        },
        "finish_reason": "stop",
    }


@pytest.mark.parametrize(
    ("tokens", "offsets"),
    [
        ([b"a", b"\xf0\x9f", b"\x98\x80", b"b", b"c"], [0, 1, 1, 2, 3]),
        ([b"\xf0\x9f", b"\x98\x80b", b"c"], [0, 0, 2]),
        ([b"\xf0\x9f", b"b", b"c"], [0, 1, 2]),
        ([b"\xff", b"b"], [0, 1]),
        ([b"", b"\xc3\xa9t\xc3", b"\xa9", b"s"], [0, 0, 2, 3]),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_the_offsets_of_a_text_are_places_in_what_is_shown(
    tokens: list[bytes], offsets: list[int], at_once: bool
) -> None:
    choice, stream = Continuation(index=0), TextStream()
    rows = [TokenLogprob(token=token, logprob=-1.0) for token in tokens]
    for group in [rows] if at_once else [[row] for row in rows]:
        text = "".join(stream.push(row.token) for row in group)
        choice.piece(Piece(index=0, text=text, logprobs=tuple(group)))
    told = choice.choice()
    places = {offset: token for offset, token in zip(offsets, tokens, strict=True) if token.isascii() and token}

    assert told["logprobs"]["text_offset"] == offsets
    assert all(told["text"][offset:].startswith(token.decode()) for offset, token in places.items())
