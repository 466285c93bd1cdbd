"""Events survive the way over a line of JSON."""

from __future__ import annotations

import json

import pytest
from localllm.errors import LocalLLMError, ModelNotFound, QueueFull, RuntimeFailed
from localllm.executors.events import (
    Delta,
    Event,
    Progress,
    Record,
    Result,
    error_to_dict,
    event_from_dict,
    event_to_dict,
    to_line,
)

EVENTS: list[Event] = [
    Progress(stage="loading"),
    Progress(stage="loading", message="weights", current=0.5, total=1.0, unit="share"),
    Record(data={"id": "a", "created": 1}),
    Delta(),
    Delta(index=2, delta={"content": "né\u2028\n"}, finish_reason="stop", logprobs={"content": []}),
    Result(data={"a": [1, None, {"b": "c"}]}),
    Result(data={}, ok=False),
]


@pytest.mark.parametrize("event", EVENTS, ids=repr)
def test_an_event_comes_back_equal_from_its_line(event: Event) -> None:
    line = to_line(event)

    assert line.count("\n") == 1
    assert line.isascii()
    assert event_from_dict(json.loads(line)) == event


def test_an_error_line_is_raised_as_the_class_it_was() -> None:
    error = ModelNotFound("no model `x`", hint="look", param="model", available=["a"])

    with pytest.raises(ModelNotFound) as caught:
        event_from_dict(error_to_dict(error))

    assert caught.value.as_dict() == error.as_dict()


def test_a_retry_hint_survives() -> None:
    with pytest.raises(QueueFull) as caught:
        event_from_dict(json.loads(to_line(QueueFull("full", retry_after_s=7))))

    assert caught.value.retry_after_s == 7


def test_an_error_of_a_newer_server_is_still_an_error() -> None:
    with pytest.raises(RuntimeFailed, match="melted") as caught:
        event_from_dict({"event": "error", "error": {"code": "brand_new", "message": "melted"}})

    assert caught.value.data["code"] == "brand_new"


def test_fields_of_a_newer_server_are_dropped() -> None:
    assert event_from_dict({"event": "result", "data": {}, "ok": True, "mood": "fine"}) == Result(data={})


@pytest.mark.parametrize("raw", [{}, {"event": "party"}, {"event": "result"}, {"event": None}])
def test_what_is_no_event_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="event"):
        event_from_dict(raw)


def test_an_error_without_words_still_says_something() -> None:
    assert error_to_dict(LocalLLMError(""))["error"]["message"]


def test_defaults_stay_out_of_the_line() -> None:
    assert event_to_dict(Delta(delta={"content": "a"})) == {"event": "delta", "index": 0, "delta": {"content": "a"}}
