"""`chat`: the echo backend's real worker answers, embedded or on the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import DecodeFailed, ModelNotFound, PromptTooLong
from localllm.executors.context import Context
from localllm.executors.dispatch import dispatch, preview
from localllm.executors.events import Delta, Event, Progress, Record, Result
from localllm.executors.request import chat_request
from localllm.planner.codec import load_plan

MakeContext = Callable[..., Context]
RunPlan = Callable[..., list[Event]]
HELLO = {"role": "user", "content": "hello there world"}


def chat_plan(**more: Any) -> dict[str, Any]:
    return {"command": "chat", "messages": [HELLO], "temperature": 0, **more}


@pytest.fixture
def answer(run_plan: RunPlan, make_context: MakeContext) -> Callable[..., list[Event]]:
    """Run a chat plan on the echo backend, embedded; the events without the load's progress."""

    def run(options: dict[str, Any] | None = None, **more: Any) -> list[Event]:
        ctx = make_context(backend="echo", backend_options=options or {})
        return [event for event in run_plan(chat_plan(**more), ctx) if not isinstance(event, Progress)]

    return run


def test_an_answer_is_envelope_then_deltas_then_the_completion(answer: Callable[..., list[Event]]) -> None:
    first, *deltas, last = answer()

    assert isinstance(first, Record)
    assert isinstance(last, Result)
    assert all(isinstance(delta, Delta) for delta in deltas)
    completion = last.data
    assert {name: completion[name] for name in ("id", "created", "model", "seed")} == first.data
    assert completion["object"] == "chat.completion"
    assert completion["model"] == "echo"
    choice = completion["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "hello there world"}
    assert choice["finish_reason"] == "stop"


def test_the_deltas_are_the_completions_text(answer: Callable[..., list[Event]]) -> None:
    events = answer()
    deltas = [event for event in events if isinstance(event, Delta)]

    assert deltas[0].delta["role"] == "assistant"
    assert sum("role" in delta.delta for delta in deltas) == 1
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
    assert deltas[-1].finish_reason == "stop"
    text = "".join(delta.delta.get("content", "") for delta in deltas)
    last = events[-1]
    assert isinstance(last, Result)
    assert text == last.data["choices"][0]["message"]["content"]


def test_usage_adds_up(answer: Callable[..., list[Event]]) -> None:
    last = answer()[-1]
    assert isinstance(last, Result)

    usage = last.data["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] > 0


def test_a_token_limit_ends_it_with_length(answer: Callable[..., list[Event]]) -> None:
    last = answer(max_tokens=1)[-1]
    assert isinstance(last, Result)

    assert last.data["choices"][0]["finish_reason"] == "length"
    assert last.data["usage"]["completion_tokens"] == 1


def test_stop_text_is_not_in_the_answer(answer: Callable[..., list[Event]]) -> None:
    last = answer(stop=[" there"])[-1]
    assert isinstance(last, Result)

    assert last.data["choices"][0]["message"]["content"] == "hello"
    assert last.data["choices"][0]["finish_reason"] == "stop"


def test_each_of_several_answers_has_one_role_and_one_end(answer: Callable[..., list[Event]]) -> None:
    events = answer(n=3)
    deltas = [event for event in events if isinstance(event, Delta)]

    for index in range(3):
        own = [delta for delta in deltas if delta.index == index]
        assert sum("role" in delta.delta for delta in own) == 1
        assert sum(delta.finish_reason is not None for delta in own) == 1
    last = events[-1]
    assert isinstance(last, Result)
    assert [choice["index"] for choice in last.data["choices"]] == [0, 1, 2]


def test_each_request_has_its_own_id(answer: Callable[..., list[Event]]) -> None:
    assert answer()[0] != answer()[0]


def test_an_unknown_model_is_never_another_ones_answer(answer: Callable[..., list[Event]]) -> None:
    with pytest.raises(ModelNotFound, match="other") as caught:
        answer(model="other")

    assert caught.value.data["available"] == ["echo"]


def test_a_prompt_that_is_too_long_fails_before_the_envelope(make_context: MakeContext) -> None:
    ctx = make_context(backend="echo", on_server=True, flags={"n_ctx": 16})
    seen: list[Event] = []

    async def run() -> None:
        try:
            plan = load_plan(chat_plan(messages=[{"role": "user", "content": "word " * 200}]))
            async for event in dispatch(plan, ctx):
                if not isinstance(event, Progress):
                    seen.append(event)  # noqa: PERF401 - what came before the fault counts
        finally:
            await ctx.aclose()

    with pytest.raises(PromptTooLong):
        asyncio.run(run())

    assert seen == []


def test_a_fault_within_the_answer_is_raised_after_its_beginning(make_context: MakeContext) -> None:
    ctx = make_context(backend="echo", on_server=True, backend_options={"fail_after": 2})
    seen: list[Event] = []

    async def run() -> None:
        try:
            async for event in dispatch(load_plan(chat_plan()), ctx):
                seen.append(event)  # noqa: PERF401 - what came before the fault counts
        finally:
            await ctx.aclose()

    with pytest.raises(DecodeFailed):
        asyncio.run(run())

    assert any(isinstance(event, Record) for event in seen)
    assert not any(isinstance(event, Result) for event in seen)


def test_a_reader_who_leaves_frees_the_sequence(make_context: MakeContext) -> None:
    ctx = make_context(backend="echo", on_server=True, backend_options={"endless": True, "step_delay_s": 0.1})

    async def run() -> None:
        try:
            async with aclosing(dispatch(load_plan(chat_plan()), ctx)) as events:  # type: ignore[type-var]
                async for event in events:
                    if isinstance(event, Delta) and event.delta.get("content"):
                        break
            for _ in range(3000):
                (model,) = await ctx.runtime.status()
                if model.requests_running == 0:
                    return
                await asyncio.sleep(0.02)
            pytest.fail("the request still runs")
        finally:
            await ctx.aclose()

    asyncio.run(asyncio.wait_for(run(), 200))


def test_messages_reach_the_template_in_openais_shape() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    plan = load_plan({"command": "chat", "messages": messages})

    request = chat_request(plan)  # type: ignore[arg-type]

    assert list(request.messages) == [messages[0], {**messages[1], "content": None}, messages[2]]


def test_a_dry_run_says_what_it_cannot_know(make_context: MakeContext, tmp_path: Path) -> None:
    plan = load_plan({"command": "chat", "messages": [HELLO]})

    report = preview(plan, make_context(dry_run=True))

    assert report["where"] == "either"
    assert any("server" in item for item in report["unknown"])
    assert any("seed" in item for item in report["unknown"])
    assert any("local-model" in item for item in report["unknown"])


def test_a_greedy_dry_run_has_no_unknown_seed(make_context: MakeContext) -> None:
    report = preview(load_plan(chat_plan()), make_context(dry_run=True))

    assert not any("seed" in item for item in report["unknown"])


def test_the_seed_that_was_drawn_is_told_and_one_that_was_given_is_kept(answer: Callable[..., list[Event]]) -> None:
    seeds = [event.data["seed"] for seed in (None, None, 7) for event in answer(seed=seed) if isinstance(event, Result)]

    assert len(set(seeds)) == 3
    assert seeds[2] == 7
