"""The pool with llama.cpp and the real model: failures of a load, memory, swaps."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import ModelLoadFailed, OutOfMemory, RuntimeFailed, WorkerDied
from localllm.runtime.backend import open_backend
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.residency import Limits
from localllm.runtime.types import Done, GenerateRequest, LoadSpec, Output, Piece, Sampling

pytestmark = pytest.mark.model
NUMBERS = count()
LARGE = 2**31 - 1
MIB = 1 << 20


def spec(path: Path, model_id: str = "m", **fields: Any) -> LoadSpec:
    return LoadSpec(model_id=model_id, path=str(path), **{"n_ctx": 1024, "n_slots": 2, "n_threads": 1, **fields})


def ask(text: str, max_tokens: int = 8, **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        **fields,
        request_id=f"request-{next(NUMBERS)}",
        messages=({"role": "user", "content": text},),
        sampling=Sampling(temperature=0),
        max_tokens=max_tokens,
    )


def run(scenario: Callable[[LocalRuntime], Awaitable[None]], limits: Limits | None = None) -> None:
    async def whole() -> None:
        runtime = LocalRuntime(limits)
        try:
            await asyncio.wait_for(scenario(runtime), 250)
        finally:
            await runtime.aclose()

    asyncio.run(whole())


async def text_of(stream: AsyncIterator[Output]) -> str:
    return "".join([output.text async for output in stream if isinstance(output, Piece)])


async def begun(runtime: LocalRuntime, model_id: str = "m") -> Any:
    stream = runtime.generate(model_id, ask("Write a very long story.", 900))
    async for output in stream:
        if isinstance(output, Piece):
            break
    return stream


def test_failed_loads_leave_the_running_stream_and_the_next_load_alone(model_path: Path, tmp_path: Path) -> None:
    noise = tmp_path / "noise.gguf"
    noise.write_bytes(b"GGUF" + os.urandom(4096))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model_path.read_bytes()[:2_000_000])

    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(spec(model_path))
        stream = await begun(runtime)
        for bad in (noise, cut, tmp_path / "absent.gguf"):
            with pytest.raises(ModelLoadFailed) as caught:
                await runtime.load(spec(bad, "bad"))
            assert caught.value.message.strip()
        with pytest.raises((OutOfMemory, ModelLoadFailed)) as too_large:
            await runtime.load(spec(model_path, "large", n_ctx=LARGE))

        assert "token" in too_large.value.message or "memory" in too_large.value.message
        assert [model.model_id for model in runtime.loaded()] == ["m"]
        assert isinstance(await anext(stream), Piece)
        await stream.aclose()
        assert (await runtime.load(spec(model_path, "good"))).state == "ready"

    run(scenario)


def test_llama_cpp_tells_how_far_a_load_is(model_path: Path) -> None:
    told: list[tuple[str, float]] = []
    open_backend(spec(model_path), lambda stage, fraction: told.append((stage, fraction))).close()

    weights = [fraction for stage, fraction in told if stage == "weights"]
    assert len(set(weights)) > 5
    assert weights == sorted(weights)
    assert weights[-1] == 1.0
    assert 0.0 <= weights[0] < 0.5


def test_a_gpu_that_is_not_there_is_said_in_the_warnings(model_path: Path) -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(spec(model_path, gpu_layers=999))

        if model.applied["gpu_layers"] == 0:
            assert any("CPU" in warning for warning in model.warnings)
        else:
            assert not any("CPU" in warning for warning in model.warnings)

    run(scenario)


def test_a_killed_worker_is_replaced_and_answers_as_before(model_path: Path) -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(spec(model_path))
        before = await text_of(runtime.generate("m", ask("The capital of France is?")))
        stream = await begun(runtime)
        os.kill(model.pid or 0, signal.SIGKILL)
        with pytest.raises(WorkerDied):
            await text_of(stream)

        assert await text_of(runtime.generate("m", ask("The capital of France is?"))) == before

    run(scenario)


def test_swapping_two_models_where_one_has_room_ends_each_worker(model_path: Path) -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        pids = []
        for name in ("a", "b", "a"):
            model = await runtime.load(spec(model_path, name))
            pids.append(model.pid)
            outputs = [output async for output in runtime.generate(name, ask("Hi", 2))]
            assert isinstance(outputs[-1], Done)
            assert [one.model_id for one in runtime.loaded()] == [name]

        assert len(set(pids)) == 3
        for pid in pids[:-1]:
            with pytest.raises(ProcessLookupError):
                os.kill(pid or 0, 0)

    run(scenario, Limits(max_loaded=1))


def test_a_force_unload_in_a_long_prefill_takes_no_time(model_path: Path) -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(spec(model_path, n_ctx=8192))
        prefill = asyncio.ensure_future(text_of(runtime.generate("m", ask("word " * 4000, 3000))))
        await asyncio.sleep(0.5)
        assert not prefill.done()
        await runtime.unload("m", force=True)  # the scenario's own time is less than the grace of a worker's end

        with pytest.raises(Exception, match="unloaded"):
            await prefill

    run(scenario, Limits(stop_grace_s=1000))


def test_a_native_abort_costs_one_error_and_names_the_signal(model_path: Path) -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(spec(model_path))
        stream = await begun(runtime)
        os.kill(model.pid or 0, signal.SIGABRT)

        with pytest.raises(RuntimeFailed, match="SIGABRT"):
            await text_of(stream)

    run(scenario)


def test_the_estimate_decides_who_must_go_and_the_measured_size_counts_afterwards(model_path: Path) -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        first = await runtime.load(spec(model_path, "a"))
        assert 100 * MIB < first.memory["total_bytes"] < 200 * MIB

        assert runtime.admission(spec(model_path, "b")).evict == ("a",)
        await runtime.load(spec(model_path, "b"))
        assert [model.model_id for model in runtime.loaded()] == ["b"]
        large = spec(model_path, "large", n_ctx=8192, n_slots=8)
        foreseen = runtime.admission(large)
        with pytest.raises(OutOfMemory, match="budget") as caught:
            await runtime.load(large)
        assert foreseen.evict == ()
        assert foreseen.refusal is not None
        assert foreseen.refusal.as_dict() == caught.value.as_dict()
        assert [model.model_id for model in runtime.loaded()] == ["b"]

    run(scenario, Limits(memory_budget_bytes=250 * MIB))


def test_the_strict_lane_counts_towards_the_budget_before_it_is_made(model_path: Path) -> None:
    sizes: dict[str, int] = {}

    async def measure(runtime: LocalRuntime) -> None:
        memory = (await runtime.load(spec(model_path))).memory
        sizes.update(model=memory["total_bytes"], lane=memory["estimate"]["strict_lane_bytes"])

    async def others_make_room(runtime: LocalRuntime) -> None:
        for name in ("a", "b"):
            await runtime.load(spec(model_path, name))
        assert await text_of(runtime.generate("b", ask("Hello"))) != ""
        assert [model.model_id for model in runtime.loaded()] == ["a", "b"]

        assert await text_of(runtime.generate("b", ask("Hello", determinism="strict"))) != ""
        assert [model.model_id for model in runtime.loaded()] == ["b"]
        assert runtime.loaded()[0].memory["strict_lane_bytes"] == sizes["lane"]

    async def nothing_could_make_room(runtime: LocalRuntime) -> None:
        await runtime.load(spec(model_path))
        with pytest.raises(OutOfMemory, match="the strict lane of model `m`") as caught:
            await text_of(runtime.generate("m", ask("Hello", determinism="strict")))
        assert caught.value.data["needed_bytes"] == sizes["model"] + sizes["lane"]
        assert "memory_budget_bytes" in str(caught.value.hint)
        assert "strict_lane_bytes" not in runtime.loaded()[0].memory
        assert await text_of(runtime.generate("m", ask("Hello"))) != ""

    run(measure)
    run(others_make_room, Limits(memory_budget_bytes=2 * sizes["model"] + sizes["lane"] // 2))
    run(nothing_could_make_room, Limits(memory_budget_bytes=sizes["model"] + sizes["lane"] // 2))
