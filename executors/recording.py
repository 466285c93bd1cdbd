"""Which plans the ledger keeps, and how a run becomes an entry of it.

A plan is recorded where it may create, update or delete something that outlives it: settings, keys, files, loaded
models. Answers and measurements change nothing and are not recorded. The process that runs the executor writes, so a
plan sent to a server is recorded there, once.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from ..errors import LocalLLMError
from ..planner.codec import dump_plan
from ..planner.identity import plan_id
from .changes import change_of, state_before
from .events import Progress, Result
from .ledger import Actor, Ledger, described, duration_ms, ledger_of, new_entry_id, now
from .logbook import HIDDEN, redacted
from .threads import in_thread

if TYPE_CHECKING:
    from ..planner.plan_union import CommandPlan
    from ..planner.settings import ResolvedSettings
    from .context import Context
    from .events import Events
    from .ledger import Outcome


async def recorded(plan: CommandPlan, ctx: Context, events: Events, actor: Actor) -> Events:
    """The same events; what began is kept before the first, and the entry written before the last.

    A ledger that cannot be written stops nothing: it is said once, as progress, and the plan runs.
    """
    recording = _Recording(plan, ctx, actor)
    beginning = asyncio.ensure_future(in_thread(recording.begin))
    try:
        await asyncio.shield(beginning)
    except OSError as fault:
        yield Progress(stage="warning", message=f"this is not in the ledger: {fault}")
    except asyncio.CancelledError:
        # the thread goes on and begins the entry: without an end it would show as running while this process lives
        with suppress(OSError):
            await beginning
        recording.write(recording.ended("interrupted"))
        raise
    try:
        async with aclosing(events) as running:  # type: ignore[type-var]
            async for event in running:
                if isinstance(event, Result):
                    # before it is handed on: who reads a result may never come back for more
                    await in_thread(recording.write, recording.ended("done" if event.ok else "no", result=event))
                yield event
    except LocalLLMError as error:
        await in_thread(recording.write, recording.ended("failed", error=error))
        raise
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        recording.write(recording.ended("interrupted"))
        raise
    except Exception as error:
        recording.write(recording.ended("failed", error=LocalLLMError(type(error).__name__)))
        raise


def plan_without_secrets(
    raw: dict[str, Any], settings: ResolvedSettings, secrets: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A dumped plan as it may be kept: known secrets and what looks like one are `***`, references stay."""
    shown = {name: redacted(value, secrets) for name, value in raw.items()}
    # a secret has no place in the config file, and `config set` refuses it; what was typed is kept out all the same
    if raw["command"] == "config.set" and str(raw["key"]) in settings.secrets():
        shown["value"] = HIDDEN
    return shown


class _Recording:
    """One run's entry. State is looked at on the event loop, which owns it; writing may happen in a thread."""

    def __init__(self, plan: CommandPlan, ctx: Context, actor: Actor) -> None:
        self.plan = plan
        self.ctx = ctx
        self.actor = actor
        self.ledger: Ledger = ledger_of(ctx.settings.state_dir)
        self.entry = new_entry_id()
        self.began = time.monotonic()
        key = ctx.settings.api_key
        self.secrets = (*actor.secrets, *((key,) if key else ()))
        self.before = state_before(plan, ctx)
        self.record = self._beginning()
        self.open = False

    def begin(self) -> None:
        """Keep what is about to run. Raises OSError."""
        self.ledger.begin(self.entry, self.record)
        self.open = True

    def write(self, record: dict[str, Any] | None) -> None:
        """Write the entry; one that is lost shows as interrupted, which it may be."""
        if record is not None:
            with suppress(OSError):
                self.ledger.end(self.entry, record)

    def _beginning(self) -> dict[str, Any]:
        raw = dump_plan(self.plan)
        shown = plan_without_secrets(raw, self.ctx.settings, self.secrets)
        record = {
            "time": now(),
            # a hash over a short secret could be guessed back
            "plan_id": plan_id(shown if self.actor.secrets else raw),
            "plan": shown,
            "actor": described(self.actor),
            "effects": list(self.plan.effects),
        }
        return record | ({"instance": self.ctx.instance} if self.ctx.instance else {})

    def ended(
        self, outcome: Outcome, *, result: Result | None = None, error: LocalLLMError | None = None
    ) -> dict[str, Any] | None:
        """The whole entry; None where it is written already, or was never begun."""
        if not self.open:
            return None
        self.open = False
        record = {**self.record, "ended": now(), "outcome": outcome, "duration_ms": duration_ms(self.began)}
        if result is not None:
            record["result"] = _digest(result.data)
        if error is not None:
            record["error"] = {"code": error.code, "message": redacted(error.message, self.secrets)}
        if result is not None and "undid" in result.data:
            record["undid"] = result.data["undid"]
        undo = change_of(self.plan, self.ctx, self.before, result)
        if undo is None or (undo["kind"] == "config" and self._holds_secret(undo["before"], undo["after"])):
            return record
        return record | {"undo": undo}

    def _holds_secret(self, *values: Any) -> bool:
        return any(redacted(value, self.secrets) != value for value in values)


def _digest(data: dict[str, Any]) -> str:
    import hashlib

    text = json.dumps(redacted(data), sort_keys=True, separators=(",", ":"), default=str)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
