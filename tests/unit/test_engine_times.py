"""What the engine says of its time, on a clock that the backend's own work moves: each number can be foretold."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define, evolve
from fixtures.asking import Asking, Told, chat
from localllm.runtime.backend import open_backend
from localllm.runtime.backend.echo import EchoBackend
from localllm.runtime.engine.engine import Engine
from localllm.runtime.types import LoadSpec, Timings

DECODE_S, SAMPLE_S, LOOK_S = 1.0, 0.01, 0.00001
WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


@define
class WorkClock:
    """Goes on with what the echo does: with each decode, with each token, and a little with each look at it."""

    backend: EchoBackend
    looks: int = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.backend.decodes * DECODE_S + self.backend.sampled * SAMPLE_S + self.looks * LOOK_S


def echo_on_a_work_clock(*, step_seconds: dict[int, float] | None = None, **options: Any) -> Asking:
    sizes = {name: options.pop(name) for name in ("n_ctx", "n_slots", "n_batch") if name in options}
    backend = open_backend(LoadSpec(model_id="echo", path="", backend="echo", options=options, **sizes))
    assert isinstance(backend, EchoBackend)
    backend.info = evolve(backend.info, step_seconds=step_seconds or {})
    return Asking(backend, Engine(backend, clock=WorkClock(backend)))


def about(seconds: float) -> Any:
    """As long as that, but for the looks at the clock."""
    return pytest.approx(seconds, abs=0.005)


def timings(told: Told) -> Timings:
    return told.done.timings


def test_a_request_tells_how_long_it_waited_and_when_its_first_token_came() -> None:
    asking = echo_on_a_work_clock(n_slots=1, n_batch=8, speculation=False, script=["a", "b", "c"])
    first, second = (asking.submit(chat("x" * 3 + " y" * 13)) for _ in range(2))
    asking.run()
    prompt = -(-first.done.usage.prompt_tokens // 8)
    alone, behind = timings(first), timings(second)

    assert prompt > 1
    assert (alone.queue_s, alone.prefill_s) == (about(0), about(prompt * DECODE_S + SAMPLE_S))
    assert alone.time_to_first_token_s == alone.queue_s + alone.prefill_s
    assert alone.decode_s == about(3 * (DECODE_S + SAMPLE_S))
    assert behind.queue_s == about(alone.prefill_s + alone.decode_s)
    assert behind.time_to_first_token_s == about(behind.queue_s + behind.prefill_s)
    assert 0 < behind.prefill_s < alone.prefill_s  # of its prompt only the end is not there


def test_the_parts_of_the_engines_time_are_what_was_done_in_them_and_add_up_to_it() -> None:
    asking = echo_on_a_work_clock(speculation=False)
    for text in (WORDS, f"other {WORDS}"):
        asking.submit(chat(text))
    began = asking.engine._clock()
    asking.run()
    elapsed, told = asking.engine._clock() - began, asking.engine.metrics()
    tokens = 17 + 18  # with the end of each

    assert told["answers_total"] == tokens
    assert told["steps_total"] == asking.backend.decodes == 18  # type: ignore[attr-defined]
    assert told["decode_s_total"] == about(18 * DECODE_S)
    assert told["sample_s_total"] == about(tokens * SAMPLE_S)
    assert 0 < told["other_s_total"] < 0.005
    assert told["decode_s_total"] + told["sample_s_total"] + told["other_s_total"] == about(elapsed)


def test_cells_count_as_idle_once_their_request_is_over() -> None:
    asking = echo_on_a_work_clock(speculation=False)
    told = asking.submit(chat(WORDS))
    for _ in range(5):
        asking.engine.step()
    running = asking.engine.metrics()
    asking.run()
    over = asking.engine.metrics()

    assert (running["running"], running["queued"], running["kv_cells_idle"]) == (1, 0, 0)
    assert running["kv_cells_used"] == told.done.usage.prompt_tokens + 4
    assert (over["running"], over["kv_cells_parked"]) == (0, 0)
    assert over["kv_cells_idle"] == over["kv_cells_used"] == told.done.usage.prompt_tokens + 16


def test_guesses_are_tried_although_rows_looked_dear_while_loading() -> None:
    asking = echo_on_a_work_clock(step_seconds={1: 1.0, 2: 20.0, 4: 40.0, 8: 80.0})
    for _ in range(3):
        assert asking.ask(chat(WORDS)).text == WORDS
    told = asking.engine.metrics()

    assert told["drafted_tokens_total"] > 0
    assert told["accepted_tokens_total"] > 20
    assert told["steps_total"] < 40
