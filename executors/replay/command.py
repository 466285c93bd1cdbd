"""`localllm replay`: all files are read and checked, then run, and what came of them is told, kept and reported."""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING

from ...errors import BadInput, InUse, StalePlan, Unsupported
from ...planner.fields import Effect
from ...planner.files.load import load_plan_files, read_vars_file
from ...planner.files.variables import VariableFault, from_flags
from ...planner.plans import COMMANDS, plan_class
from ...planner.report import Facts
from ..events import Progress, Record, Result
from ..preview import previewed
from .reports import reports_of
from .selection import refuse_empty, select

if TYPE_CHECKING:
    from ...planner.files.steps import PlanFile, Step
    from ...planner.plans.replay import Replay
    from ..context import Context
    from ..events import Events
    from .memory import Memory
    from .selection import Selection
    from .update import Updates

EFFECTS: tuple[Effect, ...] = ("read", "create", "update", "delete", "network", "gpu", "exec")


def preview_replay(plan: Replay, ctx: Context) -> Facts:
    """The files checked and their steps counted. Raises InvalidPlan with every fault of all files."""
    reports_of(plan.report)
    files = read_files(plan)
    selections = select(files, plan)
    effects: set[Effect] = {"read", "create"}
    for file, selection in zip(files, selections, strict=True):
        for step in chain((each for each in file.steps if selection.includes(each)), file.finally_):
            effects.update(_effects_of(step))
    rows = [
        {"file": file.source, "name": file.name, "steps": len(file.steps), "selected": len(selection.numbers)}
        for file, selection in zip(files, selections, strict=True)
    ]
    unknown = ["what the steps will come to"]
    if plan.only_failed or plan.resume:
        unknown.append("which steps are left over from the last replay")
    empty = not any(selection.numbers for selection in selections) and not plan.allow_empty
    return Facts(
        effects=tuple(effect for effect in EFFECTS if effect in effects),
        resolved={"files": rows, "steps": sum(row["selected"] for row in rows)},
        unknown=tuple(unknown),
        warnings=(f"would fail: {refuse_empty(plan).message}",) if empty else (),
    )


@previewed(preview_replay)
async def replay(plan: Replay, ctx: Context) -> Events:
    """Run the files and yield a record for each step, then the totals.

    Raises InvalidPlan before anything runs, with every fault of all files, and StalePlan where a file was written
    against other weights, another template or build. A step that fails makes the result not ok; it raises nothing.
    """
    import asyncio

    from ..threads import in_daemon_thread
    from .run import Run

    if ctx.inside_replay:
        raise Unsupported("a replay runs no other one", hint="`include` brings another file's steps in")
    reports = reports_of(plan.report)
    files = await in_daemon_thread(read_files, plan)
    selections = select(files, plan)
    updates = await in_daemon_thread(_updates, plan, files)
    await in_daemon_thread(_check_locks, plan, files, ctx, updates)
    memories, warnings = _memories(plan, files, ctx)
    run = Run(plan, ctx, files, selections, memories, updates, reports)
    try:
        _refuse_nothing_to_do(plan, files, selections, memories)
        # only now: a replay that is refused leaves what the last one came to
        for memory, file in zip(memories, files, strict=True):
            memory.start(file.digest)
        for warning in warnings:
            yield Progress(stage="warning", message=warning)
        run.start()
        try:
            async for event in run.events():
                yield event
        except asyncio.CancelledError:
            # Ctrl-C: what runs is ended, `finally` runs, and what came of it is told before the end
            run.stop()
            async for event in run.events():
                yield event
            yield Record(data={"summary": run.summary()})
            raise
    finally:
        try:
            await run.close()
        finally:
            run.finish()
    summary = run.summary()
    yield Result(data=summary, ok=not summary["failed"] and not summary["report_faults"])


def read_files(plan: Replay) -> list[PlanFile]:
    """Every file, checked. Raises InvalidPlan and NotFound with every fault, and BadInput for faulty variables."""
    variables = {} if plan.vars_file is None else read_vars_file(plan.vars_file)
    try:
        variables |= from_flags(plan.var)
    except VariableFault as fault:
        raise BadInput(str(fault), param="var") from None
    return load_plan_files(plan.files, vars=variables, env=os.environ)


def _effects_of(step: Step) -> tuple[Effect, ...]:
    command = step.plan.get("command")
    if step.dry_run or command not in COMMANDS:
        return ("read",)
    effects: tuple[Effect, ...] = plan_class(str(command)).effects
    return effects


def _updates(plan: Replay, files: list[PlanFile]) -> Updates | None:
    if not plan.update:
        return None
    if "-" in plan.files:
        raise BadInput("standard input cannot be updated", hint="name a file", param="files")
    from .update import Updates

    updates = Updates()
    for name in {step.place.file for file in files for step in chain(file.steps, file.finally_)}:
        updates.watch(name)
    for file in files:
        updates.watch(file.source)
    return updates


def _check_locks(plan: Replay, files: list[PlanFile], ctx: Context, updates: Updates | None) -> None:
    """Compare what the files were written against with what is here; with `--update` the file gets what is here."""
    locked = [file for file in files if file.lock]
    if not locked:
        return
    from .lock import differences, lock_edits

    if updates is not None:
        for file in locked:
            updates.edits.setdefault(file.source, {}).update(lock_edits(file.lock or {}, ctx))
        return
    failed = [f"{file.source}: {words}" for file in locked for words in differences(file.lock or {}, ctx)]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        hint = "`--update` writes what is here now into the file"
        raise StalePlan(f"{failed[0]}{more}", hint=hint, failed=failed)


def _memories(plan: Replay, files: list[PlanFile], ctx: Context) -> tuple[list[Memory], list[str]]:
    """The memory of each file, and warnings. Raises where one is asked for and cannot be had."""
    from .memory import memory_of

    memories: list[Memory] = []
    warnings: list[str] = []
    # what the last replay left grows with its steps, and a replay of everything makes no use of it
    recall = plan.resume or plan.only_failed or plan.from_step is not None or bool(plan.tags)
    try:
        for file in files:
            memory, fault = memory_of(file.source, ctx.settings.state_dir, recall=recall)
            memories.append(memory)
            if fault is not None:
                words = f"`{file.source}` cannot be resumed: {fault}"
                if plan.resume or plan.only_failed:
                    raise InUse(words)
                warnings.append(words)
            if plan.resume and memory.earlier.digest not in (None, file.digest):
                words = f"`{file.source}` was changed since, or a file it includes, or the variables given to it"
                raise StalePlan(words, hint="replay it without `--resume`")
    except BaseException:
        for memory in memories:
            memory.close()
        raise
    return memories, warnings


def _refuse_nothing_to_do(
    plan: Replay, files: list[PlanFile], selections: list[Selection], memories: list[Memory]
) -> None:
    """Raise BadInput where no step would run and that was not allowed; a finished replay may be resumed."""
    if plan.allow_empty:
        return
    for file, selection, memory in zip(files, selections, memories, strict=True):
        if selection.numbers and (not plan.only_failed or selection.has_unfinished(file, memory.earlier)):
            return
    raise refuse_empty(plan)
