"""The client meets real HTTP servers: ours, strangers, broken ones, none."""

from __future__ import annotations

import asyncio
import json
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
from localllm.executors.client import find_server
from localllm.executors.context import Context
from localllm.executors.events import Event, Progress, Result

MakeContext = Callable[..., Context]
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
