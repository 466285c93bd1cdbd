"""A client that goes away gives its sequence back, on the real model and by nothing but a closed socket."""

from __future__ import annotations

import json
import socket
import time

QUESTION = "Write a Python function that returns the n-th Fibonacci number iteratively. Explain it briefly."
"""The small model takes well over a hundred tokens for it."""
BODY = {
    "model": "local-model",
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 4000,
    "temperature": 0,
}

PATIENCE_S = 0.45
"""A little less than the server waits for a worker that is asked for its status."""


def engine(http) -> dict | None:
    """The engine's own account, which the worker gives between two steps; None while a step takes longer than asked."""
    start = time.monotonic()
    reply = http.post("/admin/plans", json={"plan": {"command": "status"}, "dry_run": False})
    (model,) = json.loads(reply.text.splitlines()[-1])["data"]["models"]
    # after its patience the server repeats what it was told before
    return model["metrics"]["engine"] if time.monotonic() - start < PATIENCE_S else None


def wait_until(condition, limit_s: float) -> None:
    """Wait until the condition holds; fail when it does not in time."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit_s, f"not within {limit_s} s"
        time.sleep(0.02)


def is_idle(http) -> bool:
    told = engine(http)
    return told is not None and told["running"] == told["queued"] == 0


def wait_until_idle(http, limit_s: float = 2) -> None:
    """Far more than a step takes, and far less than the rest of the answer; a busy machine is allowed for."""
    wait_until(lambda: is_idle(http), limit_s)
    steps = engine(http)["steps_total"]
    time.sleep(0.2)
    assert engine(http)["steps_total"] == steps


def open_request(server, body: dict) -> socket.socket:
    """A raw connection with the request sent, so that closing it is all that tells the server."""
    data = json.dumps(body).encode()
    link = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    link.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: " + str(len(data)).encode() + b"\r\n\r\n" + data
    )
    return link


def test_closing_the_socket_of_a_stream_frees_its_sequence(model_server):
    with model_server.client() as http, open_request(model_server, BODY | {"stream": True}) as link:
        seen = b""
        while seen.count(b'"content":"') < 4:
            seen += link.recv(65536)
        link.close()

        wait_until_idle(http)


def test_closing_the_socket_of_a_request_without_a_stream_frees_its_sequence(model_server):
    with model_server.client() as http, open_request(model_server, BODY) as link:
        wait_until(lambda: not is_idle(http), 20)
        link.close()

        wait_until_idle(http)


def test_closing_the_socket_in_the_middle_of_a_long_prompt_frees_its_sequence(model_server):
    text = " ".join(f"Sentence {number} is about something else." for number in range(700))
    long_prompt = BODY | {"messages": [{"role": "user", "content": text}], "stream": True}
    with model_server.client() as http:
        before = engine(http)["rows_total"]
        with open_request(model_server, long_prompt) as link:
            wait_until(lambda: not is_idle(http), 20)
            link.close()

            wait_until_idle(http, limit_s=10)  # a step of a long prompt is a whole chunk of it
        assert engine(http)["rows_total"] - before < 3000, "most of the 6000 tokens need not be computed"


def test_thirty_cancelled_requests_leave_a_server_that_answers(model_server):
    with model_server.client() as http:
        for _ in range(30):
            with open_request(model_server, BODY | {"stream": True}) as link:
                while b"data: " not in link.recv(65536):
                    pass
        reply = http.post("/v1/chat/completions", json=BODY | {"max_tokens": 4})

        assert reply.status_code == 200
        assert reply.json()["usage"]["completion_tokens"] == 4
        wait_until_idle(http)
