"""`models scan|list|show|load|unload` and `status`, with real files and the echo backend's real worker."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import BadInput, LocalLLMError, ModelLoadFailed, ModelNotFound
from localllm.executors.context import Context
from localllm.executors.dispatch import dispatch, preview
from localllm.executors.events import Event, Progress, Result
from localllm.executors.loading import default_name, ensure_loaded
from localllm.planner.codec import load_plan

MakeContext = Callable[..., Context]
MODEL_ID = "SmolLM2-135M-Instruct.Q4_1"


@pytest.fixture
def folder(tmp_path: Path, model_path: Path) -> Path:
    """A models folder with the real model, a broken file and a stray one."""
    models = tmp_path / "models"
    models.mkdir()
    os.symlink(model_path, models / model_path.name)
    (models / "broken.gguf").write_bytes(b"<!doctype html>")
    (models / "note.txt").write_text("hello")
    return models


async def events_of(raw: dict[str, Any], ctx: Context) -> list[Event]:
    return [event async for event in dispatch(load_plan(raw), ctx)]


async def data_of(raw: dict[str, Any], ctx: Context) -> dict[str, Any]:
    last = (await events_of(raw, ctx))[-1]
    assert isinstance(last, Result)
    return last.data


def on_server(make_context: MakeContext, **more: Any) -> Context:
    return make_context(on_server=True, backend="echo", instance="i", **more)


def run(ctx: Context, work: Callable[[Context], Any]) -> Any:
    """Run the work on a loop and end what it started."""

    async def whole() -> Any:
        try:
            return await work(ctx)
        finally:
            await ctx.aclose()

    return asyncio.run(asyncio.wait_for(whole(), 200))


def test_a_scan_shows_every_file_with_its_fault(run_result: Callable[..., Result], folder: Path) -> None:
    data = run_result({"command": "models.scan"}).data

    rows = {row["id"]: row for row in data["files"]}
    assert rows[MODEL_ID]["valid"]
    assert rows[MODEL_ID]["path"] == f"{MODEL_ID}.gguf"
    assert not rows["broken"]["valid"]
    assert rows["broken"]["reason"]
    assert (data["total"], data["invalid"]) == (2, 1)


def test_a_list_shows_what_can_be_loaded(run_result: Callable[..., Result], folder: Path) -> None:
    rows = run_result({"command": "models.list"}).data["models"]

    assert [row["id"] for row in rows] == [MODEL_ID]
    assert run_result({"command": "models.list", "kind": "projector"}).data["models"] == []


def test_a_missing_folder_is_an_empty_list(run_result: Callable[..., Result]) -> None:
    data = run_result({"command": "models.list"}).data

    assert data["models"] == []
    assert data["warnings"]


@pytest.mark.parametrize("name", ["smollm2-135m", MODEL_ID])
def test_show_tells_the_header(run_result: Callable[..., Result], folder: Path, name: str) -> None:
    data = run_result({"command": "models.show", "model": name}).data

    assert data["id"] == MODEL_ID
    assert data["header"]["metadata"]["general.architecture"] == "llama"
    assert data["header"]["metadata"]["tokenizer.ggml.tokens"] == {"array_of": 49152}
    json.dumps(data, allow_nan=False)


def test_an_unknown_name_lists_what_exists(run_result: Callable[..., Result], folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="nope") as caught:
        run_result({"command": "models.show", "model": "nope"})

    assert caught.value.data["available"] == [MODEL_ID]


def test_a_dry_run_of_a_load_resolves_the_file(make_context: MakeContext, folder: Path) -> None:
    report = preview(load_plan({"command": "models.load", "model": "smollm2-135m"}), make_context())

    assert report["resolved"]["model_id"] == MODEL_ID
    assert report["resolved"]["header_hash"].startswith("sha256:")
    assert report["provenance"]["n_ctx"] == {"value": 8192, "origin": "default", "fate": "applied"}
    assert report["preconditions"][0]["size_bytes"] == (folder / f"{MODEL_ID}.gguf").stat().st_size
    assert str(folder) not in json.dumps(report["resolved"])


def test_a_dry_run_tells_where_a_parameter_comes_from(make_context: MakeContext, folder: Path) -> None:
    ctx = make_context(env={"LOCALLLM_N_CTX": "512"})

    settled = preview(load_plan({"command": "models.load", "model": "smollm2-135m"}), ctx)
    given = preview(load_plan({"command": "models.load", "model": "smollm2-135m", "n_ctx": 256}), ctx)

    assert settled["provenance"]["n_ctx"] == {"value": 512, "origin": "env LOCALLLM_N_CTX", "fate": "applied"}
    assert given["provenance"]["n_ctx"] == {"value": 256, "origin": "plan", "fate": "applied"}


def test_a_dry_run_of_a_load_says_whether_it_fits_and_what_would(make_context: MakeContext, folder: Path) -> None:
    def memory(**asked: Any) -> dict[str, Any]:
        report = preview(load_plan({"command": "models.load", "model": "smollm2-135m", **asked}), make_context())
        found: dict[str, Any] = report["resolved"]["memory"]
        return found

    small, huge = memory(n_ctx=256, n_slots=1), memory(n_ctx=2**31 - 1)

    assert (small["fits"], small["alternatives"]) == (True, [])
    assert not huge["fits"]
    assert huge["alternatives"][0]["changes"]["n_ctx"] < 2**31 - 1


@pytest.mark.parametrize("name", ["nope", "broken"])
def test_a_dry_run_of_a_load_that_would_fail_warns(make_context: MakeContext, folder: Path, name: str) -> None:
    report = preview(load_plan({"command": "models.load", "model": name}), make_context())

    assert any(name in warning for warning in report["warnings"])
    assert report["preconditions"] == [{"kind": "applied", "last": None}]


def test_load_status_unload(make_context: MakeContext) -> None:
    async def work(ctx: Context) -> None:
        events = await events_of({"command": "models.load", "model": "echo", "make_default": True}, ctx)
        assert any(isinstance(event, Progress) for event in events)
        last = events[-1]
        assert isinstance(last, Result)
        assert last.data["changed"] is True
        assert last.data["state"] == "ready"

        status = await data_of({"command": "status"}, ctx)
        assert status["running"] is True
        assert status["default_model"] == "echo"
        assert [model["model_id"] for model in status["models"]] == ["echo"]
        json.dumps(status)

        assert (await data_of({"command": "models.load", "model": "echo"}, ctx))["changed"] is False
        gone = await data_of({"command": "models.unload", "model": "echo"}, ctx)
        assert gone == {"unloaded": ["echo"], "loaded": [], "changed": True}
        assert (await data_of({"command": "status"}, ctx))["models"] == []

    run(on_server(make_context), work)


def test_a_load_of_what_is_loaded_otherwise_says_so(make_context: MakeContext) -> None:
    async def work(ctx: Context) -> dict[str, Any]:
        await data_of({"command": "models.load", "model": "echo", "n_ctx": 64}, ctx)
        return await data_of({"command": "models.load", "model": "echo", "n_ctx": 128}, ctx)

    data = run(on_server(make_context), work)

    assert any("n_ctx" in warning for warning in data["warnings"])


@pytest.mark.parametrize("asked", [{"flash_attention": "auto"}, {"gpu_layers": "auto"}])
def test_a_load_that_leaves_a_choice_to_the_machine_agrees_with_every_choice(
    make_context: MakeContext, asked: dict[str, Any]
) -> None:
    raw = {"command": "models.load", "model": "echo"}

    async def work(ctx: Context) -> tuple[dict[str, Any], dict[str, Any]]:
        await data_of({**raw, "n_ctx": 64}, ctx)
        return await data_of({**raw, **asked}, ctx), preview(load_plan({**raw, **asked}), ctx)

    data, report = run(on_server(make_context), work)

    assert (data["changed"], data["warnings"]) == (False, [])
    assert report["warnings"] == []


def test_unload_all_of_nothing_is_no_fault(make_context: MakeContext) -> None:
    data = run(on_server(make_context), lambda ctx: data_of({"command": "models.unload", "all": True}, ctx))

    assert data["changed"] is False


def test_unload_of_what_is_not_loaded_lists_what_is(make_context: MakeContext) -> None:
    async def work(ctx: Context) -> None:
        await ensure_loaded(ctx, "echo")
        await data_of({"command": "models.unload", "model": "other"}, ctx)

    with pytest.raises(ModelNotFound, match="not loaded") as caught:
        run(on_server(make_context), work)

    assert caught.value.data["available"] == ["echo"]


@pytest.mark.parametrize("raw", [{}, {"model": "a", "all": True}])
def test_unload_wants_one_name_or_all(make_context: MakeContext, raw: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="name one model, or say `--all`"):
        run(on_server(make_context), lambda ctx: data_of({"command": "models.unload", **raw}, ctx))


def test_callers_at_once_share_one_load(make_context: MakeContext) -> None:
    async def work(ctx: Context) -> None:
        models = await asyncio.gather(*(ensure_loaded(ctx, "echo") for _ in range(8)))
        assert len({model.pid for model in models}) == 1
        assert len(ctx.runtime.loaded()) == 1

    run(on_server(make_context, backend_options={"load_delay_s": 0.2}), work)


def test_a_caller_that_leaves_does_not_end_the_load_for_the_others(make_context: MakeContext) -> None:
    async def work(ctx: Context) -> None:
        leaving = asyncio.ensure_future(ensure_loaded(ctx, "echo"))
        await asyncio.sleep(0.05)
        staying = asyncio.ensure_future(ensure_loaded(ctx, "echo"))
        await asyncio.sleep(0.05)
        leaving.cancel()
        assert (await staying).state == "ready"

    run(on_server(make_context, backend_options={"load_delay_s": 0.5}), work)


def test_a_failed_load_leaves_nothing_and_the_next_works(make_context: MakeContext) -> None:
    async def work(ctx: Context) -> None:
        ctx.backend_options = {"fail_load": "out of luck"}
        with pytest.raises(ModelLoadFailed, match="out of luck"):
            await ensure_loaded(ctx, "echo")
        assert ctx.runtime.loaded() == []
        ctx.backend_options = {}
        assert (await ensure_loaded(ctx, "echo")).state == "ready"

    run(on_server(make_context), work)


def test_the_default_is_the_loaded_one_then_the_configured_one(make_context: MakeContext) -> None:
    async def work(ctx: Context) -> None:
        ctx.default_model_id = "chosen"
        assert default_name(ctx) == "chosen"
        ctx.default_model_id = None
        await ensure_loaded(ctx, "echo")
        assert default_name(ctx) == "echo"

    run(on_server(make_context, flags={"default_model": "other"}), work)
    assert default_name(make_context(flags={"default_model": "other"})) == "other"
    with pytest.raises(LocalLLMError, match="no default model"):
        default_name(make_context())


def test_a_dry_run_on_the_server_shows_what_is_loaded(make_context: MakeContext) -> None:
    async def work(ctx: Context) -> dict[str, Any]:
        await ensure_loaded(ctx, "echo")
        return preview(load_plan({"command": "models.unload", "model": "echo"}), ctx)

    report = run(on_server(make_context), work)

    assert report["diff"] == {"before": {"loaded": ["echo"]}, "after": {"loaded": []}}
