"""The one place where a plan meets its executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from ..errors import Unsupported
from .preview import Executor, preview_of

if TYPE_CHECKING:
    from ..planner.plan_union import CommandPlan
    from ..planner.report import Facts
    from .context import Context
    from .events import Events, Result
    from .ledger import Actor

CHANGES = frozenset({"create", "update", "delete"})
CARRIERS = frozenset({"apply", "serve", "replay"})
"""Commands that change something by the plans they run, each of which is recorded by itself."""


def executor_of(plan: CommandPlan, ctx: Context) -> Executor:
    """The executor of a plan; imports that noun's module and no other."""
    match plan.command:
        case "status":
            from .status import status

            return status
        case "models.scan":
            from .models import scan

            return scan
        case "models.list":
            from .models import list_models

            return list_models
        case "models.show":
            from .models import show

            return show
        case "models.load":
            from .models import load

            return load
        case "models.unload":
            from .models import unload

            return unload
        case "models.pull":
            from .pull import pull

            return pull
        case "auth.enable":
            from .auth import enable

            return enable
        case "auth.disable":
            from .auth import disable

            return disable
        case "auth.status":
            from .auth import auth_status

            return auth_status
        case "config.get":
            from .config import get

            return get
        case "config.set":
            from .config import set_value

            return set_value
        case "config.unset":
            from .config import unset

            return unset
        case "config.list":
            from .config import list_settings

            return list_settings
        case "bench.latency":
            from .bench import latency

            return latency
        case "bench.throughput":
            from .bench import throughput

            return throughput
        case "logs":
            from .logs import logs

            return logs
        case "doctor":
            from .doctor import doctor

            return doctor
        case "chat":
            from .chat import chat

            return chat
        case "complete":
            from .complete import complete

            return complete
        case "serve":
            return _serve_of(ctx)
        case "apply":
            from .apply import apply

            return apply
        case "schema":
            from .inspect import schema

            return schema
        case "version":
            from .version import version

            return version
        case "explain":
            from .explain import explain

            return explain
        case "plan.validate":
            from .inspect import validate

            return validate
        case "plan.diff":
            from .inspect import diff

            return diff
        case "plan.id":
            from .inspect import identify

            return identify
        case "replay":
            from .replay.command import replay

            return replay
        case "plan.lock":
            from .replay.locking import lock

            return lock
        case "plan.log":
            from .history import log

            return log
        case "plan.undo":
            from .history import undo

            return undo
        case unknown:
            assert_never(unknown)


def changes_something(plan: CommandPlan) -> bool:
    """Whether a run may leave something behind that outlives it, and so belongs in the ledger."""
    return plan.command not in CARRIERS and not CHANGES.isdisjoint(plan.effects)


def preview(plan: CommandPlan, ctx: Context) -> dict[str, Any]:
    """The report of a dry run. Synchronous, so that the command line needs no event loop for it.

    Raises Unsupported where the executor cannot say what it would do: a dry run never looks green by accident.
    """
    facts_of = preview_of(executor_of(plan, ctx))
    if facts_of is None:
        raise Unsupported(f"`{plan.command}` cannot do a dry run")
    from ..planner.report import build_report

    if plan.command == "apply":
        from .apply import preview_saved

        saved, facts = preview_saved(plan, ctx)
        return build_report(saved, _for_one_application(saved, facts, ctx), ctx.settings)
    return build_report(plan, _for_one_application(plan, facts_of(plan, ctx), ctx), ctx.settings)


def reported(report: dict[str, Any]) -> Result:
    """A report as a result; the answer is no where what is planned does not fit the memory."""
    from .events import Result

    resolved = report["resolved"]
    return Result(ok=resolved.get("memory", {}).get("fits", True) and "no_room" not in resolved, data=report)


def _for_one_application(plan: CommandPlan, facts: Facts, ctx: Context) -> Facts:
    """The facts of a changing plan with the precondition that lets `apply` run its report once."""
    effects = plan.effects if facts.effects is None else facts.effects
    if ctx.on_server or not changes_something(plan) or CHANGES.isdisjoint(effects):
        return facts
    from attrs import evolve

    from ..planner.codec import dump_plan
    from ..planner.identity import plan_id
    from .applied import applied_precondition

    mark = applied_precondition(plan_id(dump_plan(plan)), ctx.settings.state_dir)
    return evolve(facts, preconditions=(*facts.preconditions, mark))


async def dispatch(plan: CommandPlan, ctx: Context, *, actor: Actor | None = None) -> Events:
    """Run the plan and yield its events: any number, then one `Result`, or a LocalLLMError is raised.

    In a dry run no executor is called: the only event is a `Result` with the report. A plan that belongs to
    the server is sent there, unless this process is the server. One that changes something leaves an entry in the
    ledger of the process that runs it; `actor` says who asked, unless it was the command line (or the server itself).
    """
    if ctx.dry_run:
        if ctx.on_server:
            from asyncio import to_thread

            # a preview may read many headers: other requests go on meanwhile
            yield reported(await to_thread(preview, plan, ctx))
        else:
            yield reported(preview(plan, ctx))
        return
    if ctx.playback is not None and ctx.playback.answers(plan):
        events = ctx.playback.played(plan, ctx, () if actor is None else actor.secrets)
    elif plan.where == "server" and not ctx.on_server:
        from .client import send_plan

        events = send_plan(plan, ctx)
    else:
        events = executor_of(plan, ctx)(plan, ctx)
        if changes_something(plan):
            from .ledger import Actor
            from .recording import recorded

            events = recorded(plan, ctx, events, actor or Actor(door="server" if ctx.on_server else "cli"))
    if ctx.recorder is not None:
        events = ctx.recorder.tapped(plan, ctx, events, actor)
    try:
        async for event in events:
            yield event
    finally:
        # closing must reach the executor at once: that is what cancels a request in the engine
        await events.aclose()  # type: ignore[attr-defined]


def _serve_of(ctx: Context) -> Executor:
    if ctx.serve is None or (ctx.inside_replay and not ctx.dry_run):
        raise Unsupported("`serve` cannot run here", hint="run `localllm serve` from a shell")
    return ctx.serve
