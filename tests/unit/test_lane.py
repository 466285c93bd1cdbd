"""The strict lane on the echo backend: it takes what is strict, and a cancel finds its request there."""

from __future__ import annotations

from typing import Any

from localllm.errors import Interrupted
from localllm.runtime.backend import open_backend
from localllm.runtime.engine.engine import Engine, Work
from localllm.runtime.types import GenerateRequest, LoadSpec


def engine() -> Engine:
    return Engine(open_backend(LoadSpec(model_id="echo", path="", backend="echo", options={"endless": True})))


def submitted(engine: Engine, request_id: str, determinism: Any = "strict", max_tokens: int | None = 3) -> list[Any]:
    told: list[Any] = []
    tokens = engine.backend.tokenize("one two three")
    request = GenerateRequest(
        request_id=request_id, prompt="one two three", determinism=determinism, max_tokens=max_tokens
    )
    engine.submit(Work(request=request, prompt_tokens=tokens), told.append)
    return told


def run_out(engine: Engine, most: int = 200) -> None:
    for _ in range(most):
        if not engine.step():
            return
    raise AssertionError("the engine does not end")


def test_a_strict_request_that_is_cancelled_before_there_is_a_lane_ends() -> None:
    running = engine()
    told = submitted(running, "first", max_tokens=None)
    running.cancel("first")
    run_out(running)

    assert isinstance(told[-1], Interrupted)


def test_a_strict_request_that_is_cancelled_while_it_runs_ends() -> None:
    running = engine()
    told = submitted(running, "first", max_tokens=None)
    running.step()
    running.step()
    running.cancel("first")
    run_out(running)

    assert isinstance(told[-1], Interrupted)


def test_cancels_of_other_requests_do_not_pile_up_in_the_lane() -> None:
    running = engine()
    submitted(running, "strict")
    run_out(running)
    for number in range(10):
        submitted(running, f"usual {number}", "default", max_tokens=None)
        running.step()
        running.cancel(f"usual {number}")
        run_out(running)

    assert running._lane is not None
    assert not running._lane._cancelled


def test_what_the_lane_did_is_counted_with_the_rest() -> None:
    running = engine()
    submitted(running, "usual", "default")
    run_out(running)
    before = running.metrics()
    submitted(running, "strict")
    run_out(running)
    after = running.metrics()

    assert after["completion_tokens_total"] == 2 * before["completion_tokens_total"] > 0
    assert after["steps_total"] > before["steps_total"]
    assert after["kv_cells"] == before["kv_cells"]
