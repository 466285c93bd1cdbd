"""What came of a plan: its result or its error as one value, so that a plan that fails is an answer like any other."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from ...errors import InternalError, LocalLLMError, Unsupported
from ...planner.codec import load_plan
from ...planner.files.variables import redact
from ..dispatch import dispatch
from ..events import Progress, Result, event_to_dict
from ..ledger import Actor

if TYPE_CHECKING:
    from ..context import Context

MOST_EVENTS = 100_000
"""How many events of one step are kept; what comes after is only counted, so that an endless step stays bounded."""
NOT_HERE = frozenset({"serve", "replay"})


@define(kw_only=True)
class Outcome:
    """How a plan ended. `events` are its records and deltas as `event_to_dict` gives them, without progress."""

    ok: bool
    exit_code: int
    http_status: int
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(factory=list)
    duration_ms: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """What expectations and captures look at."""
        return {
            "ok": self.ok,
            "exit_code": self.exit_code,
            "http_status": self.http_status,
            "result": self.result,
            "error": self.error,
            "events": self.events,
            "duration_ms": self.duration_ms,
        }


async def outcome_of(raw: dict[str, Any], ctx: Context, secrets: frozenset[str] = frozenset()) -> Outcome:
    """Run a raw plan through the one door to its end. Raises nothing but cancellation."""
    began = time.monotonic()
    events: list[dict[str, Any]] = []
    try:
        outcome = await _run(raw, ctx, secrets, events)
    except LocalLLMError as error:
        outcome = outcome_of_error(error)
    except Exception as error:
        outcome = outcome_of_error(InternalError(f"unexpected {type(error).__name__}: {error}".rstrip(": ")))
    outcome.events = events
    outcome.duration_ms = round((time.monotonic() - began) * 1000, 3)
    if secrets:
        outcome.result = redact(outcome.result, secrets)
        outcome.error = redact(outcome.error, secrets)
        outcome.events = redact(events, secrets)
    return outcome


def outcome_of_error(error: LocalLLMError) -> Outcome:
    """The outcome of a plan that raised."""
    return Outcome(ok=False, exit_code=error.exit_code, http_status=error.http_status, error=error.as_dict())


async def _run(raw: dict[str, Any], ctx: Context, secrets: frozenset[str], events: list[dict[str, Any]]) -> Outcome:
    plan = load_plan(raw)
    if plan.command in NOT_HERE and not ctx.dry_run:
        raise Unsupported(f"`{plan.command}` does not run as a step")
    actor = Actor(door="replay", secrets=tuple(secrets))
    if secrets:
        ctx = evolve(ctx, secrets=secrets)
    async with aclosing(dispatch(plan, ctx, actor=actor)) as running:  # type: ignore[type-var]
        async for event in running:
            if isinstance(event, Result):
                ok = event.ok
                return Outcome(ok=ok, exit_code=0 if ok else 1, http_status=200, result=event.data)
            if not isinstance(event, Progress) and len(events) < MOST_EVENTS:
                events.append(event_to_dict(event))
    raise InternalError(f"`{plan.command}` ended without a result")
