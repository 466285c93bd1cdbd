"""What a loaded model has done so far, in a few figures for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def traffic_text(model: Mapping[str, Any]) -> str | None:
    """One line on a model's requests, tokens and speed; None for one that has answered nothing yet."""
    metrics = model.get("metrics") or {}
    engine = metrics.get("engine") or {}
    if not metrics.get("requests_total"):
        return None
    parts = [_requests(metrics), _tokens(metrics), *_times(metrics), *_engine(engine)]
    return f"{model['model_id']}: {', '.join(parts)}"


def _requests(metrics: Mapping[str, Any]) -> str:
    total, failed = metrics["requests_total"], metrics.get("requests_failed_total", 0)
    return f"{total} request{'' if total == 1 else 's'}" + (f" ({failed} failed)" if failed else "")


def _tokens(metrics: Mapping[str, Any]) -> str:
    prompt, cached = metrics.get("prompt_tokens_total", 0), metrics.get("cached_tokens_total", 0)
    told = f" ({_percent(cached, prompt)} from the cache)" if cached else ""
    return f"{prompt} tokens in{told}, {metrics.get('completion_tokens_total', 0)} out"


def _times(metrics: Mapping[str, Any]) -> list[str]:
    names = {"time_to_first_token_s": "to the first token", "inter_token_s": "between tokens", "queue_s": "queued"}
    found = []
    for name, words in names.items():
        spent = metrics.get(name) or {}
        if spent.get("count") and spent["sum"] >= 0.0005:
            found.append(f"{spent['sum'] / spent['count'] * 1000:.3g} ms {words}")
    return found


def _engine(engine: Mapping[str, Any]) -> list[str]:
    found = []
    if engine.get("steps_total"):
        found.append(f"{engine['answers_total'] / engine['steps_total']:.2g} answers a step")
    if engine.get("drafted_tokens_total"):
        accepted = _percent(engine["accepted_tokens_total"], engine["drafted_tokens_total"])
        found.append(f"{accepted} of the drafted tokens right")
    if engine.get("kv_cells"):
        found.append(f"{engine['kv_cells_used']}/{engine['kv_cells']} cells used")
    return found


def _percent(part: float, whole: float) -> str:
    return f"{part / whole * 100:.0f} %" if whole else "0 %"
