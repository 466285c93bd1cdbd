"""The pool with real worker processes on the echo backend: loads, deaths, ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest
import uvloop
from localllm.errors import (
    BadInput,
    CoolingDown,
    InternalError,
    InUse,
    LocalLLMError,
    ModelLoadFailed,
    ModelLoading,
    ModelNotFound,
    OutOfMemory,
    QueueFull,
    RuntimeFailed,
    ShuttingDown,
    TimedOut,
    TryLater,
    WorkerDied,
)
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.process import WorkerProcess
from localllm.runtime.residency import Admission, Limits
from localllm.runtime.types import (
    Constraint,
    Done,
    Finished,
    GenerateRequest,
    LoadedModel,
    LoadSpec,
    Output,
    Piece,
    Sampling,
    Started,
)

Scenario = Callable[[LocalRuntime], Awaitable[None]]
NUMBERS = count()
SLOW = {"endless": True, "step_delay_s": 0.03}
"""An answer that goes on for minutes: it ends where its context does."""
STATUS_S = 200.0
"""Longer than a scenario may take, so that every status is what the worker says now, not what it said before."""


def echo(model_id: str = "m", *, pin: bool = False, n_slots: int | None = None, **options: Any) -> LoadSpec:
    return LoadSpec(model_id=model_id, path="", backend="echo", pin=pin, n_slots=n_slots, options=options)


def ask(text: str = "hello", **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id=f"request-{next(NUMBERS)}", messages=({"role": "user", "content": text},), **fields
    )


def run(scenario: Scenario, limits: Limits | None = None, *, log: list[tuple[str, str, str]] | None = None) -> None:
    async def whole() -> None:
        runtime = LocalRuntime(
            limits or Limits(status_timeout_s=STATUS_S), on_log=None if log is None else lambda *line: log.append(line)
        )
        try:
            await asyncio.wait_for(scenario(runtime), 150)
        finally:
            await runtime.aclose()

    asyncio.run(whole())


async def text_of(stream: AsyncIterator[Output]) -> str:
    return "".join([output.text async for output in stream if isinstance(output, Piece)])


async def begun(runtime: LocalRuntime, model_id: str = "m", request: GenerateRequest | None = None) -> Any:
    """A stream that has brought its first text."""
    stream = runtime.generate(model_id, request or ask())
    async for output in stream:
        if isinstance(output, Piece):
            break
    return stream


async def errors_of(stream: AsyncIterator[Output]) -> list[LocalLLMError]:
    try:
        await text_of(stream)
    except LocalLLMError as error:
        return [error, *[late async for late in stream if isinstance(late, LocalLLMError)]]
    return []


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen in time")


def alive(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module", autouse=True)
def uvloop_has_its_pipe() -> None:
    """uvloop opens one pair of descriptors a process, at its first loop, and keeps it."""
    uvloop.run(asyncio.sleep(0))


def children() -> set[int]:
    """Processes this one started and did not reap yet, zombies too; servers of other tests' fixtures are among them."""
    with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True) as ps:
        table, _ = ps.communicate()
    rows = [tuple(map(int, line.split())) for line in table.splitlines()]
    return {pid for pid, parent in rows if parent == os.getpid() and pid != ps.pid}


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before, started = len(os.listdir("/dev/fd")), children()
    yield
    assert len(os.listdir("/dev/fd")) <= before, "a descriptor leaked"
    assert children() <= started, "a child process is left, or its zombie"


# -- loading ---------------------------------------------------------------------------------------------------------


def test_simultaneous_loads_share_one_worker_and_all_see_its_progress() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        told: list[list[float]] = [[], [], []]
        loads = [
            runtime.load(echo(load_delay_s=0.2), lambda _stage, fraction, seen=seen: seen.append(fraction))
            for seen in told
        ]
        models = await asyncio.gather(*loads)
        again = await runtime.load(echo())

        assert len({model.pid for model in [*models, again]}) == 1
        assert models[0].state == "ready"
        assert models[0].applied["n_ctx"] == 4096
        assert all(fractions[-1] == 1.0 and fractions == sorted(fractions) for fractions in told)

    run(scenario)


