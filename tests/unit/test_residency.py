from __future__ import annotations

import pytest
from localllm.errors import InUse, ModelLoadFailed, OutOfMemory
from localllm.runtime.diagnosis import death_error, load_error
from localllm.runtime.residency import Deaths, Limits, Resident, Room, make_room, refusal

GIB = 1 << 30


def resident(name: str, gib: int = 1, last_used: float = 0.0, *, busy: bool = False, pinned: bool = False) -> Resident:
    return Resident(model_id=name, memory_bytes=gib * GIB, last_used=last_used, busy=busy, pinned=pinned)


def test_without_bounds_nothing_is_evicted() -> None:
    assert make_room([resident("a", 100)], 100 * GIB, Limits()) == Room()


def test_the_least_recently_used_go_first_and_no_more_than_needed() -> None:
    residents = [resident("new", last_used=3), resident("old", last_used=1), resident("middle", last_used=2)]

    assert make_room(residents, 2 * GIB, Limits(memory_budget_bytes=4 * GIB)).evict == ("old",)
    assert make_room(residents, 3 * GIB, Limits(memory_budget_bytes=4 * GIB)).evict == ("old", "middle")
    assert make_room(residents, 0, Limits(max_loaded=1)).evict == ("old", "middle", "new")


def test_busy_and_pinned_models_stay() -> None:
    limits = Limits(memory_budget_bytes=3 * GIB)
    residents = [
        resident("busy", last_used=1, busy=True),
        resident("pinned", last_used=2, pinned=True),
        resident("idle"),
    ]

    assert make_room(residents, GIB, limits) == Room(evict=("idle",))
    assert make_room(residents, 2 * GIB, limits) == Room(fits=False, in_the_way=("busy",))
    assert make_room(residents, 3 * GIB, limits) == Room(fits=False)


def test_a_model_larger_than_the_budget_evicts_nobody() -> None:
    assert make_room([resident("a")], 9 * GIB, Limits(memory_budget_bytes=3 * GIB)) == Room(fits=False)


def refused(residents: list[Resident], gib: int, limits: Limits) -> tuple[type[Exception] | None, str, str]:
    """What a model that finds no room is told: the kind of error, its message and its hint."""
    error = refusal("model `m`", make_room(residents, gib * GIB, limits), residents, gib * GIB, limits)
    return (None, "", "") if error is None else (type(error), error.message, str(error.hint))


def test_who_finds_no_room_is_told_what_would_make_some() -> None:
    budget = Limits(memory_budget_bytes=3 * GIB)
    pinned, busy = resident("p", pinned=True), resident("b", busy=True)

    assert refused([resident("a", 3)], 1, budget) == (None, "", "")
    kind, message, hint = refused([busy, pinned], 2, budget)
    assert (kind, message) == (InUse, "no room for model `m` while `b` is busy")
    assert "--force" in hint
    kind, message, hint = refused([pinned, resident("a")], 3, budget)
    assert kind is OutOfMemory
    assert message.endswith(f"it needs {3 * GIB:,} beside the pinned models, which take {GIB:,}")
    assert f"unload a pinned model, set `memory_budget_bytes` to {4 * GIB:,} or more" in hint
    kind, message, hint = refused([], 4, budget)
    assert message == f"model `m` does not fit the memory budget of {3 * GIB:,} bytes: it needs {4 * GIB:,}"
    assert hint.startswith(f"set `memory_budget_bytes` to {4 * GIB:,} or more")
    kind, message, hint = refused([pinned], 1, Limits(max_loaded=1))
    assert (kind, hint) == (OutOfMemory, "unload a pinned model, or raise `max_loaded`")


def test_the_wait_doubles_with_each_death_and_then_the_worker_is_left_alone() -> None:
    deaths = Deaths(Limits(backoff_s=1, deaths_before_pause=3, pause_s=30, death_window_s=60))
    assert deaths.backoff_s(100) == 0

    deaths.record(100)
    assert (deaths.backoff_s(100), deaths.backoff_s(100.5), deaths.cooling_s(100)) == (1, 0.5, 0)
    deaths.record(110)
    assert (deaths.backoff_s(110), deaths.cooling_s(110)) == (2, 0)
    deaths.record(120)
    assert (deaths.cooling_s(120), deaths.cooling_s(149), deaths.cooling_s(150)) == (30, 1, 0)


def test_old_deaths_are_forgotten() -> None:
    deaths = Deaths(Limits(deaths_before_pause=2, pause_s=30, death_window_s=60))
    deaths.record(0)
    deaths.record(61)

    assert deaths.cooling_s(61) == 0


@pytest.mark.parametrize(
    "returncode, lines, kind, words",
    [
        (-9, ["loading"], OutOfMemory, "memory runs out"),
        (1, ["ggml_backend_cuda: cudaMalloc failed: out of memory", "exiting"], OutOfMemory, "cudaMalloc failed"),
        (-6, ["loading", "ggml.c:12: GGML_ASSERT(n > 0) failed", "bye"], ModelLoadFailed, "GGML_ASSERT(n > 0) failed"),
        (-11, ["loading"], ModelLoadFailed, "killed by signal 11 (SIGSEGV)"),
        (3, [], ModelLoadFailed, "ended with status 3"),
    ],
)
def test_a_worker_that_dies_in_a_load_is_told_in_words(
    returncode: int, lines: list[str], kind: type[Exception], words: str
) -> None:
    error = load_error("m", returncode, lines)

    assert type(error) is kind
    assert words in error.message
    assert error.data["last_lines"] == lines


def test_a_death_names_the_signal_and_carries_the_last_lines() -> None:
    error = death_error("m", -9, [str(number) for number in range(100)])

    assert "signal 9 (SIGKILL)" in error.message
    assert error.data["last_lines"][-1] == "99"
    assert len(error.data["last_lines"]) < 20
