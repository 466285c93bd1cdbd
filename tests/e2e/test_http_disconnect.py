"""A client that leaves frees what it held, in every phase."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.append(str(Path(__file__).parent.parent / "fixtures"))
from scripted import Scripted, scripted

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 1000}
QUICK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """A server with one slot that answers slowly and without end."""
    options = {"step_delay_s": 0.01, "endless": True}
    with scripted(tmp_path_factory.mktemp("slow"), options, n_slots=1) as one:
        with one.client() as http:
            http.post(CHAT, json=QUICK)
        yield one


def assert_free(server: Scripted) -> None:
    """The backend stands still, the slot is idle, and the next request begins at once."""
    assert server.still()
    assert server.status()["requests_running"] == 0
    began = time.monotonic()
    with server.client() as http:
        assert http.post(CHAT, json=QUICK).status_code == 200
    assert time.monotonic() - began < 1


def test_leaving_a_stream_stops_the_answer(server: Scripted) -> None:
    with server.client() as http, http.stream("POST", CHAT, json=ASK | {"stream": True}) as answer:
        lines = answer.iter_lines()
        for _ in range(6):
            next(lines)

    assert_free(server)


def test_leaving_before_a_whole_answer_stops_it(server: Scripted) -> None:
    with server.client(timeout=0.5) as http, pytest.raises(httpx.ReadTimeout):
        http.post(CHAT, json=ASK)

    assert_free(server)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_the_queue_means_that_nothing_is_computed(server: Scripted, stream: bool) -> None:
    with server.client() as http, http.stream("POST", CHAT, json=ASK | {"stream": True}) as running:
        lines = running.iter_lines()  # closes the stream when it is collected
        next(lines)
        with server.client(timeout=0.4) as impatient, pytest.raises(httpx.ReadTimeout):
            impatient.post(CHAT, json=ASK | {"stream": stream})
        time.sleep(0.1)
        status = server.status()
        left = status["requests_running"] + status["requests_queued"]

    assert left == 1
    assert_free(server)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_in_the_prefill_ends_it(tmp_path: Path, stream: bool) -> None:
    with scripted(tmp_path, {"prefill_delay_s": 3}, n_slots=1) as server:
        with server.client() as http:
            http.post("/admin/plans", json={"plan": {"command": "models.load", "model": "echo"}})
        began = time.monotonic()
        with server.client(timeout=0.5) as http, pytest.raises(httpx.ReadTimeout):
            http.post(CHAT, json=QUICK | {"stream": stream})
        time.sleep(0.1)
        running = server.status()["requests_running"]

        assert running == 0
        assert server.sampled() == 0
        assert time.monotonic() - began < 2.5


def test_cancelling_and_asking_again_at_once_does_no_harm(server: Scripted) -> None:
    for _ in range(15):
        with server.client() as http, http.stream("POST", CHAT, json=ASK | {"stream": True}) as answer:
            next(answer.iter_lines())

    assert_free(server)


def test_eight_clients_that_leave_together_leave_nothing(server: Scripted) -> None:
    def leave() -> None:
        with server.client(timeout=0.6) as http, pytest.raises(httpx.ReadTimeout):
            http.post(CHAT, json=ASK)

    threads = [threading.Thread(target=leave) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert_free(server)