def test_an_answer_comes_in_order_and_ends_with_done() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo())
        outputs = [output async for output in runtime.generate("m", ask("one two three"))]

        assert isinstance(outputs[0], Started)
        assert isinstance(outputs[-2], Finished)
        assert isinstance(outputs[-1], Done)
        assert "".join(o.text for o in outputs if isinstance(o, Piece)) == "one two three"
        assert runtime.loaded()[0].requests_running == 0

    run(scenario)


def test_a_failed_load_is_one_error_and_leaves_nothing_behind() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo("good", **SLOW))
        stream = await begun(runtime, "good")
        failed = await asyncio.gather(
            *(runtime.load(echo("bad", load_delay_s=0.1, fail_load="no such tensor")) for _ in range(3)),
            return_exceptions=True,
        )

        assert [type(error) for error in failed] == [ModelLoadFailed] * 3
        assert "no such tensor" in str(failed[0])
        assert [model.model_id for model in runtime.loaded()] == ["good"]
        assert isinstance(await anext(stream), Piece)
        await stream.aclose()
        assert (await runtime.load(echo("bad"))).state == "ready"

    run(scenario)


def test_a_worker_killed_in_its_load_is_an_error_in_words() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        load = asyncio.ensure_future(runtime.load(echo(load_delay_s=600)))
        await until(lambda: any(model.pid for model in runtime.loaded()))
        os.kill(runtime.loaded()[0].pid or 0, signal.SIGKILL)

        with pytest.raises(OutOfMemory, match="killed the worker"):
            await load
        assert runtime.loaded() == []

    run(scenario)


def test_a_load_without_progress_is_given_up() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        with pytest.raises(ModelLoadFailed, match="no progress"):
            await runtime.load(echo(load_delay_s=600))
        assert runtime.loaded() == []

    run(scenario, Limits(load_stall_s=0.5))


# -- requests --------------------------------------------------------------------------------------------------------


def test_parallel_requests_each_get_their_own_answer() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(step_delay_s=0.001))
        texts = [f"marker{number} of request {number}" for number in range(8)]
        answers = await asyncio.gather(*(text_of(runtime.generate("m", ask(text))) for text in texts))

        assert answers == texts

    run(scenario)


def test_status_tells_the_requests_counts_and_the_engines_own() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo())
        await text_of(runtime.generate("m", ask("one two three")))
        stream = runtime.generate("m", ask("four"))
        await anext(stream)
        await stream.aclose()
        (model,) = await runtime.status()

        assert model.metrics["requests_total"] == 2
        assert model.metrics["requests_done_total"] == 1
        assert model.metrics["requests_failed_total"] == 1
        assert model.metrics["completion_tokens_total"] >= 3
        assert model.metrics["time_to_first_token_s"]["count"] >= 1
        assert model.metrics["engine"]["steps_total"] > 0

    run(scenario)


def test_closing_the_stream_frees_the_slot_and_the_next_request_begins_at_once() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(n_slots=1, **SLOW))
        stream = await begun(runtime)
        await stream.aclose()
        other = await begun(runtime)  # there is one slot, and the answer that had it goes on for minutes

        (model,) = await runtime.status()
        assert len(model.slots) == 1
        await other.aclose()
        (model,) = await runtime.status()
        assert model.slots == ()
        assert model.requests_running == 0

    run(scenario)


def test_a_request_cancelled_in_its_prefill_or_in_the_queue_does_not_hold_the_slot() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(n_slots=1, prefill_delay_s=600))
        tasks = [asyncio.ensure_future(text_of(runtime.generate("m", ask(word)))) for word in ("a", "b")]
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        (model,) = await runtime.status()  # which the worker gives between two steps

        assert (model.metrics["engine"]["running"], model.metrics["engine"]["queued"]) == (0, 0)
        assert model.slots == ()

    run(scenario)


def test_fifty_times_start_cancel_and_ask_again() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(n_slots=2, endless=True))
        for _ in range(50):
            stream = await begun(runtime, request=ask("x " * 50))
            await stream.aclose()
        (model,) = await runtime.status()

        assert model.slots == ()
        assert model.state == "ready"

    run(scenario)


def test_one_request_over_the_queue_limit_is_refused() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(n_slots=1, **SLOW))
        first = await begun(runtime)
        waiting = [asyncio.ensure_future(text_of(runtime.generate("m", ask()))) for _ in range(2)]
        await asyncio.sleep(0.05)

        with pytest.raises(QueueFull) as caught:
            await text_of(runtime.generate("m", ask()))
        assert caught.value.retry_after_s > 0
        assert runtime.loaded()[0].requests_queued == 2
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await first.aclose()

    run(scenario, Limits(queue_limit=2, status_timeout_s=STATUS_S))


