"""How many models stay loaded is a setting, shown by `status` and by the dry run of a load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from localllm.api.host import own_settings
from localllm.executors.context import Context
from localllm.executors.dispatch import dispatch, preview
from localllm.executors.events import Result
from localllm.executors.wording import report_text
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
    assert before["resolved"]["limits"] == {"max_loaded": 1, "memory_budget_bytes": None, "idle_ttl_s": None}
    assert before["diff"] == {"before": {"loaded": ["older"]}, "after": {"loaded": ["echo"]}}
    assert after["resolved"]["would_evict"] == []
    assert [model["model_id"] for model in status["models"]] == ["echo"]
    assert status["limits"]["max_loaded"] == 1


def test_the_dry_run_of_a_load_that_would_find_no_room_says_so_and_what_would_make_some(
    make_context: MakeContext,
) -> None:
    ctx = make_context(backend="echo", on_server=True, dry_run=True, env={"LOCALLLM_MAX_LOADED": "1"})

    async def told() -> Result:
        await ctx.runtime.load(LoadSpec(model_id="kept", path="", backend="echo", pin=True))
        try:
            [event] = [each async for each in dispatch(load_plan({"command": "models.load", "model": "echo"}), ctx)]
            assert isinstance(event, Result)
            return event
        finally:
            await ctx.aclose()

    result = asyncio.run(told())
    resolved, text = result.data["resolved"], report_text(result.data)
    assert not result.ok
    assert resolved["would_evict"] == []
    assert (resolved["no_room"]["code"], resolved["no_room"]["data"]["pinned"]) == ("out_of_memory", ["kept"])
    assert result.data["diff"]["after"] == {"loaded": ["kept"]}
    assert "evicts: no model, for that would not be enough: no room for model `echo`: `max_loaded` is 1" in text
    assert "to make room: unload a pinned model, or raise `max_loaded`\n" in text
    assert "evicts: no other model" not in text


def test_the_dry_run_of_a_load_that_is_loaded_changes_nothing_and_names_what_stays(make_context: MakeContext) -> None:
    ctx = make_context(backend="echo", on_server=True)

    async def told() -> tuple[dict[str, Any], ...]:
        try:
            await run({"command": "models.load", "model": "echo"}, ctx)
            asked: tuple[dict[str, Any], ...] = ({}, {"make_default": True}, {"n_slots": 7})
            return tuple(preview(load_plan({"command": "models.load", "model": "echo", **more}), ctx) for more in asked)
        finally:
            await ctx.aclose()

    plain, default, other = asyncio.run(told())
    assert plain["effects"] == ["read"]
    assert plain["diff"] == {"before": {"loaded": ["echo"]}, "after": {"loaded": ["echo"]}}
    assert default["effects"] == ["read", "update"]
    assert default["diff"]["before"] == {"loaded": ["echo"], "default_model": None}
    assert default["diff"]["after"] == {"loaded": ["echo"], "default_model": "echo"}
    assert "loaded already, with another n_slots: unload it first" in other["warnings"]


def test_the_dry_run_of_an_unload_tells_that_the_default_goes_with_it(make_context: MakeContext) -> None:
    ctx = make_context(backend="echo", on_server=True)

    async def told() -> dict[str, Any]:
        try:
            await run({"command": "models.load", "model": "echo", "make_default": True}, ctx)
            return preview(load_plan({"command": "models.unload", "model": "echo"}), ctx)
        finally:
            await ctx.aclose()

    report = asyncio.run(told())
    assert report["diff"]["before"] == {"loaded": ["echo"], "default_model": "echo"}
    assert report["diff"]["after"] == {"loaded": [], "default_model": None}


@pytest.mark.parametrize(
    "raw", [{"command": "models.load", "model": "echo"}, {"command": "models.unload", "model": "echo"}]
)
def test_offline_what_the_server_has_is_unknown_and_the_report_says_how_to_know(
    make_context: MakeContext, raw: dict[str, Any]
) -> None:
    report = preview(load_plan(raw), make_context(backend="echo"))
    (loaded,) = [each for each in report["unknown"] if each.startswith("which models the server has loaded")]

    assert loaded.endswith("`--ask-server` tells")
    assert "diff" not in report


def test_an_unused_model_goes_after_the_time_that_is_set(make_context: MakeContext) -> None:
    ctx = make_context(backend="echo", on_server=True, env={"LOCALLLM_IDLE_TTL_S": "1"})

    async def left() -> list[str]:
        await run({"command": "models.load", "model": "echo"}, ctx)
        for _ in range(600):
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


def test_the_text_of_a_load_s_dry_run_names_what_would_go_and_the_limits_that_hold() -> None:
    limits = {"max_loaded": 1, "memory_budget_bytes": 4_000_000_000, "idle_ttl_s": 600}
    bounded = report_text({"resolved": {"model_id": "new", "would_evict": ["older", "old\x1b"], "limits": limits}})
    free = report_text({"resolved": {"model_id": "new", "would_evict": [], "limits": dict.fromkeys(limits)}})

    assert "evicts: `older`, `old\\x1b`, to make room\n" in bounded
    assert (
        "limits: 1 loaded model at most (`max_loaded`); 4.0 GB for all models together (`memory_budget_bytes`); "
        "models unused for 600 s go (`idle_ttl_s`)\n"
    ) in bounded
    assert "evicts: no other model\nlimits: any number of loaded models; no memory budget; unused models stay" in free
    assert "evicts" not in report_text({"resolved": {"model_id": "new"}})
