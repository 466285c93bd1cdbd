"""How many models stay loaded is a setting, shown by `status` and by the dry run of a load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from localllm.api.host import own_settings
from localllm.executors.context import Context
from localllm.executors.dispatch import dispatch, preview
from localllm.executors.events import Result
from localllm.planner.codec import load_plan
from localllm.planner.plans.serve import Serve
from localllm.runtime.types import LoadSpec

MakeContext = Callable[..., Context]


async def run(raw: dict[str, Any], ctx: Context) -> dict[str, Any]:
    return [event async for event in dispatch(load_plan(raw), ctx) if isinstance(event, Result)][-1].data


def test_the_dry_run_of_a_load_on_a_server_says_what_would_make_room(make_context: MakeContext) -> None:
    ctx = make_context(backend="echo", on_server=True, env={"LOCALLLM_MAX_LOADED": "1"})
    load = load_plan({"command": "models.load", "model": "echo"})

    async def told() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        await ctx.runtime.load(LoadSpec(model_id="older", path="", backend="echo"))
        report = preview(load, ctx)
        try:
            await run({"command": "models.load", "model": "echo"}, ctx)
            return report, preview(load, ctx), await run({"command": "status"}, ctx)
        finally:
            await ctx.aclose()

    before, after, status = asyncio.run(told())
    assert before["resolved"]["would_evict"] == ["older"]
    assert before["diff"] == {"before": {"loaded": ["older"]}, "after": {"loaded": ["echo"]}}
    assert after["resolved"]["would_evict"] == []
    assert [model["model_id"] for model in status["models"]] == ["echo"]
    assert status["limits"]["max_loaded"] == 1


def test_an_unused_model_goes_after_the_time_that_is_set(make_context: MakeContext) -> None:
    ctx = make_context(backend="echo", on_server=True, env={"LOCALLLM_IDLE_TTL_S": "1"})

    async def left() -> list[str]:
        await run({"command": "models.load", "model": "echo"}, ctx)
        for _ in range(100):
            if not ctx.runtime.loaded():
                break
            await asyncio.sleep(0.1)
        names = [model.model_id for model in ctx.runtime.loaded()]
        await ctx.aclose()
        return names

    assert asyncio.run(left()) == []


def test_a_flag_of_serve_wins_over_the_setting(make_context: MakeContext) -> None:
    settings = make_context(env={"LOCALLLM_MAX_LOADED": "3", "LOCALLLM_IDLE_TTL_S": "60"}).settings
    own = own_settings(Serve(max_loaded=2, memory_budget_bytes=10**9), settings, "http://127.0.0.1:1")

    assert (own.max_loaded, own.memory_budget_bytes, own.idle_ttl_s) == (2, 10**9, 60)
    assert own.origins["max_loaded"] == "flag"
    assert own.origins["idle_ttl_s"] == "env LOCALLLM_IDLE_TTL_S"


def test_what_the_strict_lane_takes_counts_once_it_is_asked_for() -> None:
    from localllm.runtime.entry import Entry
    from localllm.runtime.messages import Loaded

    entry = Entry(spec=LoadSpec(model_id="m", path=""))
    entry.report = Loaded({}, {}, (), {"total_bytes": 100, "estimate": {"strict_lane_bytes": 40}})
    entry.memory_bytes = 100
    before = entry.snapshot().memory
    entry.count_lane()
    entry.count_lane()

    assert "strict_lane_bytes" not in before
    assert entry.snapshot().memory["strict_lane_bytes"] == 40
    assert entry.snapshot().memory["total_bytes"] == 140
    assert entry.resident().memory_bytes == 140