def test_while_a_model_is_loaded_only_as_many_requests_wait_as_the_queue_holds() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        slow = echo(n_slots=1, load_delay_s=600)
        told: list[list[str]] = [[] for _ in range(20)]
        by_hand = asyncio.ensure_future(runtime.load(slow))
        waiting = [
            asyncio.ensure_future(runtime.load(slow, lambda stage, _, into=into: into.append(stage), queued=True))
            for into in told
        ]
        await until(lambda: sum(task.done() for task in waiting) == 18)
        await until(lambda: any(told))
        errors = [task.exception() for task in waiting if task.done()]

        assert [type(error) for error in errors] == [QueueFull] * 18
        assert all(isinstance(error, QueueFull) and error.retry_after_s > 0 for error in errors)
        assert sum(map(bool, told)) == 2  # who was refused was never told of a load
        assert runtime.loaded()[0].requests_queued == 2
        assert not by_hand.done()
        await runtime.unload("m", force=True)
        for task in (by_hand, *(task for task, into in zip(waiting, told, strict=True) if into)):
            with pytest.raises(TryLater, match="unloaded"):
                await task
        assert runtime.loaded() == []

    run(scenario, Limits(queue_limit=1))


def test_a_place_in_the_queue_is_free_again_when_who_waited_for_the_load_has_left() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        slow = echo(n_slots=1, load_delay_s=600)
        for _ in range(3):
            waiting = asyncio.ensure_future(runtime.load(slow, queued=True))
            await until(lambda: bool(runtime.loaded()) and runtime.loaded()[0].requests_queued == 1)
            with pytest.raises(QueueFull):
                await runtime.load(slow, queued=True)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert runtime.loaded()[0].requests_queued == 0

    run(scenario, Limits(queue_limit=0))


def test_a_request_is_taken_or_refused_while_the_engine_is_in_a_long_decode() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(n_slots=1, step_delay_s=600))
        running = runtime.generate("m", ask())
        assert isinstance(await anext(running), Started)
        decoding = asyncio.ensure_future(anext(running))
        await asyncio.sleep(0.3)
        queued = runtime.generate("m", ask("two"))
        bad = [
            ask("too long " * 5000),
            ask(sampling=Sampling(samplers=("no sampler",))),
            ask(constraint=Constraint(kind="regex", source="(")),
        ]

        assert isinstance(await anext(queued), Started)
        errors = [error for request in bad for error in await errors_of(runtime.generate("m", request))]
        assert [isinstance(error, BadInput) for error in errors] == [True] * 3
        assert not decoding.done()
        decoding.cancel()
        await asyncio.wait([decoding])
        await queued.aclose()

    run(scenario)


def test_a_bad_request_costs_only_itself() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(**SLOW))
        stream = await begun(runtime)
        nested: list[Any] = []
        for _ in range(2000):
            nested = [nested]
        bad = [
            GenerateRequest(request_id="empty", prompt=""),
            GenerateRequest(request_id="deep", prompt="x", tool_choice=nested),
            ask("too long " * 5000),
        ]
        errors = [error for request in bad for error in await errors_of(runtime.generate("m", request))]

        assert [isinstance(error, BadInput) for error in errors] == [True] * 3
        assert isinstance(await anext(stream), Piece)
        await stream.aclose()

    run(scenario)


def test_a_request_ends_when_its_own_time_is_up() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(**SLOW))

        with pytest.raises(TimedOut):
            await text_of(runtime.generate("m", ask(timeout_s=0.2)))
        assert (await runtime.status())[0].slots == ()

    run(scenario)


def test_a_failing_decode_gives_each_request_in_flight_one_error_and_the_worker_lives() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(echo(fail_after=20, **SLOW))
        errors = await asyncio.gather(*(errors_of(runtime.generate("m", ask())) for _ in range(3)))

        assert [[error.code for error in each] for each in errors] == [["decode_failed"]] * 3
        assert alive(model.pid)

    run(scenario)


