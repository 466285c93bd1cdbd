"""The client meets real HTTP servers: ours, strangers, broken ones, none."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from attrs import define, field
from localllm.errors import (
    BadInput,
    ModelNotFound,
    QueueFull,
    RuntimeFailed,
    ServerUnreachable,
    Unauthorized,
    WorkerDied,
)
from localllm.executors import client
from localllm.executors.client import find_server
from localllm.executors.context import Context
from localllm.executors.events import Event, Progress, Result

MakeContext = Callable[..., Context]
NOBODY = "http://127.0.0.1:9"
HEALTH = {"status": "ok", "server": "localllm", "instance": "i1", "version": "9.9"}


@define
class Stub:
    """A small HTTP server with scripted answers; keeps what it was asked."""

    health: Any = field(factory=lambda: HEALTH)
    status: int = 200
    body: bytes = b""
    asked: list[tuple[str, dict[str, str], bytes]] = field(factory=list)
    url: str = ""


@pytest.fixture
def stub() -> Iterator[Stub]:
    script = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.asked.append((self.path, dict(self.headers), b""))
            self._answer(200, script.health if isinstance(script.health, bytes) else json.dumps(script.health).encode())

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            script.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}, content))
            self._answer(script.status, script.body)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield script
    server.shutdown()
    thread.join()
    server.server_close()


def lines(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


RESULT = {"event": "result", "ok": True, "data": {"unloaded": ["a"]}}
UNLOAD = {"command": "models.unload", "model": "a"}


def test_a_plan_goes_there_and_its_events_come_back(
    stub: Stub, run_plan: Callable[..., list[Event]], make_context: MakeContext
) -> None:
    stub.body = lines({"event": "progress", "stage": "unloading"}, RESULT)

    events = run_plan(UNLOAD, make_context(flags={"server": stub.url}))

    assert events == [Progress(stage="unloading"), Result(data={"unloaded": ["a"]})]
    path, _, content = stub.asked[-1]
    assert path == "/admin/plans"
    assert json.loads(content) == {
        "plan": {"command": "models.unload", "model": "a", "all": False, "force": False},
        "dry_run": False,
    }


def test_the_key_goes_to_our_server_only(
    stub: Stub, run_plan: Callable[..., list[Event]], make_context: MakeContext
) -> None:
    stub.body = lines(RESULT)
    ctx = make_context(flags={"server": stub.url}, env={"LOCALLLM_API_KEY": "llm_sesame"})
    run_plan(UNLOAD, ctx)
    probe, post = stub.asked
    assert "sesame" not in repr(probe)
    assert post[1]["authorization"] == "Bearer llm_sesame"

    stub.asked.clear()
    stub.health = {"status": "ok"}
    with pytest.raises(ServerUnreachable):
        run_plan(UNLOAD, ctx)
    assert "sesame" not in repr(stub.asked)


@pytest.mark.parametrize("health", [b"<html>", b"[]", b"null", {"server": "nginx"}, b"\xff"], ids=repr)
def test_a_stranger_on_the_port_is_not_our_server(stub: Stub, make_context: MakeContext, health: Any) -> None:
    stub.health = health

    with pytest.raises(ServerUnreachable, match="not a localllm server"):
        asyncio.run(find_server(make_context(flags={"server": stub.url})))


def test_our_server_says_who_it_is(stub: Stub, make_context: MakeContext) -> None:
    found = asyncio.run(find_server(make_context(flags={"server": stub.url})))

    assert (found.instance, found.version) == ("i1", "9.9")


def test_no_server_is_exit_7(run_plan: Callable[..., list[Event]]) -> None:
    with pytest.raises(ServerUnreachable) as caught:
        run_plan(UNLOAD)

    assert caught.value.exit_code == 7
    assert "serve" in str(caught.value.hint)


def test_status_without_a_server_is_an_answer(run_result: Callable[..., Result]) -> None:
    done = run_result({"command": "status"})

    assert done.ok is False
    assert done.data["running"] is False


CHAT = {"command": "chat", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of something that takes connections and never answers; the probe gives up soon."""
    monkeypatch.setattr(client, "PROBE_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("raw", [CHAT, {"command": "bench.latency"}, {"command": "status"}, UNLOAD], ids=str)
def test_a_server_that_is_silent_is_an_error_and_nothing_is_loaded_here(
    silent: str, run_plan: Callable[..., list[Event]], make_context: MakeContext, raw: dict[str, Any]
) -> None:
    ctx = make_context(backend="echo", flags={"server": silent})

    with pytest.raises(ServerUnreachable, match="listens") as caught:
        run_plan(raw, ctx)

    assert caught.value.exit_code == 7
    assert caught.value.data["found"] == "silence"
    assert "--server" in str(caught.value.hint)
    assert ctx._runtime is None


def test_a_connection_that_is_dropped_is_not_taken_for_no_server(make_context: MakeContext) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drop() -> None:
            for _ in range(2):  # the look whether anything listens, then the request
                listener.accept()[0].close()

        thread = threading.Thread(target=drop)
        thread.start()
        ctx = make_context(flags={"server": f"http://127.0.0.1:{listener.getsockname()[1]}"})
        with pytest.raises(ServerUnreachable) as caught:
            asyncio.run(find_server(ctx))
        thread.join()

    assert caught.value.data["found"] == "silence"


def test_a_stranger_on_the_port_is_no_reason_to_answer_here(
    stub: Stub, run_plan: Callable[..., list[Event]], make_context: MakeContext
) -> None:
    stub.health = {"server": "nginx"}

    with pytest.raises(ServerUnreachable, match="not a localllm server"):
        run_plan(CHAT, make_context(backend="echo", flags={"server": stub.url}))
    with pytest.raises(ServerUnreachable, match="not a localllm server"):
        run_plan({"command": "bench.latency"}, make_context(backend="echo", flags={"server": stub.url}))


@pytest.mark.parametrize("server", [NOBODY, "http://127.0.0.2:9", "http://no-such-host.invalid"])
def test_where_nothing_listens_the_answer_comes_from_here_and_that_is_said(
    run_plan: Callable[..., list[Event]], make_context: MakeContext, server: str
) -> None:
    first, *_, last = run_plan(CHAT, make_context(backend="echo", flags={"server": server}))

    assert isinstance(first, Progress)
    assert first.stage == "note"
    assert server in first.message
    assert isinstance(last, Result)
    assert last.data["object"] == "chat.completion"


def test_a_proxy_of_the_environment_does_not_swallow_loopback(
    stub: Stub, make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")

    assert asyncio.run(find_server(make_context(flags={"server": stub.url}))).instance == "i1"


@pytest.mark.parametrize(
    ("status", "error", "cls"),
    [
        (404, {"code": "model_not_found", "message": "no `a`", "data": {"available": ["b"]}}, ModelNotFound),
        (429, {"code": "queue_full", "message": "full", "data": {"retry_after_s": 3}}, QueueFull),
        (401, {"code": None, "message": "no key"}, Unauthorized),
        (400, {"message": "bad"}, BadInput),
        (502, {}, RuntimeFailed),
    ],
)
def test_the_servers_error_keeps_its_class(
    stub: Stub,
    run_plan: Callable[..., list[Event]],
    make_context: MakeContext,
    status: int,
    error: dict[str, Any],
    cls: type[Exception],
) -> None:
    stub.status, stub.body = status, json.dumps({"error": error}).encode()

    with pytest.raises(cls) as caught:
        run_plan(UNLOAD, make_context(flags={"server": stub.url}))

    assert type(caught.value) is cls
    assert str(caught.value)


def test_a_proxys_error_page_is_an_error_in_words(
    stub: Stub, run_plan: Callable[..., list[Event]], make_context: MakeContext
) -> None:
    stub.status, stub.body = 502, b"<html>bad gateway</html>"

    with pytest.raises(RuntimeFailed, match="502"):
        run_plan(UNLOAD, make_context(flags={"server": stub.url}))


def test_an_error_after_the_first_event_is_raised(
    stub: Stub, run_plan: Callable[..., list[Event]], make_context: MakeContext
) -> None:
    stub.body = lines(
        {"event": "progress", "stage": "a"}, {"event": "error", "error": {"code": "worker_died", "message": "died"}}
    )

    with pytest.raises(WorkerDied):
        run_plan(UNLOAD, make_context(flags={"server": stub.url}))


@pytest.mark.parametrize("body", [b"", lines({"event": "progress", "stage": "a"})], ids=["nothing", "no result"])
def test_an_answer_without_its_end_is_an_error(
    stub: Stub, run_plan: Callable[..., list[Event]], make_context: MakeContext, body: bytes
) -> None:
    stub.body = body

    with pytest.raises(ServerUnreachable, match="before the result"):
        run_plan(UNLOAD, make_context(flags={"server": stub.url}))


@pytest.mark.parametrize("body", [b"<html>\n", b"5\n", lines({"event": "party"})], ids=repr)
def test_a_line_that_is_no_event_is_an_error(
    stub: Stub, run_plan: Callable[..., list[Event]], make_context: MakeContext, body: bytes
) -> None:
    stub.body = body

    with pytest.raises(RuntimeFailed, match="no event"):
        run_plan(UNLOAD, make_context(flags={"server": stub.url}))


def test_a_dry_run_opens_no_socket(stub: Stub, run_result: Callable[..., Result], make_context: MakeContext) -> None:
    for raw in (UNLOAD, {"command": "status"}, {"command": "chat", "messages": [{"role": "user", "content": "a"}]}):
        report = run_result(raw, make_context(flags={"server": stub.url}, dry_run=True)).data
        assert report["unknown"]

    assert stub.asked == []
