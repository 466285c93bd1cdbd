"""A worker that is killed costs its own requests one error each, and nothing else."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

from fixtures.waiting import wait_until

QUESTION = {
    "model": "local-model",
    "messages": [
        {
            "role": "user",
            "content": "Write a Python function that returns the n-th Fibonacci number. Explain it briefly.",
        }
    ],
    "max_tokens": 2000,
    "ignore_eos": True,
    "temperature": 0,
}


def models_of(http) -> list[dict]:
    reply = http.post("/admin/plans", json={"plan": {"command": "status"}, "dry_run": False})
    return json.loads(reply.text.splitlines()[-1])["data"]["models"]


def worker_pids(http) -> list[int]:
    return [model["pid"] for model in models_of(http) if model["pid"]]


def test_kill_9_in_a_stream_gives_one_error_frame_and_the_next_request_is_answered(server, model_path):
    running = server("--model", "smollm2-135m")
    with running.client() as http:
        (pid,) = worker_pids(http)
        with http.stream("POST", "/v1/chat/completions", json=QUESTION | {"stream": True}) as reply:
            lines = (line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: "))
            got = [next(lines) for _ in range(3)]
            os.kill(pid, signal.SIGKILL)
            got += list(lines)
        errors = [json.loads(line) for line in got if line != "[DONE]" and "error" in json.loads(line)]

        assert reply.status_code == 200
        assert len(errors) == 1
        assert errors[0]["error"]["code"] == "worker_died"
        assert "error" in json.loads(got[-1])
        assert running.process.poll() is None

        after = http.post("/v1/chat/completions", json=QUESTION | {"max_tokens": 4})

        assert after.status_code == 200, after.text
        assert after.json()["usage"]["completion_tokens"] == 4
        assert worker_pids(http) != [pid]


def test_kill_9_of_a_worker_before_the_first_token_is_a_clean_error(server, model_path):
    running = server("--model", "smollm2-135m")
    with running.client() as http:
        (pid,) = worker_pids(http)
        os.kill(pid, signal.SIGSTOP)  # the request is certain to be in flight when its worker dies
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(http.post, "/v1/chat/completions", json=QUESTION)
            wait_until(lambda: models_of(http)[0]["requests_running"], "the request")
            os.kill(pid, signal.SIGKILL)
            reply = waiting.result(100)

        assert reply.status_code == 500
        assert reply.json()["error"]["code"] == "worker_died"


def test_workers_end_when_the_server_is_killed(server, model_path):
    running = server("--model", "smollm2-135m")
    with running.client() as http:
        (pid,) = worker_pids(http)
    os.kill(running.pid, signal.SIGKILL)
    running.process.wait(60)

    wait_until(lambda: not is_alive(pid), "the end of the worker")


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody has reaped yet does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
