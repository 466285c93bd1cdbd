"""The report of a dry run: from here alone, or with what a running server knows; and a report saved to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput, ServerUnreachable

if TYPE_CHECKING:
    from ..planner.plan_union import CommandPlan
    from .context import Context

FROM_SERVER = ("effects", "resolved", "unknown", "warnings", "diff")
"""What the server says better, because the plan runs there."""


async def ask_server(plan: CommandPlan, ctx: Context) -> dict[str, Any]:
    """The report with the server's part resolved by the server, which changes nothing for it.

    A plan that runs here anyway is told as offline. The server's run becomes a precondition, and what its own files
    are is left out unless they are the same here. Raises ServerUnreachable where none answers.
    """
    from .client import find_server
    from .dispatch import preview
    from .preconditions import server_precondition

    inner = _inner(plan)
    offline = preview(plan, ctx)
    if inner.where == "local" or not inner.on_server:
        return offline
    server = await find_server(ctx)
    told = await _told(inner, ctx)
    own = {name: each for name, each in offline["provenance"].items() if name.startswith("settings.")}
    others = {name: each for name, each in told["provenance"].items() if not name.startswith("settings.")}
    preconditions = [
        each for each in offline["preconditions"] if each["kind"] != "file" or each in told["preconditions"]
    ]
    return {
        **offline,
        **{name: told[name] for name in FROM_SERVER if name in told},
        "where": "server",
        "depth": "server",
        "provenance": {**others, **own},
        "preconditions": [*preconditions, server_precondition(server.instance)],
    }


def save_report(report: dict[str, Any], file: str) -> None:
    """Write the report as one step, so that no reader sees half of it. Raises BadInput where that cannot be done."""
    from .state import write_atomically

    path = Path(file)
    try:
        write_atomically(path, (json.dumps(report, indent=2) + "\n").encode(), mode=None if path.exists() else 0o644)
    except OSError as error:
        raise BadInput(f"`{file}` cannot be written: {error.strerror or error}", param="--out") from None


def _inner(plan: CommandPlan) -> CommandPlan:
    """The plan that is meant: what a saved file holds stands for itself."""
    if plan.command != "apply":
        return plan
    from .apply import read_saved

    return read_saved(plan.file).plan


async def _told(plan: CommandPlan, ctx: Context) -> dict[str, Any]:
    from .client import send_plan
    from .events import Result

    async for event in send_plan(plan, ctx, dry_run=True):
        if isinstance(event, Result) and "plan_id" in event.data:
            return event.data
    raise ServerUnreachable(f"the server at `{ctx.settings.server}` gave no report")
