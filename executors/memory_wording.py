"""Memory in words: what a load would take on each device, which load would fit, and what one took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .terminal import printable, size

TOLD_APART = ("devices", "alternatives")
"""The parts of a report's `memory` that are lines of their own."""

_PARTS = ("weights", "kv", "compute", "output", "adapter")


def memory_lines(memory: Mapping[str, Any]) -> list[str]:
    """A line for each device that would hold anything, then one for each set of parameters that would fit."""
    lines = [_device_line(device) for device in memory.get("devices") or () if _needed(device)]
    for each in memory.get("alternatives") or ():
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in each["changes"].items())
        lines.append(f"would fit: `{printable(flags)}` ({size(each['needed_bytes'])})")
    return lines


def measured_text(measured: Mapping[str, Any]) -> str:
    """What a load took beside the weights that it mapped from the file, and how far the estimate was from it."""
    mapped = measured.get("mapped_bytes")
    beside = f" beside {size(mapped)} of weights mapped from the file" if mapped else ""
    return f"took {size(measured['measured_bytes'])}{beside}, estimated {measured['estimate_error']:+.1%}"


def taken_bytes(memory: Mapping[str, Any]) -> int | None:
    """What a loaded model's buffers take, else what they were expected to; None where neither is known."""
    taken: int | None = memory.get("total_bytes") or (memory.get("estimate") or {}).get("needed_bytes")
    return taken


def _device_line(device: Mapping[str, Any]) -> str:
    parts = ", ".join(f"{part} {size(held)}" for part in _PARTS if (held := device.get(f"{part}_bytes")))
    fits = "fits" if device["fits"] else "does not fit"
    return f"memory of {printable(device['name'])}: {size(_needed(device))}, {fits} ({parts})"


def _needed(device: Mapping[str, Any]) -> int:
    return sum(device.get(f"{part}_bytes") or 0 for part in _PARTS)
