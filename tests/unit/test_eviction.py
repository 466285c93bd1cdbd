"""Which prefixes are kept, and which give way: the one that was used longest ago goes first."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.asking import chat, echo
from localllm.runtime.engine.scheduler import Limits, Scheduler
from localllm.runtime.engine.sequence import Sequence

A, B = list(range(40)), list(range(1000, 1040))
TALKS = ("ada", "bob", "eve", "ian", "mia", "zoe")


def scheduler_with(**changes: Any) -> Scheduler:
    sizes = {"n_slots": 4, "n_sequences": 8, "n_cells": 105, "n_batch": 64, "n_outputs": 32}
    return Scheduler(Limits(**(sizes | changes)))


def ask(scheduler: Scheduler, prompt: list[int]) -> int:
    """One request of one step, to its end; returns how much of its prompt was there already."""
    sequence = Sequence(request_id="r", index=0, tokens=list(prompt), n_prompt=len(prompt), limit=500)
    scheduler.add(sequence)
    for share in scheduler.schedule():
        scheduler.commit(share, [7])
    scheduler.release(sequence)
    return sequence.cached


def test_a_prefix_that_was_used_again_outlives_one_that_came_later() -> None:
    scheduler = scheduler_with(idle_cells=1000)
    ask(scheduler, A)
    ask(scheduler, B)
    used = ask(scheduler, [*A[:30], *range(500, 510)])
    ask(scheduler, list(range(2000, 2050)))  # needs the room of one of them

    assert used == 30
    assert scheduler.evictions == 1
    assert ask(scheduler, [*A, 99]) == 40
    assert ask(scheduler, [*B, 99]) == 0


def test_a_parked_prefix_that_was_used_again_outlives_one_that_was_parked_later() -> None:
    scheduler = scheduler_with(n_cells=1000, idle_cells=0, parked_cells=100)
    ask(scheduler, A)
    ask(scheduler, B)
    used = ask(scheduler, [*A[:20], *range(500, 520)])  # is parked too, which is more than there is room for

    assert used == 20
    assert scheduler.parked_cells == 80
    assert ask(scheduler, [*A, 99]) == 40
    assert ask(scheduler, [*B, 99]) == 0


@pytest.mark.parametrize("kept", [{"pool": 4000}, {"pool": 1200, "idle_cells": 0, "parked_cells": 3000}], ids=str)
def test_many_conversations_in_turns_compute_only_what_is_new_in_each(kept: dict[str, int]) -> None:
    asking = echo(tokens="bytes", n_ctx=600, n_slots=2, **kept)
    talks, known = dict.fromkeys(TALKS, ""), dict.fromkeys(TALKS, 0)
    for turn in range(5):
        for name in TALKS:
            talks[name] += chat(f"{name} says something in turn {turn}")
            told = asking.ask(talks[name])
            talks[name] += told.text

            assert told.done.usage.cached_tokens >= known[name] - 1
            known[name] = told.done.usage.prompt_tokens + len(told.text)
            talks[name] += "<|im_end|>\n"

    assert sum(known.values()) > 2000
