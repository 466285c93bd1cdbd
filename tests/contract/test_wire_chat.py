"""The chat endpoint's dialect: bodies to plans, events to chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from localllm.api.chunks import Chunks, error_frame
from localllm.api.errors import error_object
from localllm.api.json_body import parse_json, parse_object
from localllm.api.wire import chat_call, respell
from localllm.errors import BadInput, LocalLLMError, ModelNotFound, QueueFull, Unauthorized, WorkerDied
from localllm.executors.events import Delta
from localllm.executors.request import chat_request
from localllm.planner.codec import load_plan

CASES = json.loads((Path(__file__).parent / "chat_bodies.json").read_text())
ENVELOPE = {"id": "chatcmpl-1", "created": 7, "model": "m"}


def refusal(body: dict[str, Any]) -> LocalLLMError:
    """The error that a body ends in, as the endpoint answers it."""
    try:
        call = chat_call(body)
        try:
            chat_request(load_plan(call.plan))
        except LocalLLMError as fault:
            raise respell(fault, call.spelling) from None
    except LocalLLMError as fault:
        return fault
    pytest.fail("the body was accepted")


@pytest.mark.parametrize("case", CASES["accepted"], ids=lambda case: case["name"])
def test_a_body_becomes_a_plan(case: dict[str, Any]) -> None:
    call = chat_call(case["body"])

    assert call.plan == case["plan"]
    assert (call.stream, call.include_usage) == (case.get("stream", False), case.get("include_usage", False))
    assert call.spelling == case.get("spelling", {})
    load_plan(call.plan)


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["name"])
def test_a_wrong_body_is_a_400_that_names_the_field(case: dict[str, Any]) -> None:
    fault = refusal(case["body"])

    body = error_object(fault)["error"]
    assert fault.http_status == 400
    assert body["type"] == "invalid_request_error"
    assert body["param"] == case["param"]
    assert case.get("mentions", "") in body["message"]


def test_a_renamed_field_is_called_by_the_clients_name_in_the_message_too() -> None:
    fault = refusal({"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 0})

    assert "max_completion_tokens" in fault.message
    assert "max_tokens" not in fault.message.replace("max_completion_tokens", "")


@pytest.mark.parametrize(
    "body", [b"", b"  ", b"{", b"NaN", b'{"temperature": NaN}', b'"\\ud800"', b'"\xff"', b"[" * 100_000]
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput):
        parse_json(body)


@pytest.mark.parametrize("body", [b"[]", b"5", b"null", b'"x"'])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput, match="must be a JSON object"):
        parse_object(body)


def frames(chunks: Chunks, *deltas: Delta) -> list[dict[str, Any]]:
    out = []
    for delta in deltas:
        frame = chunks.delta(delta)
        assert frame.startswith(b"data: ")
        assert frame.endswith(b"\n\n")
        out.append(json.loads(frame.removeprefix(b"data: ")))
    return out


def test_only_the_first_chunk_of_each_answer_names_the_role() -> None:
    got = frames(
        Chunks(ENVELOPE, include_usage=False),
        Delta(index=0, delta={"role": "assistant", "content": ""}),
        Delta(index=0, delta={"role": "assistant", "content": "a"}),
        Delta(index=1, delta={"content": "b"}),
        Delta(index=0, delta={}, finish_reason="stop"),
    )

    roles = [chunk["choices"][0]["delta"].get("role") for chunk in got]
    assert roles == ["assistant", None, "assistant", None]
    assert got[2]["choices"][0]["delta"]["content"] == "b"
    assert [chunk["choices"][0]["finish_reason"] for chunk in got] == [None, None, None, "stop"]


def test_all_chunks_share_the_envelope_and_have_no_usage_unless_asked() -> None:
    (chunk,) = frames(Chunks(ENVELOPE, include_usage=False), Delta(delta={"content": "é👍"}))

    assert chunk == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "é👍"},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }


def test_usage_comes_in_a_chunk_without_choices_and_is_null_before() -> None:
    chunks = Chunks(ENVELOPE, include_usage=True)
    (chunk,) = frames(chunks, Delta(delta={"content": "x"}))
    last = json.loads(chunks.usage({"total_tokens": 3}).removeprefix(b"data: "))

    assert chunk["usage"] is None
    assert last["choices"] == []
    assert last["usage"] == {"total_tokens": 3}
    assert last["id"] == "chatcmpl-1"


def test_without_the_option_there_is_no_usage_chunk() -> None:
    assert Chunks(ENVELOPE, include_usage=False).usage({"total_tokens": 3}) == b""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ModelNotFound("model `x` does not exist", param="model", hint="look"),
            {"type": "invalid_request_error", "code": "model_not_found", "param": "model", "hint": "look"},
        ),
        (Unauthorized("no key"), {"type": "authentication_error", "code": "invalid_api_key", "param": None}),
        (QueueFull("full"), {"type": "rate_limit_error", "code": "queue_full", "param": None}),
        (WorkerDied("gone"), {"type": "server_error", "code": "worker_died", "param": None}),
    ],
)
def test_an_error_has_openais_shape(error: LocalLLMError, expected: dict[str, Any]) -> None:
    body = error_object(error)

    assert body == {"error": {"message": error.message, **expected}}


def test_an_error_frame_is_one_event_and_tells_nothing_of_this_machine() -> None:
    frame = error_frame(WorkerDied("the worker died", path="/home/someone/model.gguf"))

    assert frame.count(b"\n\n") == 1
    assert b"/home" not in frame
    assert json.loads(frame.removeprefix(b"data: "))["error"]["code"] == "worker_died"
