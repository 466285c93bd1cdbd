"""OpenAI's parse and stream helpers, and instructor, unmodified, against the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import instructor
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

pytestmark = [
    pytest.mark.model,
    # instructor's own use of pydantic and openai
    pytest.mark.filterwarnings("ignore::DeprecationWarning:instructor"),
]

MODEL = "local-model"
ASK = [{"role": "user", "content": "Lisa is 7 and likes red."}]


class Person(BaseModel):
    """A person."""

    age: int = Field(ge=0, le=99)
    colour: Literal["red", "blue"]


class GetTime(BaseModel):
    """Tell the time in a zone."""

    zone: Literal["UTC", "CET"]


@pytest.fixture(scope="module")
def client(model_server: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{model_server.url}/v1", api_key="unused", max_retries=0, timeout=250) as client:
        yield client


def test_parse_gives_an_object_of_the_class(client: OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Person, max_tokens=60)

    person = answer.choices[0].message.parsed
    assert isinstance(person, Person)
    assert answer.choices[0].finish_reason == "stop"


def test_a_parsed_stream_ends_with_the_object(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=ASK, response_format=Person, max_tokens=60) as stream:
        events = list(stream)
        last = stream.get_final_completion()

    assert isinstance(last.choices[0].message.parsed, Person)
    assert "content.done" in {event.type for event in events}
    deltas = [event.delta for event in events if event.type == "content.delta"]
    assert "".join(deltas) == last.choices[0].message.content


def test_an_answer_cut_by_the_limit_is_told_as_such(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Person, max_tokens=2)


def test_tool_arguments_are_parsed_whole_and_accumulated_in_a_stream(client: OpenAI) -> None:
    ask: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What time is it?"}],
        "tools": [openai.pydantic_function_tool(GetTime)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 60,
    }
    whole = client.chat.completions.parse(**ask)
    with client.chat.completions.stream(**ask) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        last = stream.get_final_completion()

    (call,) = whole.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, GetTime)
    assert whole.choices[0].finish_reason == last.choices[0].finish_reason == "tool_calls"
    (streamed,) = last.choices[0].message.tool_calls or ()
    assert isinstance(streamed.function.parsed_arguments, GetTime)
    assert [event.name for event in done] == ["GetTime"]
    assert json.loads(done[0].arguments) == streamed.function.parsed_arguments.model_dump()


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_instructor_gets_its_object(client: OpenAI, mode: instructor.Mode) -> None:
    patched = instructor.from_openai(client, mode=mode)
    person = patched.chat.completions.create(
        model=MODEL, messages=ASK, response_model=Person, max_retries=0, max_tokens=60, temperature=0
    )

    assert isinstance(person, Person)


def test_log_probabilities_join_to_the_text(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 6, "logprobs": True, "top_logprobs": 2}
    choice = client.chat.completions.create(**ask, temperature=0).choices[0]
    chunks = list(client.chat.completions.create(**ask, temperature=0, stream=True))

    assert choice.logprobs is not None
    rows = choice.logprobs.content or []
    assert bytes(byte for row in rows for byte in row.bytes or ()).decode() == choice.message.content
    assert all(row.logprob <= 0 for row in rows)
    assert all(
        len(row.top_logprobs) == 2 and row.top_logprobs[0].logprob >= row.top_logprobs[1].logprob for row in rows
    )
    streamed = [row for chunk in chunks for c in chunk.choices if c.logprobs for row in c.logprobs.content or ()]
    assert len(streamed) == len(rows) == 6


def test_a_constrained_answer_tells_the_log_probability_of_forced_tokens_too(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, logprobs=True, max_tokens=40, extra_body={"guided_regex": "The colour is (red|blue)"}
    )
    choice = answer.choices[0]

    assert choice.logprobs is not None
    joined = bytes(byte for row in choice.logprobs.content or () for byte in row.bytes or ()).decode()
    assert joined == choice.message.content
    assert joined in ("The colour is red", "The colour is blue")


def test_text_completions_work_by_the_client(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["One, two,", "A, B,"], max_tokens=3, logprobs=2, seed=1)

    assert answer.object == "text_completion"
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert "".join(choice.logprobs.tokens or ()) == choice.text
        assert all(len(top) == 2 for top in choice.logprobs.top_logprobs or ())
