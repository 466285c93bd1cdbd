"""`bench`: the figures, measured on the echo backend's real worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from localllm.errors import ModelNotFound
from localllm.executors.bench import percentile
from localllm.executors.context import Context
from localllm.executors.events import Result

MakeContext = Callable[..., Context]
RunResult = Callable[..., Result]


def test_latency_has_the_founding_figures(run_result: RunResult, make_context: MakeContext) -> None:
    ctx = make_context(backend="echo", backend_options={"step_delay_s": 0.001})

    done = run_result({"command": "bench.latency", "requests": 5, "warmup": 1, "max_tokens": 8}, ctx)

    data = done.data
    assert done.ok
    assert data["success_count"] == 5
    assert data["failed_count"] == 0
    assert len(data["raw"]) == 5
    assert data["min_ms"] <= data["p50_ms"] <= data["p95_ms"] <= data["max_ms"]
    assert data["min_ms"] <= data["mean_ms"] <= data["max_ms"]
    assert all(sample["completion_tokens"] == 8 for sample in data["raw"])
    rates = [sample["completion_tokens"] / sample["latency_ms"] * 1000 for sample in data["raw"]]
    assert data["completion_tps_mean"] == pytest.approx(sum(rates) / 5, rel=1e-3)
    assert data["where"] == "embedded"


def test_throughput_counts_every_client(run_result: RunResult, make_context: MakeContext) -> None:
    plan = {"command": "bench.throughput", "clients": 3, "requests": 2, "max_tokens": 4}

    data = run_result(plan, make_context(backend="echo")).data

    assert data["success_count"] == 6
    # seconds are told in whole milliseconds, of which echo takes but a few
    assert 24 / (data["wall_s"] + 0.0006) <= data["completion_tps"] <= 24 / max(data["wall_s"] - 0.0006, 1e-9)


def test_requests_that_fail_are_counted_and_the_answer_is_no(run_result: RunResult, make_context: MakeContext) -> None:
    ctx = make_context(backend="echo", backend_options={"fail_after": 1})

    done = run_result({"command": "bench.latency", "requests": 2, "warmup": 0, "max_tokens": 8}, ctx)

    assert done.ok is False
    assert done.data["failed_count"] == 2
    assert done.data["p95_ms"] is None
    assert done.data["raw"][0]["error"]


def test_a_model_that_does_not_exist_ends_it_at_once(run_result: RunResult, make_context: MakeContext) -> None:
    with pytest.raises(ModelNotFound):
        run_result({"command": "bench.latency", "model": "nope"}, make_context(backend="echo"))


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([7.0], 0.95, 7.0), ([1.0, 2.0], 0.5, 1.5), ([float(n) for n in range(1, 101)], 0.95, 95.05)],
)
def test_a_percentile_lies_between_its_neighbours(values: list[float], share: float, expected: Any) -> None:
    assert percentile(values, share) == expected
