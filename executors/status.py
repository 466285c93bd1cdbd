"""`localllm status`: the running server, its loaded models and their memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..errors import ModelNotFound
from ..planner.report import Facts
from .events import Result
from .preview import ASK_SERVER, previewed

if TYPE_CHECKING:
    from ..planner.plans.status import Status
    from .context import Context
    from .events import Events


LIMITS = ("max_loaded", "memory_budget_bytes", "idle_ttl_s", "queue_size")
"""Settings that decide which models stay loaded and which requests wait; null is no limit."""


def preview_status(_plan: Status, ctx: Context) -> Facts:
    """Only the server knows; a dry run does not ask it, unless it is the server."""
    return Facts(
        effects=("read",),
        resolved={"server": ctx.settings.server},
        unknown=() if ctx.on_server else (f"whether a server answers, and what it has loaded: {ASK_SERVER}",),
    )


@previewed(preview_status)
async def status(_plan: Status, ctx: Context) -> Events:
    """What this server has loaded; runs inside the server only."""
    from attrs import asdict

    from .version import localllm_version

    models = []
    for model in await ctx.runtime.status():
        row: dict[str, Any] = asdict(model)
        # where a file lies on the server is not the client's business
        for place in ("path", "adapter_paths"):
            row["spec"].pop(place)
        models.append(row)
    yield Result(
        data={
            "running": True,
            "server": ctx.settings.server,
            "version": localllm_version(),
            "pid": os.getpid(),
            "instance": ctx.instance,
            "default_model": _default(ctx),
            "limits": {name: getattr(ctx.settings, name) for name in LIMITS},
            "models": models,
        }
    )


def _default(ctx: Context) -> str | None:
    from .loading import default_name

    try:
        return default_name(ctx)
    except ModelNotFound:
        return None


def not_running(ctx: Context, reason: str) -> Result:
    """The result of `status` where no server answers: an answer, not an error."""
    from .instance import live_instance

    hint = "start one with `localllm serve`"
    other = live_instance(ctx.settings.state_dir)
    if other is not None and other.url.rstrip("/") != ctx.settings.server.rstrip("/"):
        hint = f"a server runs at {other.url}: pass it with `--server`"
    return Result(
        ok=False,
        data={"running": False, "server": ctx.settings.server, "reason": reason, "hint": hint, "models": []},
    )
