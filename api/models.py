"""`GET /v1/models`, `GET /v1/models/{id}`, and what orchestrators ask: `GET /health`, `GET /ready`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from litestar import HttpMethod, get, route
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from ..errors import LocalLLMError, ModelLoading, ModelNotFound
from ..executors.client import MARKER
from ..executors.loading import DEFAULT_NAME, ECHO_MODEL, default_name, refuse_unloadable, resolve, scan_models
from ..executors.version import localllm_version
from .errors import error_headers, error_object, json_response
from .server import Server

if TYPE_CHECKING:
    from ..executors.context import Context
    from ..executors.loading import Target
    from ..executors.playback import Playback

OWNER = "localllm"
PROBES = [HttpMethod.GET, HttpMethod.HEAD]


def model_routes(server: Server) -> list[HTTPRouteHandler]:
    """The endpoints that list and show models."""

    @get("/v1/models")
    async def list_models() -> ASGIApp:
        rows = await asyncio.to_thread(model_rows, server.ctx)
        return json_response({"object": "list", "data": rows})

    @get("/v1/models/{model_id:path}")
    async def show_model(model_id: str) -> ASGIApp:
        # the framework's path parameters begin with a slash
        name = model_id.removeprefix("/")
        if server.ctx.playback is not None:
            return json_response(_played_row(server.ctx.playback, name))
        target = await asyncio.to_thread(_target, server.ctx, name)
        return json_response(_row(target.model_id, 0 if target.entry is None else int(target.entry.mtime)))

    return [list_models, show_model]


def probe_routes(server: Server) -> list[HTTPRouteHandler]:
    """The endpoints that orchestrators poll; they touch neither disk nor worker."""
    health = {"status": "ok", "server": MARKER, "instance": server.ctx.instance, "version": localllm_version()}

    @route("/health", http_method=PROBES)
    async def show_health() -> ASGIApp:
        return json_response(health)

    @route("/ready", http_method=PROBES)
    async def show_readiness() -> ASGIApp:
        return readiness_response(server)

    return [show_health, show_readiness]


def readiness_response(server: Server) -> ASGIApp:
    """200 once the model named at the start is loaded; else 503 with the state and the reason."""
    ready = server.readiness
    body: dict[str, Any] = {"status": ready.state, "model": ready.model}
    fault: LocalLLMError | None = ready.fault
    if server.traffic.closing is not None:
        body["status"], fault = "closing", server.traffic.closing
    elif ready.state == "loading":
        body["stage"], body["fraction"] = ready.stage, ready.fraction
        fault = ModelLoading(f"model `{ready.model}` is being loaded")
    elif ready.state == "ready":
        return json_response(body)
    assert fault is not None
    return json_response({**body, **error_object(fault)}, status_code=503, headers=error_headers(fault))


def model_rows(ctx: Context) -> list[dict[str, Any]]:
    """Every model that a request may name, as OpenAI lists them; blocking."""
    if ctx.playback is not None:
        return [_row(name, created) for name, created in ctx.playback.models.items()]
    if ctx.backend == "echo":
        loaded = [model.model_id for model in ctx.runtime.loaded()]
        return [_row(name, 0) for name in dict.fromkeys([ctx.default_model_id or ECHO_MODEL, *loaded])]
    return [_row(entry.id, int(entry.mtime)) for entry in scan_models(ctx).entries if entry.loadable]


def _played_row(playback: Playback, name: str) -> dict[str, Any]:
    if name not in playback.models:
        available = sorted(playback.models)
        raise ModelNotFound(f"no request to `{name}` is recorded", param="model", available=available)
    return _row(name, playback.models[name])


def _target(ctx: Context, name: str) -> Target:
    target = resolve(ctx, default_name(ctx) if name == DEFAULT_NAME else name)
    if target.entry is not None:
        refuse_unloadable(target.entry)
    return target


def _row(model_id: str, created: int) -> dict[str, Any]:
    return {"id": model_id, "object": "model", "created": created, "owned_by": OWNER}
