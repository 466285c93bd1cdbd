"""A client that goes away gives its sequence back, on the real model and by nothing but a closed socket."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fixtures.waiting import wait_until

QUESTION = "Write a Python function that returns the n-th Fibonacci number iteratively. Explain it briefly."
ANSWER = 4000
"""Tokens of an answer that nobody ends: as many as it may have."""
BODY = {
    "model": "local-model",
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": ANSWER,
    "ignore_eos": True,
    "temperature": 0,
}

PATIENCE_S = 0.45
"""A little less than the server waits for a worker that is asked for its status."""


def status(http) -> tuple[dict[str, Any], bool]:
    """What the server says of its model, and whether the worker told it now: it does between two steps."""
    start = time.monotonic()
    reply = http.post("/admin/plans", json={"plan": {"command": "status"}, "dry_run": False})
    (model,) = json.loads(reply.text.splitlines()[-1])["data"]["models"]
    return model, time.monotonic() - start < PATIENCE_S  # after its own the server repeats what it knew before


def engine(http) -> dict[str, Any]:
    """The engine's own account; asked for again while a step is long."""
    told: list[dict[str, Any]] = []

    def is_told() -> bool:
        model, now = status(http)
        told.append(model["metrics"]["engine"])
        return now

    wait_until(is_told, "a status of this moment")
    return told[-1]


def is_idle(http) -> bool:
    told = engine(http)
    return told["running"] == told["queued"] == 0


def is_busy(http) -> bool:
    model, now = status(http)
    return model["requests_running"] > 0 and (not now or model["metrics"]["engine"]["running"] > 0)


@contextmanager
def left_in_the_middle(http, most_rows: int) -> Iterator[None]:
    """The engine comes to rest, and has by then computed far fewer rows than the request would have taken."""
    before = engine(http)["rows_total"]
    yield
    wait_until(lambda: is_idle(http), "the rest")
    told = engine(http)
    time.sleep(0.2)

    assert engine(http)["steps_total"] == told["steps_total"]
    assert told["rows_total"] - before < most_rows


def open_request(server, body: dict) -> socket.socket:
    """A raw connection with the request sent, so that closing it is all that tells the server."""
    data = json.dumps(body).encode()
    link = socket.create_connection(("127.0.0.1", server.port), timeout=200)
    link.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: " + str(len(data)).encode() + b"\r\n\r\n" + data
    )
    return link


def test_closing_the_socket_of_a_stream_frees_its_sequence(model_server):
    ask = BODY | {"stream": True}
    with model_server.client() as http, left_in_the_middle(http, ANSWER // 2), open_request(model_server, ask) as link:
        seen = b""
        while seen.count(b'"content":"') < 4:
            seen += link.recv(65536)


def test_closing_the_socket_of_a_request_without_a_stream_frees_its_sequence(model_server):
    with model_server.client() as http, left_in_the_middle(http, ANSWER // 2), open_request(model_server, BODY):
        wait_until(lambda: is_busy(http), "the request")


def test_closing_the_socket_in_the_middle_of_a_long_prompt_frees_its_sequence(model_server):
    text = " ".join(f"Sentence {number} is about something else." for number in range(700))
    long_prompt = BODY | {"messages": [{"role": "user", "content": text}], "stream": True}
    # of 6000 tokens
    with model_server.client() as http, left_in_the_middle(http, 3000), open_request(model_server, long_prompt):
        wait_until(lambda: is_busy(http), "the request")


def test_thirty_cancelled_requests_leave_a_server_that_answers(model_server):
    with model_server.client() as http:
        for _ in range(30):
            with open_request(model_server, BODY | {"stream": True}) as link:
                while b"data: " not in link.recv(65536):
                    pass
        reply = http.post("/v1/chat/completions", json=BODY | {"max_tokens": 4})

        assert reply.status_code == 200
        assert reply.json()["usage"]["completion_tokens"] == 4
        wait_until(lambda: is_idle(http), "the end of all")
