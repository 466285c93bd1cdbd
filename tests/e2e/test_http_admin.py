"""Plans of the command line, run by the server."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fixtures.waiting import wait_until

sys.path.append(str(Path(__file__).parent.parent / "fixtures"))
from scripted import scripted

if TYPE_CHECKING:
    from conftest import RunningServer


@pytest.fixture(scope="module")
def http(echo_server: RunningServer) -> Iterator[httpx.Client]:
    with echo_server.client() as client:
        yield client


def run_plan(http: httpx.Client, plan: dict[str, Any], **extra: Any) -> list[dict[str, Any]]:
    """The events of a plan, each from its line."""
    answer = http.post("/admin/plans", json={"plan": plan, **extra})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_plan_ends_in_one_result(http: httpx.Client) -> None:
    events = run_plan(http, {"command": "status"})

    assert [event["event"] for event in events] == ["result"]
    assert events[0]["data"]["running"] is True


def test_a_dry_run_gives_the_report_and_changes_nothing(http: httpx.Client) -> None:
    before = run_plan(http, {"command": "status"})[-1]["data"]["models"]
    (event,) = run_plan(http, {"command": "models.load", "model": "echo"}, dry_run=True)

    assert event["data"]["plan"]["command"] == "models.load"
    assert event["data"]["plan_id"].startswith("sha256:")
    assert run_plan(http, {"command": "status"})[-1]["data"]["models"] == before


@pytest.mark.parametrize("command", ["serve", "doctor", "config.list"])
def test_a_plan_of_the_clients_machine_is_refused(http: httpx.Client, command: str) -> None:
    answer = http.post("/admin/plans", json={"plan": {"command": command}})

    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"plan": 5},
        {"plan": {"command": "status"}, "dry_run": "yes"},
        {"plan": {"command": "status"}, "dryrun": True},
        {"plan": {"command": "status", "extra": 1}},
        {"plan": {"command": "no.such"}},
    ],
)
def test_a_malformed_request_is_a_400(http: httpx.Client, body: dict[str, Any]) -> None:
    answer = http.post("/admin/plans", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_error_before_the_first_event_keeps_its_status_and_all_its_data(http: httpx.Client) -> None:
    answer = http.post("/admin/plans", json={"plan": {"command": "models.load", "model": "no-such"}})

    error = answer.json()["error"]
    assert answer.status_code == 404
    assert error["localllm"]["code"] == "model_not_found"
    assert error["localllm"]["exit_code"] == 3


ASK = {"messages": [{"role": "user", "content": "one two three"}], "stream": True}


def test_unloading_under_a_running_stream_needs_force_and_then_ends_it_with_an_error(tmp_path: Path) -> None:
    unload = {"command": "models.unload", "model": "echo"}
    with (
        scripted(tmp_path, {"step_delay_s": 0.02, "endless": True}) as server,
        server.client() as http,
        server.client() as other,
        other.stream("POST", "/v1/chat/completions", json=ASK) as answer,
    ):
        lines = filter(None, answer.iter_lines())
        next(lines)
        refused = http.post("/admin/plans", json={"plan": unload})
        still = next(lines)
        forced = run_plan(http, unload | {"force": True})
        rest = list(lines)

    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "in_use"
    assert "retry-after" in refused.headers
    assert '"error"' not in still
    assert forced[-1]["data"]["unloaded"] == ["echo"]
    assert "error" in json.loads(rest[-1].removeprefix("data: "))


def test_beyond_the_queue_a_request_is_told_to_come_back(tmp_path: Path) -> None:
    options = {"step_delay_s": 0.02, "endless": True}
    with (
        scripted(tmp_path, options, settings={"queue_size": "0"}, n_slots=1) as server,
        server.client() as http,
        server.client() as other,
        other.stream("POST", "/v1/chat/completions", json=ASK) as answer,
    ):
        lines = answer.iter_lines()  # closes the stream when it is collected
        next(lines)
        refused = http.post("/v1/chat/completions", json=ASK)

    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert int(refused.headers["retry-after"]) >= 1


def test_beyond_the_queue_of_a_model_that_is_loaded_a_stream_is_told_at_once_to_come_back(tmp_path: Path) -> None:
    settings = {"queue_size": "1", "keep_alive_s": "600"}
    answers: list[httpx.Response] = []
    with scripted(tmp_path, {"load_delay_s": 600}, settings=settings, n_slots=1) as server:

        def ask() -> None:
            with server.client() as own:
                answers.append(own.post("/v1/chat/completions", json=ASK))

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(answers) == 18, "the refusals")
        queued = server.status()["requests_queued"]
        with server.client() as http:
            run_plan(http, {"command": "models.unload", "model": "echo", "force": True})
        for thread in threads:
            thread.join(100)

    refused = answers[:18]
    assert [answer.status_code for answer in refused] == [429] * 18
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert queued == 2
    assert len(answers) == 20
    assert all("unloaded" in answer.text for answer in answers[18:])
