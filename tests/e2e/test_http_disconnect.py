"""A client that leaves frees what it held, in every phase."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fixtures.waiting import wait_until

sys.path.append(str(Path(__file__).parent.parent / "fixtures"))
from scripted import Scripted, scripted

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4000}
"""An answer that would take minutes."""
SOON = 400
"""Tokens that may still be sampled after a client has left: of `server`, as many as it samples in 20 seconds."""
QUICK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    """A server with one slot that answers slowly and without end."""
    options = {"step_delay_s": 0.05, "endless": True, "speculation": False}
    with scripted(tmp_path_factory.mktemp("slow"), options, n_slots=1) as one:
        with one.client() as http:
            http.post(CHAT, json=QUICK)
        yield one


def assert_free(server: Scripted) -> None:
    """A client has just left: the slot becomes idle, the backend stands still soon, the next request is answered."""
    left_at = server.sampled()
    wait_until(lambda: server.status()["requests_running"] == 0, "the end of the request")
    assert server.still()
    assert server.sampled() - left_at < SOON
    with server.client() as http:
        assert http.post(CHAT, json=QUICK).status_code == 200


def requests_at(server: Scripted) -> int:
    """How many requests it holds, running or not."""
    status = server.status()
    return int(status["requests_running"]) + int(status["requests_queued"])


def impatient(server: Scripted) -> httpx.Client:
    """A client that soon tires of waiting for an answer, but not of connecting."""
    return server.client(timeout=httpx.Timeout(60, read=0.5))


def test_leaving_a_stream_stops_the_answer(server: Scripted) -> None:
    with server.client() as http, http.stream("POST", CHAT, json=ASK | {"stream": True}) as answer:
        lines = answer.iter_lines()
        for _ in range(6):
            next(lines)

    assert_free(server)


def test_leaving_before_a_whole_answer_stops_it(server: Scripted) -> None:
    with impatient(server) as http, pytest.raises(httpx.ReadTimeout):
        http.post(CHAT, json=ASK)

    assert_free(server)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_the_queue_means_that_nothing_is_computed(server: Scripted, stream: bool) -> None:
    with server.client() as http, http.stream("POST", CHAT, json=ASK | {"stream": True}) as running:
        lines = running.iter_lines()  # closes the stream when it is collected
        next(lines)
        with impatient(server) as other, pytest.raises(httpx.ReadTimeout):
            other.post(CHAT, json=ASK | {"stream": stream})
        wait_until(lambda: requests_at(server) == 1, "the end of the waiting request")

    assert_free(server)


@pytest.mark.parametrize("stream", [False, True])
def test_who_has_left_the_queue_is_never_answered(server: Scripted, stream: bool) -> None:
    before = server.sampled()
    with server.client() as http, http.stream("POST", CHAT, json=ASK | {"max_tokens": 60, "stream": True}) as running:
        lines = running.iter_lines()
        next(lines)
        worker = server.status()["pid"]
        os.kill(worker, signal.SIGSTOP)  # the first answer cannot end before the second client leaves
        try:
            with impatient(server) as other, pytest.raises(httpx.ReadTimeout):
                other.post(CHAT, json=ASK | {"stream": stream})
            wait_until(lambda: requests_at(server) == 1, "the end of the waiting request")
        finally:
            os.kill(worker, signal.SIGCONT)
        last = [line for line in lines if line][-1]

    assert last == "data: [DONE]"
    assert server.still()
    assert server.sampled() - before == 60  # those of the first answer


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_in_the_prefill_ends_it(tmp_path: Path, stream: bool) -> None:
    with scripted(tmp_path, {"prefill_delay_s": 600}, n_slots=1) as server:
        with server.client() as http:
            http.post("/admin/plans", json={"plan": {"command": "models.load", "model": "echo"}})
        with impatient(server) as http, pytest.raises(httpx.ReadTimeout):
            http.post(CHAT, json=QUICK | {"stream": stream})
        # a worker tells its status between two steps, and so not before this prefill is over
        wait_until(lambda: server.status()["metrics"]["engine"].get("running") == 0, "the end of the prefill")

        assert server.status()["requests_running"] == 0
        assert server.sampled() == 0


def test_cancelling_and_asking_again_at_once_does_no_harm(server: Scripted) -> None:
    for _ in range(15):
        with server.client() as http, http.stream("POST", CHAT, json=ASK | {"stream": True}) as answer:
            next(answer.iter_lines())

    assert_free(server)


def test_eight_clients_that_leave_together_leave_nothing(server: Scripted) -> None:
    def leave() -> None:
        with impatient(server) as http, pytest.raises(httpx.ReadTimeout):
            http.post(CHAT, json=ASK)

    threads = [threading.Thread(target=leave) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)

    assert_free(server)
