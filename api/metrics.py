"""`GET /metrics`: what the loaded models have done, as Prometheus reads it.

The text is written here rather than by `prometheus-client`: the numbers are kept in the pool and in the workers, whose
counters are only copied, and that library would keep a second set of them and be the slowest import of the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from ..executors.version import localllm_version
from .server import Server

if TYPE_CHECKING:
    from ..runtime.types import LoadedModel

MEDIA_TYPE = "text/plain; version=0.0.4"
PREFIX = "localllm"
COUNTERS = {
    "requests_total": "Requests sent to the model's worker",
    "requests_done_total": "Requests that were answered",
    "requests_failed_total": "Requests that ended with an error or were cancelled",
    "prompt_tokens_total": "Tokens of the prompts of answered requests",
    "completion_tokens_total": "Tokens sampled for answered requests",
    "cached_tokens_total": "Prompt tokens that were not computed again",
    "worker_deaths_total": "Times that the model's worker died",
}
HISTOGRAMS = {
    "time_to_first_token_s": "Seconds from a request to its first token",
    "inter_token_s": (
        "Seconds between two tokens of one answer; tokens that came together share the time, "
        "and an answer that is not streamed, whose tokens all come together, has none"
    ),
    "queue_s": "Seconds a request waited for a slot",
    "request_s": "Seconds from a request to its end",
}
ENGINE_COUNTERS = {
    "steps_total": "Steps of the engine",
    "rows_total": "Tokens computed, those of drafts that were wrong included",
    "decode_s_total": "Seconds of steps spent in the backend",
    "sample_s_total": "Seconds of steps spent from logits to text",
    "other_s_total": "Seconds of steps spent on scheduling and output",
    "answers_total": "Sum over steps of the answers they served: over the steps, the mean batch",
    "forced_tokens_total": "Tokens that a constraint left no choice about",
    "drafted_tokens_total": "Tokens that speculation proposed",
    "accepted_tokens_total": "Proposed tokens that were right",
    "evictions_total": "Prefixes that made room in the KV cache",
    "preemptions_total": "Answers that were put off because the KV cache was full",
}
ENGINE_GAUGES = {
    "running": "Answers that hold a slot; a request with several (`n`) has as many",
    "queued": "Answers that wait for a slot",
    "kv_cells": "Cells of the KV cache",
    "kv_cells_used": "Cells that hold something, idle prefixes included",
    "kv_cells_idle": "Cells that only keep a prefix for later",
}

Row = tuple[str, Mapping[str, str], float]
"""Suffix of the name, labels, value."""


def metric_routes(server: Server) -> list[HTTPRouteHandler]:
    """The endpoint that Prometheus polls; it needs the key where one is asked for."""

    @get("/metrics")
    async def show_metrics() -> ASGIApp:
        text = prometheus_text(await server.ctx.runtime.status(), localllm_version())
        return ASGIResponse(body=text.encode(), media_type=MEDIA_TYPE, status_code=200)

    return [show_metrics]


def prometheus_text(models: Sequence[LoadedModel], version: str) -> str:
    """Every metric with its help and type; what a worker did not tell in time is left out."""
    blocks = [
        _block("build_info", "gauge", "The running version", [("", {"version": version}, 1)]),
        _block("models_loaded", "gauge", "Models that are ready", [("", {}, sum(m.state == "ready" for m in models))]),
    ]
    for name, of, words in (
        (
            "requests_running",
            lambda model: model.requests_running,
            "Requests in the model's worker, as many as it has slots; one with several answers (`n`) counts once",
        ),
        ("requests_queued", lambda model: model.requests_queued, "Requests in the model's worker beyond its slots"),
        ("memory_bytes", lambda model: model.memory.get("total_bytes"), "Memory of the model's buffers"),
    ):
        blocks.append(_of_models(name, "gauge", words, models, of))
    for name, words in COUNTERS.items():
        blocks.append(_of_models(name, "counter", words, models, _metric(name)))
    for name, words in HISTOGRAMS.items():
        blocks.append(_histogram(name, words, models))
    for kind, table in (("counter", ENGINE_COUNTERS), ("gauge", ENGINE_GAUGES)):
        for name, words in table.items():
            blocks.append(_of_models(f"engine_{name}", kind, words, models, _engine_metric(name)))
    return "".join(blocks)


def published(name: str) -> str:
    """Our name of a metric as Prometheus likes it: seconds are spelt out."""
    if name.endswith("_s_total"):
        name = name.removesuffix("_s_total") + "_seconds_total"
    elif name.endswith("_s"):
        name = name.removesuffix("_s") + "_seconds"
    return f"{PREFIX}_{name}"


def _metric(name: str) -> Any:
    return lambda model: model.metrics.get(name)


def _engine_metric(name: str) -> Any:
    return lambda model: (model.metrics.get("engine") or {}).get(name)


def _of_models(name: str, kind: str, words: str, models: Iterable[LoadedModel], of: Any) -> str:
    rows = [("", {"model": model.model_id}, value) for model in models if (value := of(model)) is not None]
    return _block(name, kind, words, rows)


def _histogram(name: str, words: str, models: Iterable[LoadedModel]) -> str:
    rows: list[Row] = []
    for model in models:
        told, label = model.metrics.get(name), {"model": model.model_id}
        if told is None:
            continue
        rows += [("_bucket", {**label, "le": f"{bound:g}"}, count) for bound, count in told["buckets"]]
        rows += [
            ("_bucket", {**label, "le": "+Inf"}, told["count"]),
            ("_sum", label, told["sum"]),
            ("_count", label, told["count"]),
        ]
    return _block(name, "histogram", words, rows)


def _block(name: str, kind: str, words: str, rows: Sequence[Row]) -> str:
    """A metric's lines; none where nothing is known of it."""
    if not rows:
        return ""
    full = published(name)
    lines = [f"# HELP {full} {words}", f"# TYPE {full} {kind}"]
    for suffix, labels, value in rows:
        listed = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{full}{suffix}{f'{{{listed}}}' if listed else ''} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
