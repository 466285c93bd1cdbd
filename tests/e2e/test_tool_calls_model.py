"""A small real model calls tools rightly when it must: the prompt, the constraint and the parser together."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from localllm.runtime.conversation.reply import ReplyFormat, ReplyParser
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.types import Finished, GenerateRequest, LoadSpec, Piece, Sampling, Started

pytestmark = pytest.mark.model

ZONES = ["UTC", "CET"]
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "time_now",
            "description": "Tell the time",
            "parameters": {
                "type": "object",
                "properties": {"zone": {"type": "string", "enum": ZONES}},
                "required": ["zone"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "date_today", "description": "Tell the date"}},
)


@define
class Answer:
    """What one request came to."""

    message: dict[str, Any] = field(factory=dict)
    reason: str = ""
    notes: tuple[str, ...] = ()


async def answer(runtime: LocalRuntime, seed: int, max_tokens: int = 200, **more: Any) -> Answer:
    request = GenerateRequest(
        request_id=f"request-{seed}",
        messages=({"role": "user", "content": "What time is it?"},),
        tools=TOOLS,
        sampling=Sampling(seed=seed, temperature=1.0),
        max_tokens=max_tokens,
        **more,
    )
    out, parser = Answer(), ReplyParser(ReplyFormat())
    async for output in runtime.generate("m", request):
        if isinstance(output, Started):
            assert output.reply is not None
            parser = ReplyParser(ReplyFormat.from_dict(output.reply))
            out.notes = output.notes
        elif isinstance(output, Piece):
            parser.feed(output.text)
        elif isinstance(output, Finished):
            parser.finish()
            out.reason = parser.finish_reason if output.reason == "stop" else output.reason
    out.message = parser.message()
    return out


def answers(model_path: Path, seeds: range, **more: Any) -> list[Answer]:
    async def whole() -> list[Answer]:
        runtime = LocalRuntime()
        try:
            await runtime.load(LoadSpec(model_id="m", path=str(model_path), n_ctx=2048, n_slots=8))
            return await asyncio.gather(*(answer(runtime, seed, **more) for seed in seeds))
        finally:
            await runtime.aclose()

    return asyncio.run(whole())


@pytest.mark.timeout(900)  # on two cores that also do other work it took four minutes
def test_a_required_call_is_a_valid_call_for_every_seed(model_path: Path) -> None:
    found = answers(model_path, range(50), tool_choice="required")

    assert [one.reason for one in found] == ["tool_calls"] * 50
    for one in found:
        assert one.message["content"] is None
        assert one.message["tool_calls"]
        assert "tools" in one.notes[0]
    for call in (call["function"] for one in found for call in one.message["tool_calls"]):
        arguments = json.loads(call["arguments"])
        assert call["name"] in ("time_now", "date_today")
        assert arguments in ([{"zone": zone} for zone in ZONES] if call["name"] == "time_now" else [{}])


def test_a_named_tool_is_the_one_that_is_called(model_path: Path) -> None:
    named = {"type": "function", "function": {"name": "date_today"}}
    found = answers(model_path, range(3), tool_choice=named, template_options={"parallel_tool_calls": False})

    assert [call["function"]["name"] for one in found for call in one.message["tool_calls"]] == ["date_today"] * 3


def test_with_none_no_tool_is_called(model_path: Path) -> None:
    found = answers(model_path, range(3), max_tokens=12, tool_choice="none")

    assert not any("tool_calls" in one.message for one in found)
    assert all(one.message["content"] for one in found)


def functions_of(chunks: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The calls that the chunks of a streamed answer join to."""
    calls: list[dict[str, str]] = []
    for piece in (one for chunk in chunks for one in chunk["choices"][0]["delta"].get("tool_calls") or ()):
        if piece["index"] == len(calls):
            calls.append({"name": "", "arguments": ""})
        for name, text in piece["function"].items():
            calls[piece["index"]][name] += text
    return calls


@pytest.mark.timeout(600)
def test_a_streamed_required_call_joins_to_the_one_that_is_not_streamed(model_server: Any) -> None:
    ask = {
        "model": "local-model",
        "messages": [{"role": "user", "content": "What time is it?"}],
        "tools": TOOLS,
        "tool_choice": "required",
        "determinism": "strict",
        "temperature": 1.0,
        "seed": 7,
        "max_tokens": 200,
    }
    with model_server.client() as http:
        whole = http.post("/v1/chat/completions", json=ask).raise_for_status().json()["choices"][0]
        lines = http.post("/v1/chat/completions", json={**ask, "stream": True}).raise_for_status().text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    chunks = [json.loads(one) for one in data if one != "[DONE]"]

    assert data[-1] == "[DONE]"
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert whole["message"]["tool_calls"]
    assert functions_of(chunks) == [call["function"] for call in whole["message"]["tool_calls"]]
