"""The strict lane with the real model: a recorded session replays byte by byte, whatever else the server does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

ANSWERS = 20
SMALL = ("--model", "smollm2-135m", "--n-threads", "1", "--n-ctx", "512")
"""One thread: on a busy machine several would wait for each other."""


def question(number: int) -> tuple[str, dict[str, Any]]:
    """A path and a short request; every fifth is a chat, every other one greedy, half are streamed, and a third of the
    drawn ones bring a seed."""
    sampling = {"temperature": 0} if number % 2 else {"temperature": 1.0, "seed": None if number % 3 else number}
    body = {"model": "local-model", "max_tokens": 4, "determinism": "strict", "stream": number % 4 < 2, **sampling}
    if number % 5 == 0:
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": f"Number {number}?"}]}
    return "/v1/completions", {**body, "prompt": f"{'Again. ' * (number % 4)}The number {number} is"}


def ask(http: httpx.Client, number: int) -> None:
    path, body = question(number)
    http.post(path, json=body).raise_for_status()


@contextmanager
def load_on(url: str) -> Iterator[None]:
    """Keep the server busy with requests of the usual lane."""
    over = threading.Event()
    body = {"model": "local-model", "prompt": "One, two, three,", "max_tokens": 8}

    def go_on() -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=200) as http:
            while not over.is_set():
                http.post("/v1/completions", json=body).raise_for_status()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.model
def test_a_strict_recorded_session_replays_byte_by_byte_after_a_restart_with_and_without_load(server, cli, tmp_path):
    first = server(*SMALL, "--record", str(tmp_path / "recorded"))
    with first.client() as http:
        for number in range(ANSWERS):
            ask(http, number)
    assert first.stop() == 0
    (recorded,) = (tmp_path / "recorded").glob("*.plan.yaml")

    second = server(*SMALL)
    with load_on(second.url):
        beside = verdicts(cli, second.url, recorded)
    alone = verdicts(cli, second.url, recorded)

    assert beside == ["same"] * ANSWERS
    assert alone == ["same"] * ANSWERS


def verdicts(cli: Any, url: str, file: Path) -> list[str]:
    done = cli("replay", str(file), "--output", "json", "--stream", "--server", url, timeout_s=400)
    rows = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    return [row["data"]["comparison"]["verdict"] for row in rows if row["event"] == "record"]


@pytest.mark.model
def test_status_counts_the_lane_once_a_strict_request_came(server):
    running = server(*SMALL)

    def memory(http: httpx.Client) -> dict[str, Any]:
        answer = http.post("/admin/plans", json={"plan": {"command": "status"}})
        found: dict[str, Any] = json.loads(answer.text)["data"]["models"][0]["memory"]
        return found

    with running.client() as http:
        before = memory(http)
        ask(http, 1)
        after = memory(http)

    lane = before["estimate"]["strict_lane_bytes"]
    assert lane > 0
    assert "strict_lane_bytes" not in before
    assert after["strict_lane_bytes"] == lane
    assert after["total_bytes"] == before["total_bytes"] + lane
