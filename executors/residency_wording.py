"""What a load would cost other models, in words: which would go, and which limits the server keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .terminal import plural, printable, size

TOLD = ("would_evict", "no_room", "limits")
"""The parts of a report's `resolved` that these words tell."""


def residency_lines(resolved: Mapping[str, Any]) -> list[str]:
    """A line for the models that would be evicted and one for the limits; none where the report does not know."""
    lines: list[str] = []
    if "no_room" in resolved:
        lines.append(f"evicts: no model, for that would not be enough: {printable(resolved['no_room']['message'])}")
        lines.append(f"to make room: {printable(resolved['no_room']['hint'])}")
    elif "would_evict" in resolved and "model_id" in resolved:  # of an unknown model nothing can be said
        names = ", ".join(f"`{printable(name)}`" for name in resolved["would_evict"])
        lines.append(f"evicts: {names}, to make room" if names else "evicts: no other model")
    if "limits" in resolved:
        lines.append(f"limits: {'; '.join(_limits(resolved['limits']))}")
    return lines


def _limits(limits: Mapping[str, Any]) -> list[str]:
    most, budget, idle_s = (limits.get(name) for name in ("max_loaded", "memory_budget_bytes", "idle_ttl_s"))
    return [
        "any number of loaded models" if most is None else f"{plural(most, 'loaded model')} at most (`max_loaded`)",
        "no memory budget" if budget is None else f"{size(budget)} for all models together (`memory_budget_bytes`)",
        "unused models stay" if idle_s is None else f"models unused for {idle_s} s go (`idle_ttl_s`)",
    ]