def test_a_bug_costs_the_requests_in_flight_one_error_and_its_traceback_is_logged() -> None:
    log: list[tuple[str, str, str]] = []

    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(echo(**SLOW))
        no_number: Any = "seven"
        errors = await errors_of(runtime.generate("m", ask(sampling=Sampling(seed=no_number))))

        assert [type(error) for error in errors] == [InternalError]
        assert any("Traceback" in text for _model, _level, text in log)
        assert runtime.loaded()[0].pid == model.pid
        stream = await begun(runtime)
        await stream.aclose()

    run(scenario, log=log)


def test_status_does_not_wait_for_a_worker_in_a_long_step() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(endless=True, step_delay_s=600))
        stream = runtime.generate("m", ask())
        assert isinstance(await anext(stream), Started)
        task = asyncio.ensure_future(text_of(stream))
        (model,) = await runtime.status()  # the scenario's own time is far less than that of the step

        assert model.requests_running == 1
        task.cancel()
        await asyncio.wait([task])

    run(scenario, Limits(status_timeout_s=0.2))


# -- deaths ----------------------------------------------------------------------------------------------------------


def test_a_killed_worker_costs_each_request_one_error_and_nobody_else_anything() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(echo(**SLOW))
        await runtime.load(echo("other", **SLOW))
        other = await begun(runtime, "other")
        streams = [await begun(runtime) for _ in range(3)]
        os.kill(model.pid or 0, signal.SIGKILL)
        errors = await asyncio.gather(*map(errors_of, streams))

        assert [[type(error) for error in each] for each in errors] == [[WorkerDied]] * 3
        assert "SIGKILL" in errors[0][0].message
        assert isinstance(await anext(other), Piece)
        again = await begun(runtime)
        assert runtime.loaded()[0].pid not in (None, model.pid)
        assert runtime.loaded()[0].metrics["worker_deaths_total"] == 1
        await again.aclose()
        await other.aclose()

    run(scenario)


def test_a_worker_that_aborts_by_itself_is_reported_with_its_last_lines() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(exit_after=5, **SLOW))
        (error,) = await errors_of(runtime.generate("m", ask()))

        assert isinstance(error, WorkerDied)
        assert "status 134" in error.message
        assert isinstance(error.data["last_lines"], list)

    run(scenario)


def test_a_worker_that_dies_too_often_is_left_alone_for_a_while() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(exit_after=1, endless=True))
        for _ in range(2):
            (error,) = await errors_of(runtime.generate("m", ask("a b c")))
            assert isinstance(error, WorkerDied)

        with pytest.raises(CoolingDown) as caught:
            await text_of(runtime.generate("m", ask()))
        assert 300 < caught.value.retry_after_s <= 601
        assert runtime.loaded()[0].state == "cooling_down"
        with pytest.raises(CoolingDown):
            await runtime.load(echo())

    run(scenario, Limits(deaths_before_pause=2, pause_s=600, backoff_s=0.05))


def test_a_dead_worker_is_started_again_only_after_its_back_off_for_which_the_queue_waits() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(echo(n_slots=1))
        os.kill(model.pid or 0, signal.SIGKILL)
        await until(lambda: runtime.loaded()[0].state == "cooling_down")
        waiting = [asyncio.ensure_future(errors_of(runtime.generate("m", ask()))) for _ in range(20)]
        await until(lambda: sum(task.done() for task in waiting) == 18)
        await asyncio.sleep(0.5)
        (model,) = runtime.loaded()

        assert {type(error) for task in waiting if task.done() for error in task.result()} == {QueueFull}
        assert (model.state, model.pid, model.requests_queued) == ("loading", None, 2)
        await runtime.unload("m", force=True)
        assert sum(isinstance(error, TryLater) for each in await asyncio.gather(*waiting) for error in each) == 20

    run(scenario, Limits(queue_limit=1, backoff_s=600, pause_s=600))


def test_after_the_pause_it_is_started_again() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo(exit_after=1, endless=True))
        (error,) = await errors_of(runtime.generate("m", ask("a b c")))
        assert isinstance(error, WorkerDied)
        model = None
        while model is None:
            try:
                model = await runtime.load(echo())
            except CoolingDown:
                await asyncio.sleep(0.05)

        assert model.state == "ready"
        assert await text_of(runtime.generate("m", ask("well again"))) == "well again"

    run(scenario, Limits(deaths_before_pause=1, pause_s=0.7, backoff_s=0.05))


