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


async def compare(plan: dict[str, Any], recorded: Mapping[str, Any], outcome: Outcome, ctx: Context) -> Comparison:
    """Compare an outcome with the recorded one; what it depended on is asked of where it ran."""
    document = outcome.as_dict()
    command = str(plan.get("command"))
    if command not in ANSWERS or outcome.result is None:
        return compare_outcomes(command, recorded, document, {})
    facts = await _facts(str(outcome.result.get("model")), ctx)
    return compare_outcomes(command, recorded, document, {**facts, **_settled(plan, outcome.result)})


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
        # it was answered in this process
        return await in_thread(served_fingerprint, ctx, model_id, find_loaded(ctx, model_id))
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
