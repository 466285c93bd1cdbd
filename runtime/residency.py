"""Which models may stay in memory and when a dead worker may be started again. Pure: the clock is an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from attrs import define, field, frozen

from ..errors import InUse, LocalLLMError, OutOfMemory


@frozen(kw_only=True)
class Limits:
    """The pool's bounds; every wait in it ends by one of these. None means no bound."""

    queue_limit: int = 64
    """Requests that may wait for a slot of one model; one more is a QueueFull."""
    max_loaded: int | None = None
    memory_budget_bytes: int | None = None
    idle_ttl_s: float | None = None
    """Unload a model that nobody used for so long; pinned models stay."""
    load_stall_s: float = 300.0
    """A load that reports no progress for so long is given up."""
    stop_grace_s: float = 2.0
    """How long a worker may take to end by itself before it is killed."""
    status_timeout_s: float = 0.5
    """How long `status` waits for a worker in a long step before it tells what it knew last."""
    deaths_before_pause: int = 3
    death_window_s: float = 60.0
    pause_s: float = 30.0
    backoff_s: float = 0.2
    """Wait after the first death in the window; doubled by each further one."""


@define
class Deaths:
    """When a model's worker died lately, and what that means for the next start."""

    limits: Limits
    _times: deque[float] = field(factory=deque, init=False)

    def record(self, now: float) -> None:
        """A worker died."""
        self._times.append(now)
        self._forget_old(now)

    def cooling_s(self, now: float) -> float:
        """Seconds until a start is allowed again after too many deaths; 0 where it is."""
        self._forget_old(now)
        if len(self._times) < self.limits.deaths_before_pause:
            return 0.0
        return max(0.0, self._times[-1] + self.limits.pause_s - now)

    def backoff_s(self, now: float) -> float:
        """Seconds a start should wait because of the last deaths."""
        self._forget_old(now)
        if not self._times:
            return 0.0
        wait = min(self.limits.backoff_s * math.pow(2, len(self._times) - 1), self.limits.pause_s)
        return max(0.0, self._times[-1] + wait - now)

    def _forget_old(self, now: float) -> None:
        while self._times and self._times[0] + max(self.limits.death_window_s, self.limits.pause_s) < now:
            self._times.popleft()


@frozen(kw_only=True)
class Resident:
    """One model that takes room."""

    model_id: str
    memory_bytes: int
    last_used: float
    busy: bool = False
    pinned: bool = False


@frozen(kw_only=True)
class Room:
    """What must go so that a model fits; `fits` is False where even that is not enough now."""

    evict: tuple[str, ...] = ()
    fits: bool = True
    in_the_way: tuple[str, ...] = ()
    """Busy models that would have to end first; empty with `fits` False means that it never fits."""


@frozen(kw_only=True)
class Admission:
    """What a load would do to other models now: those that make room for it, or the error that it ends in."""

    evict: tuple[str, ...] = ()
    refusal: LocalLLMError | None = None


def make_room(residents: Sequence[Resident], needed_bytes: int, limits: Limits) -> Room:
    """Which models to unload, least recently used first, so that one of `needed_bytes` fits; never busy or pinned ones.

    Nothing is evicted where that does not help.
    """
    candidates = sorted((one for one in residents if not (one.busy or one.pinned)), key=lambda one: one.last_used)
    staying = list(residents)
    evict: list[str] = []
    while not _fits(staying, needed_bytes, limits):
        if not candidates:
            pinned_alone = [one for one in residents if one.pinned]
            busy = tuple(one.model_id for one in residents if one.busy and not one.pinned)
            return Room(fits=False, in_the_way=busy if _fits(pinned_alone, needed_bytes, limits) else ())
        victim = candidates.pop(0)
        staying.remove(victim)
        evict.append(victim.model_id)
    return Room(evict=tuple(evict))


def refusal(
    what: str, room: Room, residents: Sequence[Resident], needed_bytes: int, limits: Limits
) -> LocalLLMError | None:
    """Why there is no room for `what` and what would make some; None where there is.

    InUse where models that are busy would have to end first, OutOfMemory where even without them it would not fit.
    """
    if room.fits:
        return None
    if room.in_the_way:
        busy = ", ".join(f"`{name}`" for name in room.in_the_way)
        return InUse(
            f"no room for {what} while {busy} {'is' if len(room.in_the_way) == 1 else 'are'} busy",
            hint="try again when they are done, or unload one with `--force`",
            in_the_way=list(room.in_the_way),
        )
    pinned = [one for one in residents if one.pinned]
    facts: dict[str, Any] = {
        "needed_bytes": needed_bytes,
        "memory_budget_bytes": limits.memory_budget_bytes,
        "max_loaded": limits.max_loaded,
        "pinned": [one.model_id for one in pinned],
    }
    if limits.max_loaded is not None and len(pinned) >= limits.max_loaded:
        return OutOfMemory(
            f"no room for {what}: `max_loaded` is {limits.max_loaded}, and as many models are pinned",
            hint="unload a pinned model, or raise `max_loaded`",
            **facts,
        )
    taken = sum(one.memory_bytes for one in pinned)
    beside = f" beside the pinned models, which take {taken:,}" if pinned else ""
    return OutOfMemory(
        f"{what} does not fit the memory budget of {limits.memory_budget_bytes:,} bytes: "
        f"it needs {needed_bytes:,}{beside}",
        hint=("unload a pinned model, " if pinned else "")
        + f"set `memory_budget_bytes` to {taken + needed_bytes:,} or more, or load the model with a lower `n_ctx`",
        **facts,
    )


def _fits(staying: Sequence[Resident], needed_bytes: int, limits: Limits) -> bool:
    if limits.max_loaded is not None and len(staying) >= limits.max_loaded:
        return False
    if limits.memory_budget_bytes is None:
        return True
    return sum(one.memory_bytes for one in staying) + needed_bytes <= limits.memory_budget_bytes
