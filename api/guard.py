"""Who may speak to the server: checked for every request, before routing and before a byte of the body is read.

A web page in the user's own browser can reach a loopback port. So the `Host` must be one of ours (a rebound DNS name
is not), a foreign `Origin` may not post, and bodies must be JSON, which a page can't send without a preflight.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen
from litestar.enums import ScopeType

from ..errors import NotAllowed, ShuttingDown, Unauthorized
from .errors import as_error, error_response

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ready"})
"""What answers without a key, and while the server shuts down."""

ADMIN_PATHS = frozenset({"/admin/plans"})
"""What `allowed_origins = ["*"]` does not open: here an origin must be named."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
CLIENT_GONE = 499
EXPOSED_HEADERS = b"retry-after, x-request-id"
METHODS = b"GET, POST, OPTIONS"


@frozen(kw_only=True)
class Policy:
    """The rules of one server.

    `hosts` are the names it answers to; `any_address` lets every IP address in too (the server listens on all of the
    machine's): an address can't be rebound, only a name can. `origins` are the pages that may use it, `*` for all.
    """

    hosts: frozenset[str] = LOOPBACK_NAMES
    any_address: bool = False
    origins: frozenset[str] = frozenset()
    key_is_required: Callable[[], bool] = lambda: False
    key_is_valid: Callable[[str], bool] = lambda _key: False


@define
class Traffic:
    """What runs right now; `closing` is the answer to new requests once the server stops taking them."""

    running: int = 0
    closing: ShuttingDown | None = None
    idle: asyncio.Event = field(factory=asyncio.Event)
    """Set when the last running request has ended."""

    def enter(self) -> None:
        """A request begins."""
        self.running += 1
        self.idle.clear()

    def leave(self) -> None:
        """A request has ended, however it did."""
        self.running -= 1
        if not self.running:
            self.idle.set()


def host_is_known(policy: Policy, header: str | None) -> bool:
    """Whether the `Host` header names this server."""
    name = host_name(header or "")
    if name is None:
        return False
    if name in policy.hosts:
        return True
    return policy.any_address and _is_address(name)


def host_name(header: str) -> str | None:
    """The name in `name`, `name:port`, `[::1]` or `[::1]:port`, in lower case without a trailing dot."""
    if header.startswith("["):
        name, bracket, port = header[1:].partition("]")
        if not bracket or (port and not _is_port(port.removeprefix(":"))):
            return None
    else:
        name, colon, port = header.partition(":")
        if colon and not _is_port(port):
            return None
    return name.lower().removesuffix(".") or None


def origin_is_allowed(policy: Policy, origin: str, host: str, path: str) -> bool:
    """Whether a page of that origin may use the path: the server's own pages, and those the settings name."""
    if origin.lower() == f"http://{host.lower()}" or origin in policy.origins:
        return True
    return "*" in policy.origins and path not in ADMIN_PATHS


def check_key(policy: Policy, authorization: str | None) -> None:
    """Raise Unauthorized unless no key is needed or the right one is there."""
    if not policy.key_is_required():
        return
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthorized("an API key is required", hint="send `Authorization: Bearer KEY`")
    if not policy.key_is_valid(key.strip()):
        raise Unauthorized("the API key is wrong")


class Guard:
    """The outermost ASGI layer: refuses, adds the headers that pages need, counts and records each request."""

    def __init__(
        self, app: ASGIApp, policy: Policy, traffic: Traffic, record: Callable[[dict[str, Any]], None]
    ) -> None:
        self.app = app
        self.policy = policy
        self.traffic = traffic
        self.record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it here."""
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        visit = _Visit(send)
        self.traffic.enter()
        try:
            await self._answer(scope, receive, visit)
        finally:
            self.traffic.leave()
            self._record(scope, visit)

    async def _answer(self, scope: Any, receive: Receive, visit: _Visit) -> None:
        try:
            if await self._answered_preflight(scope, visit):
                return
            if scope["path"] not in OPEN_PATHS:
                if self.traffic.closing is not None:
                    raise self.traffic.closing
                check_key(self.policy, _headers(scope).get("authorization"))
        except Exception as fault:
            # the keys file may be damaged: that must close the door, in the usual shape
            await error_response(as_error(fault))(scope, receive, visit.send)
            return
        await self.app(scope, receive, visit.send)

    async def _answered_preflight(self, scope: Any, visit: _Visit) -> bool:
        """Judge where the request comes from; whether it was a browser's question that is answered now."""
        headers = _headers(scope)
        host, origin = headers.get("host"), headers.get("origin")
        if not host_is_known(self.policy, host):
            raise NotAllowed("this server does not answer to that host name", hint="see the setting `allowed_hosts`")
        if origin is None:
            return False
        allowed = origin_is_allowed(self.policy, origin, host or "", scope["path"])
        if allowed:
            visit.allow(origin)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _preflight(visit, allowed, headers)
            return True
        if not allowed and scope["method"] not in ("GET", "HEAD"):
            raise NotAllowed("pages of that origin may not post here", hint="see the setting `allowed_origins`")
        return False

    def _record(self, scope: Any, visit: _Visit) -> None:
        entry = {
            "method": scope["method"],
            "path": scope["path"],
            "status": visit.status if visit.complete else CLIENT_GONE,
            "duration_ms": round((time.perf_counter() - visit.began) * 1000, 3),
            "request_id": visit.request_id,
            "client": (scope.get("client") or ("", 0))[0],
        }
        self.record(entry)


@define
class _Visit:
    """One request's way out: notes what was sent, and adds the headers for an allowed page."""

    _send: Send
    request_id: str = field(factory=lambda: secrets.token_hex(8))
    began: float = field(factory=time.perf_counter)
    status: int = 0
    complete: bool = False
    _extra: list[tuple[bytes, bytes]] = field(factory=list)

    def allow(self, origin: str) -> None:
        """Let the page read the answer. Never `*`, and never with credentials: keys travel in a header."""
        self._extra = [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED_HEADERS),
            (b"vary", b"Origin"),
        ]

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = (b"x-request-id", self.request_id.encode())
            message["headers"] = [*message["headers"], own, *self._extra]
        elif message["type"] == "http.response.body" and not message.get("more_body"):
            self.complete = True
        await self._send(message)


async def _preflight(visit: _Visit, allowed: bool, headers: Mapping[str, str]) -> None:
    """Answer a browser's question; a foreign page gets an answer without the headers that it looks for."""
    extra: list[tuple[bytes, bytes]] = []
    if allowed:
        wanted = headers.get("access-control-request-headers", "authorization, content-type")
        extra = [
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", wanted.encode("latin-1")),
            (b"access-control-max-age", b"600"),
        ]
    await visit.send({"type": "http.response.start", "status": 204, "headers": extra})
    await visit.send({"type": "http.response.body", "body": b"", "more_body": False})


def _headers(scope: Any) -> dict[str, str]:
    """Header names to values; a name that came twice counts as absent, since two readers could pick different ones."""
    found: dict[str, str] = {}
    twice: set[str] = set()
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1")
        if name in found:
            twice.add(name)
        found[name] = raw_value.decode("latin-1")
    for name in twice & {"host", "authorization"}:
        del found[name]
    return found


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
