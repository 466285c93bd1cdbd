"""`localllm explain`: a plan through all its doors, and what it would do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..errors import InvalidPlan, LocalLLMError, Unsupported, UsageError
from ..planner.codec import dump_plan, load_plan
from ..planner.identity import plan_id
from ..planner.plans import COMMANDS
from ..planner.report import Facts
from .events import Result
from .preview import previewed
from .threads import in_daemon_thread

if TYPE_CHECKING:
    from ..planner.files.saved import SavedPlan
    from ..planner.plans.inspect import Explain
    from .context import Context
    from .events import Events


def preview_explain(plan: Explain, _ctx: Context) -> Facts:
    """Explaining reads, whatever the explained plan would do."""
    return Facts(effects=("read",), resolved={"plans": len(_plans(plan))})


@previewed(preview_explain)
async def explain(plan: Explain, ctx: Context) -> Events:
    """Each plan that the target names: its id, command line, HTTP request, Python, and report."""
    explained = await in_daemon_thread(_explain_all, plan, ctx)
    yield Result(data={"plans": explained})


def _explain_all(plan: Explain, ctx: Context) -> list[dict[str, Any]]:
    return [_unsettled(each) if each.shown is None else _explained(each.name, each.shown, ctx) for each in _plans(plan)]


def _plans(plan: Explain) -> list[SavedPlan]:
    """Each plan that is meant."""
    from ..planner.files.saved import SavedPlan, read_saved

    if _is_argv(plan.target):
        from ..planner.cli import parse

        invocation = parse(plan.target)
        if invocation.kind != "plan":
            raise UsageError("that command line asks for help and means no plan", param="target")
        raw = invocation.raw
        return [SavedPlan(name=str(raw["command"]), template=raw, shown=raw)]
    found = read_saved(plan.target, flags=plan.var, vars_file=plan.vars_file, env=os.environ)
    return [each for saved in found for each in saved.plans]


def _is_argv(target: tuple[str, ...]) -> bool:
    """Whether the target is a command line: its first word is one of ours, or an option. A file goes as `./NAME`."""
    first_words = {command.split(".")[0] for command in COMMANDS}
    return target[0] in first_words or (target[0].startswith("-") and target[0] != "-")


def _unsettled(saved: SavedPlan) -> dict[str, Any]:
    """What can be said of a step whose plan is only known once an earlier one has run."""
    error = InvalidPlan("needs what an earlier step captures")
    return {"name": saved.name, "plan": saved.template, "plan_id": None, "error": error.as_dict()}


def _explained(name: str, raw: dict[str, Any], ctx: Context) -> dict[str, Any]:
    from ..planner.doors import command_line, curl_of, http_request, python_of, short
    from ..planner.spell import argv_of

    try:
        plan = load_plan(raw)
    except LocalLLMError as error:
        return {"name": name, "plan": raw, "plan_id": None, "error": error.as_dict()}
    dumped = dump_plan(plan)
    try:
        argv: list[str] | None = argv_of(short(plan))
        line: str | None = command_line(short(plan))
    except Unsupported:
        argv = line = None
    request = http_request(plan)
    return {
        "name": name,
        "plan": dumped,
        "plan_id": plan_id(dumped),
        "argv": argv,
        "command_line": line,
        "http": None if request is None else {"method": request.method, "path": request.path, "body": request.body},
        "curl": None if request is None else curl_of(request, ctx.settings.server),
        "python": python_of(plan, ctx.settings.server),
        **_report(plan, ctx),
    }


def _report(plan: Any, ctx: Context) -> dict[str, Any]:
    """The report, or the error that a dry run ends with."""
    from .dispatch import preview

    try:
        return {"report": preview(plan, ctx)}
    except LocalLLMError as error:
        return {"report": None, "error": error.as_dict()}
