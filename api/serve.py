"""`localllm serve`: what it would do, and the checks that come before anything heavy is imported."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..errors import BadInput, LocalLLMError
from ..executors.keys import key_is_required
from ..executors.loading import require_profile
from ..executors.preview import previewed
from ..planner.report import Facts
from .listen import bind, check_exposure, find_place, needs_no_resolver
from .recording import check_recording

if TYPE_CHECKING:
    from ..executors.context import Context
    from ..executors.events import Events
    from ..planner.plans.serve import Serve


def preview_serve(plan: Serve, ctx: Context) -> Facts:
    """Where it would listen and what it would load; it binds nothing, so whether the port is free stays unknown."""
    host, port = _host(plan, ctx), _port(plan, ctx)
    settings = ctx.settings
    provenance: dict[str, dict[str, Any]] = {}
    check_recording(plan)
    require_profile(plan.profile or settings.profile)
    for name, value in (("host", host), ("port", port)):
        origin = "plan" if getattr(plan, name) is not None else settings.origins.get(name, "default")
        provenance[name] = {"value": value, "origin": origin}
    warnings: list[str] = []
    unknown = ["whether the port is free"]
    try:
        if needs_no_resolver(host):
            check_exposure(find_place(host, port), key_is_required=_required(ctx), insecure=plan.insecure)
        else:
            unknown.append(f"which address `{host}` means")
    except LocalLLMError as fault:
        warnings.append(f"would fail: {fault.message}")
    loaded = _first_load(plan, ctx)
    told = {
        "record": plan.record,
        "playback": list(plan.playback) or None,
        **{name: loaded.resolved.get(name) for name in ("model_id", "memory")},
    }
    return Facts(
        resolved={
            "host": host,
            "port": port,
            "models_dir": str(settings.models_dir),
            **{name: value for name, value in told.items() if value is not None},
        },
        provenance=loaded.provenance | provenance,
        preconditions=loaded.preconditions,
        unknown=tuple(unknown),
        warnings=(*warnings, *loaded.warnings),
    )


def _first_load(plan: Serve, ctx: Context) -> Facts:
    """What `--model` would load and what it would take."""
    if plan.model is None or plan.backend != "llama" or plan.playback:
        return Facts()
    from ..executors.loading import first_load
    from ..executors.models import preview_load

    return preview_load(first_load(plan), ctx)


@previewed(preview_serve)
async def serve(plan: Serve, ctx: Context) -> Events:
    """Run the server until a signal ends it: records say where it listens and when the model is ready.

    SIGTERM ends in a result (exit 0), SIGINT in Interrupted (130); both after running requests had `drain_s`.
    """
    check_recording(plan)
    require_profile(plan.profile or ctx.settings.profile)
    place = await asyncio.to_thread(find_place, _host(plan, ctx), _port(plan, ctx))
    check_exposure(place, key_is_required=_required(ctx), insecure=plan.insecure)
    sockets = bind(place)
    try:
        from .host import host_server

        async for event in host_server(plan, ctx, place, sockets):
            yield event
    finally:
        for one in sockets:
            one.close()


def _host(plan: Serve, ctx: Context) -> str:
    return ctx.settings.host if plan.host is None else plan.host


def _port(plan: Serve, ctx: Context) -> int:
    port = ctx.settings.port if plan.port is None else plan.port
    if not 0 <= port <= 65535:
        raise BadInput(f"port {port} is not between 0 and 65535", param="port")
    return port


def _required(ctx: Context) -> bool:
    return key_is_required(ctx.settings.state_dir)
