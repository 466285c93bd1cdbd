"""What `GET /metrics` says of the loaded models, and what `status` tells people of it."""

from __future__ import annotations

import re
from typing import Any

from attrs import fields
from localllm.api.metrics import COUNTERS, ENGINE_COUNTERS, ENGINE_GAUGES, HISTOGRAMS, prometheus_text
from localllm.executors.traffic import traffic_text
from localllm.runtime.backend import open_backend
from localllm.runtime.engine.engine import Engine
from localllm.runtime.metrics import RequestMetrics
from localllm.runtime.types import Done, LoadedModel, LoadSpec, Piece, Timings, Usage

LINE = re.compile(r'[a-z_]+(\{[a-z]+="([^"\\\n]|\\.)*"(,[a-z]+="([^"\\\n]|\\.)*")*\})? [0-9.e+-]+')


def engine_metrics() -> dict[str, Any]:
    backend = open_backend(LoadSpec(model_id="m", path="", backend="echo"))
    return Engine(backend).metrics()


def counted() -> dict[str, Any]:
    """Two requests, one of them answered with three pieces."""
    metrics = RequestMetrics()
    failed, done = metrics.begin(0.0), metrics.begin(1.0)
    failed.end()
    for number in range(3):
        done.saw(Piece(index=0, text="a"), 1.5 + number / 100)
    timings = Timings(queue_s=0.2, time_to_first_token_s=0.5)
    usage = Usage(prompt_tokens=40, completion_tokens=3, cached_tokens=10)
    done.saw(Done(usage=usage, timings=timings), 2.0)
    done.end()
    return metrics.as_dict()


def loaded(**changes: Any) -> LoadedModel:
    known: dict[str, Any] = {
        "model_id": "m",
        "state": "ready",
        "backend": "echo",
        "spec": LoadSpec(model_id="m", path=""),
        "memory": {"total_bytes": 12345},
        "metrics": {**counted(), "engine": engine_metrics()},
    }
    return LoadedModel(**(known | changes))


def values(text: str) -> dict[str, float]:
    """Every sample by its name and labels."""
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    return {row.rpartition(" ")[0]: float(row.rpartition(" ")[2]) for row in rows}


def test_every_counter_of_pool_and_engine_is_published() -> None:
    told_once = {"prompt_tokens_total", "completion_tokens_total", "cached_tokens_total"}
    known = set(engine_metrics())

    assert {field.name for field in fields(RequestMetrics)} == COUNTERS.keys() | HISTOGRAMS.keys()
    assert ENGINE_COUNTERS.keys() | ENGINE_GAUGES.keys() <= known
    assert {name for name in known if name.endswith("_total")} <= ENGINE_COUNTERS.keys() | told_once
    assert {name for name in known if not name.endswith("_total")} >= ENGINE_GAUGES.keys()


def test_each_line_is_one_that_prometheus_reads() -> None:
    text = prometheus_text([loaded(), loaded(model_id='odd "name"\\with\nbreaks')], "1.2.3")
    samples = [line for line in text.splitlines() if not line.startswith("#")]

    assert [line for line in samples if LINE.fullmatch(line) is None] == []
    assert text.endswith("\n")
    assert 'model="odd \\"name\\"\\\\with\\nbreaks"' in text
    names = re.findall(r"# TYPE (\S+) (?:counter|gauge|histogram)\n", text)
    assert len(names) == len(set(names)) == len(re.findall("# HELP ", text))
    assert all(name.endswith("_total") for name in re.findall(r"# TYPE (\S+) counter", text))


def test_the_help_of_the_gaps_says_that_whole_answers_have_none() -> None:
    helped = re.findall(r"# HELP (\S+) (.*)", prometheus_text([loaded()], "1.2.3"))

    assert "an answer that is not streamed" in dict(helped)["localllm_inter_token_seconds"]


def test_counters_and_histograms_hold_what_was_counted() -> None:
    found = values(prometheus_text([loaded(requests_running=2)], "1.2.3"))

    assert found['localllm_build_info{version="1.2.3"}'] == 1
    assert found["localllm_models_loaded"] == 1
    assert found['localllm_requests_total{model="m"}'] == 2
    assert found['localllm_requests_failed_total{model="m"}'] == 1
    assert found['localllm_cached_tokens_total{model="m"}'] == 10
    assert found['localllm_requests_running{model="m"}'] == 2
    assert found['localllm_memory_bytes{model="m"}'] == 12345
    assert found['localllm_inter_token_seconds_count{model="m"}'] == 2
    assert found['localllm_inter_token_seconds_bucket{model="m",le="+Inf"}'] == 2
    assert found['localllm_inter_token_seconds_bucket{model="m",le="0.005"}'] == 0
    assert found['localllm_queue_seconds_sum{model="m"}'] == 0.2


def test_requests_are_told_apart_from_their_answers() -> None:
    engine = {**engine_metrics(), "running": 3, "queued": 1}
    found = values(prometheus_text([loaded(requests_running=1, metrics={"engine": engine})], "1.2.3"))

    assert found['localllm_requests_running{model="m"}'] == 1
    assert found['localllm_engine_running{model="m"}'] == 3
    assert found['localllm_engine_queued{model="m"}'] == 1


def test_what_a_worker_did_not_tell_is_left_out() -> None:
    text = prometheus_text([loaded(metrics={}, memory={})], "1.2.3")

    assert set(values(text)) == {
        'localllm_build_info{version="1.2.3"}',
        "localllm_models_loaded",
        'localllm_requests_running{model="m"}',
        'localllm_requests_queued{model="m"}',
    }


def test_people_read_the_main_figures_in_one_line() -> None:
    engine = {
        "steps_total": 10,
        "answers_total": 25,
        "drafted_tokens_total": 50,
        "accepted_tokens_total": 20,
        "kv_cells": 100,
        "kv_cells_used": 30,
    }
    text = traffic_text({"model_id": "m", "metrics": {**counted(), "engine": engine}})

    assert text is not None
    assert text.startswith("m: 2 requests (1 failed), 40 tokens in (25 % from the cache), 3 out, ")
    assert "10 ms between tokens, 200 ms queued, 2.5 answers a step" in text
    assert text.endswith("40 % of the drafted tokens right, 30/100 cells used")
    assert traffic_text({"model_id": "m", "metrics": RequestMetrics().as_dict()}) is None
