"""The way to a running server: is it one of ours, and plans sent to it with their events back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from attrs import frozen

from ..errors import BadInput, LocalLLMError, RuntimeFailed, ServerUnreachable, Unauthorized, error_from_dict
from .events import Event, Events, Result, event_from_dict

if TYPE_CHECKING:
    import httpx

    from ..planner.plan_union import CommandPlan
    from .context import Context

MARKER = "localllm"
"""What `GET /health` of our server has under `server`."""

PROBE_TIMEOUT_S = 10.0
"""A port that nobody listens on says so at once; a server on a machine that computes on every core may take seconds."""
CONNECT_TIMEOUT_S = 5.0
START_HINT = "start one with `localllm serve`, or name another with `--server`"
SILENT_HINT = "`localllm status` tells when it answers again; another one is named with `--server`"


@frozen(kw_only=True)
class ServerInfo:
    """A localllm server that answers."""

    url: str
    instance: str
    version: str


async def find_server(ctx: Context) -> ServerInfo:
    """The server at the setting `server`. Raises ServerUnreachable where none of ours answers.

    The error's `data["found"]` is `nothing` where the connection was refused or the name means nothing, `stranger`
    where another program answers, and `silence` where something listens that may be a server too busy to answer.
    """
    async with connect(ctx) as http:
        return await _probe(http, ctx.settings.server)


async def send_plan(plan: CommandPlan, ctx: Context, *, dry_run: bool = False) -> Events:
    """Run the plan on the server and yield its events as they come.

    Errors of the server come back as the class they had there. `status` turns "no server" into its answer, unless
    something listens there that may be one.
    """
    try:
        async with connect(ctx) as http:
            await _probe(http, ctx.settings.server)
            async for event in _post_plan(http, plan, ctx, dry_run):
                yield event
    except ServerUnreachable as error:
        if plan.command != "status" or error.data.get("found") not in ("nothing", "stranger"):
            raise
        from .status import not_running

        yield not_running(ctx, error.message)


async def _require_listener(url: str, host: str, port: int) -> None:
    """Raise ServerUnreachable where nothing listens on this machine.

    A plain connection tells, before the HTTP client is imported, which takes longer than the rest of the command.
    """
    import asyncio

    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _reader, writer = await asyncio.open_connection(host, port)
    except TimeoutError as error:  # what listens has more connections waiting than it could accept
        raise _silent(url, error) from None
    except OSError as error:
        raise _nothing(url, error) from None
    writer.close()


async def _probe(http: httpx.AsyncClient, url: str) -> ServerInfo:
    """Ask `/health` without the key: a stranger on the port must not learn it."""
    import httpx

    try:
        answer = await http.get("/health", timeout=httpx.Timeout(PROBE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S))
        raw = answer.json() if answer.status_code < 500 else {}
    except httpx.HTTPError as error:
        raise (_nothing if _is_refused(error) else _silent)(url, error) from None
    except ValueError:
        raw = {}
    if not isinstance(raw, dict) or raw.get("server") != MARKER:
        raise ServerUnreachable(
            f"what answers at `{url}` is not a localllm server",
            hint="another program holds that port: see `--server`",
            found="stranger",
        )
    return ServerInfo(url=url, instance=str(raw.get("instance", "")), version=str(raw.get("version", "")))


async def _post_plan(http: httpx.AsyncClient, plan: CommandPlan, ctx: Context, dry_run: bool) -> AsyncIterator[Event]:
    import httpx

    from ..planner.codec import dump_plan

    body: dict[str, Any] = {"plan": dump_plan(plan), "dry_run": dry_run}
    if ctx.secrets:
        body["secrets"] = sorted(ctx.secrets)
    url = ctx.settings.server
    try:
        async with http.stream("POST", "/admin/plans", json=body, headers=_key(ctx)) as answer:
            if answer.status_code != 200:
                raise error_of_answer(answer.status_code, await answer.aread())
            ended = False
            async for line in answer.aiter_lines():
                if not line.strip():
                    continue  # a server may send blank lines to keep the connection alive
                event = _event_of(line)
                ended = isinstance(event, Result)
                yield event
            if not ended:
                raise ServerUnreachable(f"the server at `{url}` closed the connection before the result")
    except httpx.HTTPError as error:
        raise _broken(error, url) from None


async def ask_completion(http: httpx.AsyncClient, body: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """One whole answer of `POST /v1/chat/completions`. Raises what the server raised."""
    import httpx

    try:
        answer = await http.post("/v1/chat/completions", json=body, headers=_key(ctx))
    except httpx.HTTPError as error:
        raise _broken(error, ctx.settings.server) from None
    if answer.status_code != 200:
        raise error_of_answer(answer.status_code, answer.content)
    completion: dict[str, Any] = answer.json()
    return completion


def _key(ctx: Context) -> dict[str, str]:
    return {"authorization": f"Bearer {ctx.settings.api_key}"} if ctx.settings.api_key else {}


def _broken(error: httpx.HTTPError, url: str) -> ServerUnreachable:
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return ServerUnreachable(f"the server at `{url}` does not answer in time")
    return ServerUnreachable(f"the connection to `{url}` broke: {_reason(error)}")


def error_of_answer(status: int, body: bytes) -> LocalLLMError:
    """The server's error as an exception of ours, so that its exit code survives the wire.

    Without a code (a proxy between us and the server answered) the status decides.
    """
    fallback = f"the server answered with status {status}"
    try:
        raw = json.loads(body)["error"]
        message = str(raw.get("message") or fallback)
        if raw.get("code"):
            # localllm tells its own client the whole of it beside OpenAI's shape
            return error_from_dict({**raw, "message": message, **(raw.get("localllm") or {})})
    except (ValueError, KeyError, TypeError, AttributeError):
        message = fallback
    if status == 401:
        return Unauthorized(message)
    return BadInput(message) if status < 500 else RuntimeFailed(message)


def _event_of(line: str) -> Event:
    try:
        return event_from_dict(json.loads(line))
    except (ValueError, TypeError, AttributeError) as error:
        raise RuntimeFailed(f"the server sent a line that is no event: {error}") from None


@asynccontextmanager
async def connect(ctx: Context, *, timeout_s: float | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Connections to the setting `server`; without `timeout_s` an answer may take as long as the model needs."""
    url = ctx.settings.server
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"`{url}` is not the address of a server", hint="it looks like `http://127.0.0.1:8484`")
    loopback = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if loopback:
        await _require_listener(url, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
    import httpx

    async with httpx.AsyncClient(
        base_url=url,
        timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
        # a proxy from the environment must not swallow calls to this machine
        trust_env=not loopback,
        follow_redirects=False,
    ) as http:
        yield http


def _is_refused(error: httpx.HTTPError) -> bool:
    """Whether there was no connection at all; one that was not accepted in time or whose TLS failed has another end."""
    import ssl

    import httpx

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return False
        cause = cause.__cause__
    return isinstance(error, httpx.ConnectError)


def _nothing(url: str, error: Exception) -> ServerUnreachable:
    return ServerUnreachable(f"no server answers at `{url}`", hint=START_HINT, reason=_reason(error), found="nothing")


def _silent(url: str, error: Exception) -> ServerUnreachable:
    """Something listens: to take it for no server would load a second copy of its model."""
    return ServerUnreachable(
        f"something listens at `{url}`, but does not answer as a server does",
        hint=SILENT_HINT,
        reason=_reason(error),
        found="silence",
    )


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
