"""`POST /admin/plans`: a plan of the command line runs here, and its events go back as lines."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from attrs import fields
from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from ..errors import BadInput, NotAllowed
from ..executors.dispatch import dispatch
from ..executors.events import Progress
from ..executors.keys import key_name
from ..executors.ledger import Actor
from ..planner.codec import load_plan
from ..planner.fields import spec_of
from .answer import FIRST_EVENT_GRACE_S, Frames, Stream
from .body import AnyRequest, json_object
from .server import Server
from .wire import error_line, event_line

if TYPE_CHECKING:
    from ..executors.events import Events
    from ..planner.plan_union import CommandPlan


def admin_routes(server: Server) -> list[HTTPRouteHandler]:
    """The administration endpoint of a server."""

    @post("/admin/plans", status_code=200)
    async def run_plan(request: AnyRequest) -> ASGIApp:
        raw, dry_run, secrets = plan_call(await json_object(request))
        plan = load_plan(raw)
        check_may_travel(plan)
        return Stream(
            frames=_lines(
                dispatch(plan, server.dry() if dry_run else server.ctx, actor=_actor(request, server, secrets))
            ),
            media_type="application/x-ndjson",
            fault=error_line,
            log=server.log_fault,
            detailed=True,
        )

    return [run_plan]


def plan_call(body: dict[str, Any]) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
    """The raw plan, `dry_run`, and the values of the plan that must not be kept (`secrets`).

    Raises BadInput; this endpoint is closed, unlike OpenAI's.
    """
    unknown = sorted(set(body) - {"plan", "dry_run", "secrets"})
    if unknown:
        raise BadInput(f"unknown field `{unknown[0]}`", hint='send `{"plan": …, "dry_run": false}`', param=unknown[0])
    plan, dry_run = body.get("plan"), body.get("dry_run", False)
    if not isinstance(plan, dict):
        raise BadInput("`plan` must be a plan", hint='send `{"plan": …, "dry_run": false}`', param="plan")
    if not isinstance(dry_run, bool):
        raise BadInput("`dry_run` must be true or false", param="dry_run")
    secrets = body.get("secrets", [])
    if not isinstance(secrets, list) or not all(isinstance(secret, str) and secret for secret in secrets):
        raise BadInput("`secrets` must be a list of texts", param="secrets")
    return plan, dry_run, tuple(secrets)


def check_may_travel(plan: CommandPlan) -> None:
    """Raise NotAllowed for a plan that belongs to the client's machine."""
    if not plan.on_server:
        raise NotAllowed(f"`{plan.command}` does not run on a server", hint="run it where it belongs, from a shell")
    for attribute in fields(type(plan)):
        if spec_of(attribute).client_path and getattr(plan, attribute.name) is not None:
            raise NotAllowed(f"`{attribute.name}` names a file of the client's machine", param=f"$.{attribute.name}")


def _actor(request: AnyRequest, server: Server, secrets: tuple[str, ...]) -> Actor:
    """Who asks, for the ledger: the key's name where one was shown; the guard has checked it."""
    _, _, key = request.headers.get("authorization", "").partition(" ")
    name = key_name(server.ctx.settings.state_dir, key.strip()) if key else None
    return Actor(door="http", key=name, secrets=secrets)


async def _lines(events: Events) -> Frames:
    """The events as lines. Early progress waits for what follows it: a fault right behind it keeps its own status."""
    clock = asyncio.get_running_loop().time
    began = clock()
    held = b""
    async with aclosing(events) as running:  # type: ignore[type-var]
        async for event in running:
            held += event_line(event)
            if isinstance(event, Progress) and clock() - began < FIRST_EVENT_GRACE_S:
                continue
            yield held
            held = b""
