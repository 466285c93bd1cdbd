"""Readiness while a model loads, and the end of the server in every phase."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures.waiting import wait_until

sys.path.append(str(Path(__file__).parent.parent / "fixtures"))
from scripted import Scripted, scripted

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "one two three"}]}
EXIT = {signal.SIGTERM: 0, signal.SIGINT: 130}
SLOW = {"step_delay_s": 0.05, "endless": True}
"""An answer of some minutes."""
PATIENT = {"drain_s": 600}
"""A server that would wait for its requests for longer than any test lasts."""


def wait_until_ready(http: httpx.Client) -> None:
    wait_until(lambda: http.get("/ready").status_code == 200, "the load")


def assert_gone(server: Scripted) -> None:
    """No trace is left: no traceback, no instance file, no process of its group, and the port is free."""
    assert "Traceback" not in server.output()
    assert not list(server.log_path.parent.rglob("server.json"))
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", server.port))
    alive = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [row.split() for row in alive.splitlines()]
    assert not [row for row in rows if row[0] == str(server.process.pid) and not row[1].startswith("Z")]


def test_health_answers_while_a_model_loads_and_readiness_waits_for_it(tmp_path: Path) -> None:
    with scripted(tmp_path, {"load_delay_s": 600}, model="m") as server, server.client() as http:
        health = [http.get("/health").status_code for _ in range(10)]
        early = http.get("/ready")

    assert health == [200] * 10
    assert early.status_code == 503
    assert early.json()["status"] == "loading"
    assert early.json()["error"]["code"] == "model_loading"
    assert "retry-after" in early.headers


def test_health_answers_while_a_worker_is_in_a_long_step(tmp_path: Path) -> None:
    with scripted(tmp_path, {"load_delay_s": 0.5}, model="m") as server, server.client() as http:
        wait_until_ready(http)
        worker = server.status()["pid"]
        answer: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answer.append(ask(server)))
        os.kill(worker, signal.SIGSTOP)
        thread.start()
        wait_until(lambda: server.status()["requests_running"] == 1, "the request")
        health = [http.get("/health").status_code for _ in range(10)]
        os.kill(worker, signal.SIGCONT)
        thread.join(100)

    assert health == [200] * 10
    assert answer[0].status_code == 200
    assert answer[0].json()["model"] == "m"


def test_a_request_while_the_model_loads_waits_for_it(tmp_path: Path) -> None:
    with scripted(tmp_path, {"load_delay_s": 1.0}, model="m") as server, server.client() as http:
        assert http.get("/ready").status_code == 503
        answer = http.post(CHAT, json=ASK)

    assert answer.status_code == 200


def test_the_headers_of_a_stream_do_not_wait_for_a_load(tmp_path: Path) -> None:
    settings = {"keep_alive_s": "600"}  # they would wait for so long for a request to be checked
    with (
        scripted(tmp_path, {"load_delay_s": 600}, settings=settings) as server,
        server.client() as http,
        http.stream("POST", CHAT, json=ASK | {"stream": True}) as answer,
    ):
        told = server.status()

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert told["state"] == "loading"
    assert told["requests_queued"] == 1


def test_a_failed_load_is_told_by_readiness_and_the_server_stays(tmp_path: Path) -> None:
    with scripted(tmp_path, {"fail_load": "it is broken"}, model="m") as server, server.client() as http:
        wait_until(lambda: http.get("/ready").json()["status"] == "failed", "the end of the load")
        ready = http.get("/ready")
        chat = http.post(CHAT, json=ASK)

        assert ready.status_code == 503
        assert "it is broken" in ready.json()["error"]["message"]
        assert chat.status_code == 500
        assert chat.json()["error"]["code"] == "model_load_failed"
        assert http.get("/health").status_code == 200


@pytest.mark.parametrize("number", EXIT)
def test_an_idle_server_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with scripted(tmp_path, {}, **PATIENT) as server:
        ask(server)

        assert server.end(number) == EXIT[number]
        assert_gone(server)


@pytest.mark.parametrize("number", EXIT)
def test_a_loading_server_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with scripted(tmp_path, {"load_delay_s": 600}, model="m", **PATIENT) as server:
        wait_until(lambda: server.status()["pid"], "the worker's start")

        assert server.end(number) == EXIT[number]
        assert_gone(server)


def stream_lines(server: Scripted, body: dict[str, Any], into: list[str]) -> threading.Thread:
    """Read a stream in a thread; returns once its first token is there."""

    def read() -> None:
        with server.client() as http, http.stream("POST", CHAT, json=body | {"stream": True}) as answer:
            into.extend(line for line in answer.iter_lines() if line)

    begun = threading.Thread(target=read)
    begun.start()
    wait_until(server.sampled, "the first token")
    return begun


def ask(server: Scripted) -> httpx.Response:
    with server.client() as http:
        return http.post(CHAT, json=ASK)


def signal_and_wait(server: Scripted, http: httpx.Client, number: signal.Signals) -> None:
    """Send the signal, and return once the server has heeded it."""
    server.process.send_signal(number)
    wait_until(lambda: http.get("/ready").json().get("error", {}).get("code") == "shutting_down", "the signal")


def test_a_running_stream_is_drained_while_new_work_is_refused(tmp_path: Path) -> None:
    with scripted(tmp_path, SLOW, **PATIENT) as server, server.client() as http:
        lines: list[str] = []
        reader = stream_lines(server, ASK | {"max_tokens": 50}, lines)
        worker = server.status()["pid"]
        os.kill(worker, signal.SIGSTOP)  # the answer is certain to be unfinished
        signal_and_wait(server, http, signal.SIGTERM)
        refused = http.post(CHAT, json=ASK)
        ready = http.get("/ready")
        os.kill(worker, signal.SIGCONT)
        reader.join(100)

        assert server.process.wait(100) == 0
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert "retry-after" in refused.headers
        assert ready.status_code == 503
        assert lines[-1] == "data: [DONE]"
        assert_gone(server)


@pytest.mark.parametrize("number", EXIT)
def test_what_outlasts_the_grace_time_ends_with_an_error_frame(tmp_path: Path, number: signal.Signals) -> None:
    with scripted(tmp_path, SLOW, drain_s=0.3, n_slots=1) as server:
        lines: list[str] = []
        queued: list[httpx.Response] = []
        reader = stream_lines(server, ASK, lines)
        waiter = threading.Thread(target=lambda: queued.append(ask(server)))
        waiter.start()
        wait_until(lambda: server.status()["requests_queued"] == 1, "the second request")

        assert server.end(number) == EXIT[number]
        reader.join(100)
        waiter.join(100)
        assert "error" in json.loads(lines[-1].removeprefix("data: "))
        assert queued[0].status_code == 503
        assert_gone(server)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with scripted(tmp_path, SLOW, **PATIENT) as server, server.client() as http:
        lines: list[str] = []
        reader = stream_lines(server, ASK, lines)
        signal_and_wait(server, http, signal.SIGINT)
        assert server.process.poll() is None

        assert server.end(signal.SIGINT) == 130
        reader.join(100)
        assert_gone(server)


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces of processes are Linux's")
def test_as_process_1_of_a_container_it_heeds_sigterm(clean_env: dict[str, str]) -> None:
    """The kernel gives process 1 no default for a signal: what has no handler is ignored."""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    serve = [sys.executable, "-m", "localllm", "serve", "--backend", "echo", "--port", "0", "--output", "json"]
    if subprocess.run([*alone, "true"], check=False).returncode != 0:
        pytest.skip("this machine lets its users make no namespaces")
    with subprocess.Popen([*alone, *serve], env=clean_env, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        assert "http://127.0.0.1:" in outer.stdout.readline()
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        (inner,) = [int(pid) for pid, parent in map(str.split, table.splitlines()) if int(parent) == outer.pid]
        status = Path(f"/proc/{inner}/status").read_text()
        os.kill(inner, signal.SIGTERM)

        assert outer.wait(timeout=100) == 0
        assert "\t1\n" in next(line + "\n" for line in status.splitlines() if line.startswith("NSpid:"))
