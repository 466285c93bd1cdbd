"""A client that goes away gives its sequence back within one engine step."""

from __future__ import annotations

import json
import socket
import time

BODY = {
    "model": "local-model",
    "messages": [{"role": "user", "content": "Tell a very long story about a lighthouse."}],
    "max_tokens": 4000,
    "temperature": 0,
    "ignore_eos": True,
}
STEP_S = 0.5
"""More than any decode step of the small model takes, a busy machine and the way through the server included."""


def slots(http) -> list[dict]:
    reply = http.post("/admin/plans", json={"plan": {"command": "status"}, "dry_run": False})
    models = json.loads(reply.text.splitlines()[-1])["data"]["models"]
    return [slot for model in models for slot in model["slots"]]


def wait_until(condition, limit_s: float) -> float:
    """Seconds until the condition holds; fails when it does not in time."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit_s, f"not within {limit_s} s"
        time.sleep(0.02)
    return time.monotonic() - start


def open_request(server, body: dict) -> socket.socket:
    """A raw connection with the request sent, so that closing it is nothing but a closed socket."""
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
        while seen.count(b"data: ") < 3:
            seen += link.recv(65536)
        assert len(slots(http)) == 1
        link.close()

        wait_until(lambda: slots(http) == [], STEP_S)


def test_closing_the_socket_of_a_request_without_a_stream_frees_its_sequence(model_server):
    with model_server.client() as http, open_request(model_server, BODY) as link:
        wait_until(lambda: [slot["state"] for slot in slots(http)] == ["decode"], 20)
        link.close()

        wait_until(lambda: slots(http) == [], STEP_S)


def test_closing_the_socket_in_the_middle_of_a_long_prompt_frees_its_sequence(model_server):
    text = " ".join(f"Sentence {number} is about something else." for number in range(700))
    long_prompt = BODY | {"messages": [{"role": "user", "content": text}], "stream": True}
    with model_server.client() as http, open_request(model_server, long_prompt) as link:
        wait_until(lambda: [slot["state"] for slot in slots(http)] == ["prefill"], 20)
        link.close()

        # a step of a long prompt is a whole chunk of it
        wait_until(lambda: slots(http) == [], 2)


def test_fifty_cancelled_requests_leave_a_server_that_answers(model_server):
    with model_server.client() as http:
        for _ in range(50):
            with open_request(model_server, BODY | {"stream": True}) as link:
                while b"data: " not in link.recv(65536):
                    pass
        reply = http.post("/v1/chat/completions", json=BODY | {"max_tokens": 4})

        assert reply.status_code == 200
        assert reply.json()["usage"]["completion_tokens"] == 4
        wait_until(lambda: slots(http) == [], 5)