def test_nothing_waits_for_a_worker_that_is_gone_already() -> None:
    async def scenario(_runtime: LocalRuntime) -> None:
        worker = await WorkerProcess.spawn("m")
        os.kill(worker.pid, signal.SIGKILL)
        await until(lambda: worker.died)

        with pytest.raises(RuntimeFailed, match="m"):
            await worker.load(echo(), lambda _stage, _fraction: None, 100.0)
        with pytest.raises(WorkerDied):
            worker.open(ask())

    run(scenario)


def test_an_interrupt_from_the_terminal_does_not_end_a_worker() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(echo())
        assert model.pid is not None
        assert os.getsid(model.pid) == model.pid
        os.kill(model.pid, signal.SIGINT)

        assert await text_of(runtime.generate("m", ask("still here"))) == "still here"

    run(scenario)


ORPHANING = """
import asyncio, sys
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.types import GenerateRequest, LoadSpec

async def main():
    runtime = LocalRuntime()
    options = {"load_delay_s": float(sys.argv[1]), "step_delay_s": 600}
    spec = LoadSpec(model_id="m", path="", backend="echo", options=options)
    load = asyncio.ensure_future(runtime.load(spec))
    while not runtime.loaded() or not runtime.loaded()[0].pid:
        await asyncio.sleep(0.01)
    if sys.argv[1] == "0":
        await load
        asyncio.ensure_future(anext(runtime.generate("m", GenerateRequest(request_id="r", prompt="x"))))
        await asyncio.sleep(0.2)
    print(runtime.loaded()[0].pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("load_delay", ["0", "600"], ids=["in a decode", "in a load"])
def test_an_orphan_ends_at_once_when_its_parent_is_killed(load_delay: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANING, load_delay], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait(100)

    asyncio.run(until(lambda: not alive(pid)))


# -- unloading -------------------------------------------------------------------------------------------------------


def test_unload_returns_when_the_process_is_gone() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(echo())
        await runtime.unload("m")

        assert not alive(model.pid)
        assert runtime.loaded() == []
        with pytest.raises(ModelNotFound) as caught:
            await runtime.unload("m")
        assert caught.value.data["available"] == []
        with pytest.raises(ModelNotFound):
            await text_of(runtime.generate("m", ask()))

    run(scenario)


def test_unload_under_a_request_is_refused_and_with_force_the_request_ends_with_an_error() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(echo(**SLOW))
        stream = await begun(runtime)

        with pytest.raises(InUse, match="answers 1 request"):
            await runtime.unload("m")
        assert isinstance(await anext(stream), Piece)
        await runtime.unload("m", force=True)
        (error,) = await errors_of(stream)
        assert isinstance(error, TryLater)
        assert not alive(model.pid)

    run(scenario)


def test_a_load_can_be_given_up_by_force() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        load = asyncio.ensure_future(runtime.load(echo(load_delay_s=600)))
        await until(lambda: any(model.pid for model in runtime.loaded()))

        with pytest.raises(ModelLoading):
            await runtime.unload("m")
        await runtime.unload("m", force=True)
        with pytest.raises(TryLater, match="unloaded"):
            await load
        assert runtime.loaded() == []

    run(scenario)


def test_a_load_that_comes_while_the_model_is_unloaded_starts_anew() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        first = await runtime.load(echo())
        unload = asyncio.ensure_future(runtime.unload("m"))
        await asyncio.sleep(0)
        second = await runtime.load(echo())
        await unload

        assert second.state == "ready"
        assert second.pid != first.pid
        assert not alive(first.pid)

    run(scenario)


def test_an_idle_model_goes_after_its_time_and_comes_back_with_the_next_request() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo("m"))
        pinned = await runtime.load(echo("pinned", pin=True))
        await runtime.load(echo("busy", **SLOW))
        stream = await begun(runtime, "busy")
        for _ in range(3):
            await asyncio.sleep(0.15)
            assert await text_of(runtime.generate("m", ask("x"))) == "x"
        await until(lambda: [model.model_id for model in runtime.loaded()] == ["pinned", "busy"])

        assert runtime.loaded()[0].pid == pinned.pid
        assert isinstance(await anext(stream), Piece)
        await stream.aclose()
        assert await text_of(runtime.generate("m", ask("back"))) == "back"

    run(scenario, Limits(idle_ttl_s=0.4))


def test_the_least_recently_used_idle_model_makes_room() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        for name in ("a", "b"):
            await runtime.load(echo(name, memory_bytes=40))
        assert await text_of(runtime.generate("a", ask("x"))) == "x"

        assert runtime.admission(echo("c", memory_bytes=40)) == Admission(evict=("b",))
        await runtime.load(echo("c", memory_bytes=40))
        assert [model.model_id for model in runtime.loaded()] == ["a", "c"]

    run(scenario, Limits(memory_budget_bytes=100))


def test_a_busy_model_is_never_evicted_and_a_pinned_one_neither() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        await runtime.load(echo("a", **SLOW))
        stream = await begun(runtime, "a")

        with pytest.raises(InUse, match="`a` is busy"):
            await runtime.load(echo("b"))
        assert isinstance(await anext(stream), Piece)
        await stream.aclose()
        assert (await runtime.load(echo("b", pin=True))).state == "ready"
        with pytest.raises(OutOfMemory, match="`max_loaded` is 1, and as many models are pinned"):
            await runtime.load(echo("a"))
        assert [model.model_id for model in runtime.loaded()] == ["b"]

    run(scenario, Limits(max_loaded=1))


def test_of_two_models_that_are_loaded_at_once_where_one_has_room_the_second_is_refused() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        first, second = await asyncio.gather(
            runtime.load(echo("a", load_delay_s=0.5)), runtime.load(echo("b")), return_exceptions=True
        )

        assert isinstance(first, LoadedModel)
        assert isinstance(second, InUse)
        assert second.data["in_the_way"] == ["a"]
        assert [(model.model_id, model.state) for model in runtime.loaded()] == [("a", "ready")]
        assert (await runtime.load(echo("b"))).state == "ready"

    run(scenario, Limits(max_loaded=1))


def test_two_models_taking_turns_where_one_has_room_answer_every_request() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        for turn in range(3):
            for name in ("a", "b"):
                await runtime.load(echo(name))
                assert await text_of(runtime.generate(name, ask(f"{name} {turn}"))) == f"{name} {turn}"
                assert len(runtime.loaded()) == 1

    run(scenario, Limits(max_loaded=1))


# -- ending ----------------------------------------------------------------------------------------------------------


def test_closing_lets_running_requests_finish_within_the_grace_time_and_takes_no_new_ones() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(echo(step_delay_s=0.02))
        stream = await begun(runtime, request=ask("one two three four five six seven eight"))
        closing = asyncio.ensure_future(runtime.aclose(1000))
        await asyncio.sleep(0)

        for refused in (runtime.load(echo("other")), text_of(runtime.generate("m", ask()))):
            with pytest.raises(ShuttingDown):
                await refused
        assert (await text_of(stream)).endswith("eight")
        await closing  # in far less than its grace time
        assert not alive(model.pid)

    run(scenario)


def test_what_still_runs_after_the_grace_time_ends_with_one_error() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(echo(**SLOW))
        stream = await begun(runtime)
        load = asyncio.ensure_future(runtime.load(echo("other", load_delay_s=600)))
        await asyncio.sleep(0.1)
        closing = asyncio.ensure_future(runtime.aclose(0.3))

        assert [type(error) for error in await errors_of(stream)] == [ShuttingDown]
        await closing
        with pytest.raises(ShuttingDown):
            await load
        assert not alive(model.pid)
        await runtime.aclose()

    run(scenario)


def test_a_worker_that_does_not_end_by_itself_is_killed() -> None:
    async def scenario(runtime: LocalRuntime) -> None:
        model = await runtime.load(echo())
        os.kill(model.pid or 0, signal.SIGSTOP)
        await runtime.aclose()

        assert not alive(model.pid)

    run(scenario, Limits(stop_grace_s=0.3))


def test_it_works_on_uvloop_too() -> None:
    async def whole() -> None:
        runtime = LocalRuntime()
        model: LoadedModel = await runtime.load(echo(**SLOW))
        stream = await begun(runtime)
        os.kill(model.pid or 0, signal.SIGKILL)
        (error,) = await errors_of(stream)
        assert isinstance(error, WorkerDied)
        again = await begun(runtime)
        await again.aclose()
        await runtime.aclose()
        assert not alive(model.pid)

    uvloop.run(whole())
