"""The ledger across the command line and a real server: every door leaves one entry, and loading is taken back."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.fixture
def call(server, cli):
    """A server on the echo backend, and JSON calls of the same user: `call("plan", "log")`."""
    running = server("--backend", "echo")

    def run(*args: str, code: int = 0) -> dict[str, Any]:
        done = cli("--output", "json", *args, env=running.env)
        assert done.code == code, done.out + done.err
        document: dict[str, Any] = json.loads(done.out)
        return document

    return run


def test_a_load_is_one_entry_of_the_server_and_is_taken_back(call):
    call("models", "load", "echo", "--make-default")

    (row,) = call("plan", "log")["entries"]
    assert (row["command"], row["actor"]["door"], row["reversible"]) == ("models.load", "http", True)
    call("plan", "undo", row["entry"])
    assert call("status")["models"] == []
    commands = [row["command"] for row in call("plan", "log")["entries"]]
    assert sorted(commands) == ["models.load", "models.unload", "plan.undo"]


def test_an_unload_is_taken_back_with_the_parameters_the_model_had(call):
    call("models", "load", "echo", "--n-ctx", "512")
    call("models", "unload", "echo")
    call("plan", "undo", "last")

    (model,) = call("status")["models"]
    assert model["spec"]["n_ctx"] == 512


def test_a_load_that_was_unloaded_since_is_left_alone(call):
    call("models", "load", "echo")
    (row,) = call("plan", "log")["entries"]
    call("models", "unload", "echo")

    assert call("plan", "undo", row["entry"], code=5)["error"]["code"] == "stale_plan"


def test_an_entry_names_the_key_that_was_shown(server, cli):
    running = server("--backend", "echo")
    key = json.loads(cli("--output", "json", "auth", "enable", env=running.env).out)["key"]
    loaded = cli("models", "load", "echo", env={**running.env, "LOCALLLM_API_KEY": key})
    rows = json.loads(cli("--output", "json", "plan", "log", env=running.env).out)["entries"]

    assert loaded.code == 0, loaded.err
    assert [row["command"] for row in rows] == ["auth.enable", "models.load"]
    assert len(rows[1]["actor"]["key"]) == 8
    assert key not in json.dumps(rows)
