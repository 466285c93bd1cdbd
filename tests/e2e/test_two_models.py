"""Two models on one server: one makes room for the other, every name works, and `status` tells the truth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Cli, StartServer
from fixtures.tiny_models import write_gemma, write_llama
from fixtures.waiting import wait_until

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100, "ignore_eos": True}
TINY = ("--n-ctx", "256")


@pytest.fixture
def folder(tmp_path: Path) -> dict[str, str]:
    """An environment whose models folder holds a small llama and a small gemma."""
    models = tmp_path / "models"
    write_llama(models / "first.gguf")
    write_gemma(models / "second.gguf")
    return {"LOCALLLM_MODELS_DIR": str(models)}


def status(http: httpx.Client) -> list[dict[str, Any]]:
    answer = http.post("/admin/plans", json={"plan": {"command": "status"}})
    models: list[dict[str, Any]] = json.loads(answer.text.splitlines()[-1])["data"]["models"]
    return models


def result(cli: Cli, env: dict[str, str], *args: str, code: int = 0) -> dict[str, Any]:
    done = cli("--output", "json", *args, env=env)
    assert done.code == code, done.err + done.out
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_a_model_that_has_no_room_beside_a_busy_one_is_a_409_and_the_busy_one_answers_to_the_end(
    server: StartServer, folder: dict[str, str]
) -> None:
    env = folder | {"LOCALLLM_KEEP_ALIVE_S": "600"}  # for so long the headers of a stream may wait for a refusal
    running = server("--model", "first", "--max-loaded", "1", *TINY, env=env)
    with running.client() as http, running.client() as other:
        (model,) = status(http)
        with other.stream("POST", CHAT, json=ASK | {"model": "first", "stream": True}) as answer:
            lines = filter(None, answer.iter_lines())
            next(lines)
            os.kill(model["pid"], signal.SIGSTOP)  # it is busy for as long as this test wants
            try:
                refused = [
                    http.post(CHAT, json=ASK | {"model": "second", "stream": stream}) for stream in (False, True)
                ]
                told = status(http)
            finally:
                os.kill(model["pid"], signal.SIGCONT)
            last = list(lines)[-1]
        wait_until(lambda: status(http)[0]["requests_running"] == 0, "the end of the answer")
        after = http.post(CHAT, json=ASK | {"model": "second"})

        assert [each.status_code for each in refused] == [409, 409]
        assert all(each.json()["error"]["code"] == "in_use" and "retry-after" in each.headers for each in refused)
        assert [(each["model_id"], each["pid"]) for each in told] == [("first", model["pid"])]
        assert last == "data: [DONE]"
        assert after.status_code == 200, after.text
        assert after.json()["usage"]["completion_tokens"] == 100
        assert [each["model_id"] for each in status(http)] == ["second"]


def test_every_listed_name_can_be_loaded_and_unloaded_and_all_at_once(
    cli: Cli, server: StartServer, folder: dict[str, str]
) -> None:
    env = server(env=folder).env | folder
    listed = result(cli, env, "models", "list")["models"]
    names = [name for model in listed for name in (model["id"], *model["aliases"])]
    for name in names:
        loaded = result(cli, env, "models", "load", name, *TINY)
        assert result(cli, env, "models", "unload", name)["unloaded"] == [loaded["model_id"]]
    for name in ("first", "second"):
        result(cli, env, "models", "load", name, *TINY)
    both = result(cli, env, "status")["models"]
    unloaded = result(cli, env, "models", "unload", "--all")
    left = result(cli, env, "status")

    assert {model["id"] for model in listed} == {"first", "second"}
    assert [model["model_id"] for model in both] == ["first", "second"]
    assert sorted(unloaded["unloaded"]) == ["first", "second"]
    assert (left["running"], left["models"]) == (True, [])
    for model in both:
        with pytest.raises(ProcessLookupError):
            os.kill(model["pid"], 0)


def test_a_server_that_was_killed_with_two_models_is_told_as_not_running(
    cli: Cli, server: StartServer, folder: dict[str, str]
) -> None:
    running = server("--model", "first", *TINY, env=folder)
    env = running.env | folder
    result(cli, env, "models", "load", "second", *TINY)
    pids = [model["pid"] for model in result(cli, env, "status")["models"]]
    os.kill(running.pid, signal.SIGKILL)
    running.process.wait(100)
    told = result(cli, env, "status", code=1)
    said = cli("status", env=env)

    assert len(pids) == 2
    assert (told["running"], told["models"]) == (False, [])
    assert told["hint"]
    assert said.code == 1
    assert said.out.startswith(f"not running at {running.url}")
    wait_until(lambda: not any(map(is_alive, pids)), "the workers' end")


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody has reaped yet does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")
