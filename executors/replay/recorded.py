"""A step with a recorded outcome: run as it was recorded, then compared, with the reason why it differs or may."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ...errors import LocalLLMError, ServerUnreachable
from ...planner.files.recorded import ANSWERS, Comparison, compare_outcomes, sampling_of
from ..events import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..context import Context
    from .outcome import Outcome


def as_recorded(plan: dict[str, Any], recorded: Mapping[str, Any] | None) -> dict[str, Any]:
    """The plan with the seed that was really used where it names none: with another one nothing could be compared."""
    if recorded is None or plan.get("command") not in ANSWERS or plan.get("seed") is not None:
        return plan
    seed = ((recorded.get("lock") or {}).get("sampling") or {}).get("seed")
    return plan if seed is None else {**plan, "seed": seed}


async def compare(
    plan: dict[str, Any], recorded: Mapping[str, Any], outcome: Outcome, ctx: Context
) -> tuple[Comparison, dict[str, Any]]:
    """Compare an outcome with the recorded one, and give its lock: what it depended on, asked of where it ran."""
    command = str(plan.get("command"))
    lock: dict[str, Any] = {}
    if command in ANSWERS and outcome.result is not None:
        model_id = str(outcome.result.get("model"))
        lock = {"model": model_id, **await _facts(model_id, ctx), **_settled(plan, outcome.result)}
    return compare_outcomes(command, recorded, outcome.as_dict(), lock), lock


def renewed(
    shown: dict[str, Any], recorded: Mapping[str, Any], outcome: Outcome, lock: Mapping[str, Any]
) -> dict[str, Any]:
    """The recording with what came out now in place of what came out then; `shown` is the plan without secrets."""
    from ...planner.codec import dump_plan, load_plan
    from ...planner.identity import plan_id
    from ..ledger import now

    # the times of a stream's parts belong to the events that go
    kept = {name: value for name, value in recorded.items() if name not in ("times_ms", "merged", "lock")}
    fresh = {"plan_id": plan_id(dump_plan(load_plan(shown))), "at": now(), **outcome.as_dict()}
    return {**kept, **fresh, **({"lock": dict(lock)} if lock else {})}


def is_outdated(compared: Comparison, recorded: Mapping[str, Any], lock: Mapping[str, Any]) -> bool:
    """Whether a recording says something else than came out now, or than it depended on."""
    then = recorded.get("lock") or {}
    return not compared.equal or any(then.get(name) != value for name, value in lock.items())


def _settled(plan: dict[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    from ...planner.codec import dump_plan, load_plan

    full = dump_plan(load_plan(plan))
    return {"strict": full["determinism"] == "strict", "sampling": sampling_of(full, result.get("seed"))}


async def _facts(model_id: str, ctx: Context) -> dict[str, Any]:
    """The fingerprint of the model that answered; empty where it cannot be told, as with a key that may not ask."""
    from ..fingerprint import served_fingerprint
    from ..loading import find_loaded
    from ..threads import in_thread

    try:
        return await _facts_of_server(model_id, ctx)
    except ServerUnreachable:
        loaded = find_loaded(ctx, model_id)
        # what is not loaded here was answered by a server that is gone, or too busy to say: nothing is known of it
        return {} if loaded is None else await in_thread(served_fingerprint, ctx, model_id, loaded)
    except LocalLLMError:
        return {}


async def _facts_of_server(model_id: str, ctx: Context) -> dict[str, Any]:
    from ...planner.plans.models import ModelsShow
    from ..client import send_plan

    plan = ModelsShow(model=model_id, fingerprint=True)
    async with aclosing(send_plan(plan, ctx)) as events:  # type: ignore[type-var]
        async for event in events:
            if isinstance(event, Result):
                found: dict[str, Any] = event.data.get("fingerprint") or {}
                return found
    return {}
