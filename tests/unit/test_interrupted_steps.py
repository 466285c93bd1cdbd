"""A client hangs up in the middle of a decode: what the others say stays right, whatever the memory can do."""

from __future__ import annotations

import pytest
from fixtures.asking import Asking, Told, chat
from fixtures.hanging_up import hanging_up
from localllm.errors import Interrupted

WORDS = "one two three four five six seven eight nine ten eleven twelve"


def hang_up_beside(asking: Asking, *, at: str) -> tuple[Told, Told]:
    """An answer that runs, and a client that leaves in its own prompt's decode or in one of its answer."""
    running = asking.submit(chat(f"{WORDS} {WORDS}"))
    for _ in range(5):
        asking.engine.step()
    leaving = asking.submit(chat(f"never {WORDS}"), request_id="gone")
    while asking.engine.status()["slots"][-1].state != at:
        asking.engine.step()
    asking.backend.during_decode = lambda: asking.engine.cancel("gone")  # type: ignore[attr-defined]
    asking.engine.step()
    asking.backend.during_decode = None  # type: ignore[attr-defined]
    asking.run()
    return running, leaving


@pytest.mark.parametrize("at", ["prefill", "decode"])
@pytest.mark.parametrize("rewinds", [True, False])
def test_an_answer_beside_an_interrupted_step_goes_on_as_if_nothing_had_been(rewinds: bool, at: str) -> None:
    asking = hanging_up(shares_prefixes=rewinds, n_batch=8)
    running, leaving = hang_up_beside(asking, at=at)

    assert isinstance(leaving.error, Interrupted)
    running.check_order()
    assert running.text == f"{WORDS} {WORDS}"
    assert asking.backend.interruptions == 1  # type: ignore[attr-defined]


def test_memory_that_cannot_rewind_is_computed_anew_after_an_interrupted_step() -> None:
    rows = {}
    for rewinds in (True, False):
        asking = hanging_up(shares_prefixes=rewinds, speculation=False, n_batch=8)
        hang_up_beside(asking, at="prefill")
        rows[rewinds] = asking.engine.meter.rows_total

    assert rows[False] >= rows[True] + 25


@pytest.mark.parametrize("rewinds", [True, False])
def test_who_was_stopped_for_want_of_cells_says_the_same_after_an_interrupted_step(rewinds: bool) -> None:
    script = [f"w{i} " for i in range(40)]
    asking = hanging_up(script=script, shares_prefixes=rewinds, speculation=False, n_ctx=60, pool=64)
    leaving, stopped = (asking.submit(chat(name)) for name in ("ada", "bob"))
    for _ in range(38):
        asking.engine.step()
    assert asking.engine.metrics()["preemptions_total"] == 1

    asking.backend.during_decode = lambda: asking.engine.cancel("r1")  # type: ignore[attr-defined]
    asking.engine.step()
    asking.backend.during_decode = None  # type: ignore[attr-defined]
    asking.run()

    assert isinstance(leaving.error, Interrupted)
    assert stopped.text == "".join(script)
    assert stopped.done.usage.completion_tokens == 41
