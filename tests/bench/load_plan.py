"""Measure `load_plan` of a chat: one message, and twenty."""

from __future__ import annotations

import statistics
import time

from localllm.planner.codec import load_plan

AIMS_MS = {1: 0.2, 20: 1.0}


def median_ms(messages: int, repeats: int = 2000) -> float:
    """The median time of one call in milliseconds, after a warm-up that builds the validator."""
    raw = {
        "command": "chat",
        "messages": [
            {"role": ("user", "assistant")[turn % 2], "content": f"This is turn {turn} of a conversation."}
            for turn in range(messages)
        ],
        "max_tokens": 48,
    }
    for _ in range(50):
        load_plan(raw)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        load_plan(raw)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


for count, aim in AIMS_MS.items():
    noun = "message" if count == 1 else "messages"
    print(f"load_plan of {count} {noun}: {median_ms(count):.3f} ms (aim: at most {aim} ms)")
