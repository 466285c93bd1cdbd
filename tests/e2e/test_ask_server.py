"""A dry run that asks the server, the saved report, and what becomes of it."""

from __future__ import annotations

import json

import pytest

DRY = ("--dry-run", "--output", "json")


@pytest.fixture
def running(server, tmp_path):
    (tmp_path / "empty").mkdir()
    return server("--backend", "echo", env={"LOCALLLM_MODELS_DIR": str(tmp_path / "empty")})


def test_the_server_tells_what_it_has_loaded_and_changes_nothing(cli, running):
    offline = json.loads(cli(*DRY, "models", "load", "echo", env=running.env).out)
    asked = cli(*DRY, "--ask-server", "--detailed-exitcode", "models", "load", "echo", env=running.env)
    report = json.loads(asked.out)
    status = json.loads(cli("--output", "json", "status", env=running.env).out)

    assert asked.code == 10
    assert any(each.startswith("which models the server has loaded") for each in offline["unknown"])
    assert (offline["depth"], report["depth"]) == ("offline", "server")
    assert "diff" not in offline
    assert report["diff"] == {"before": {"loaded": []}, "after": {"loaded": ["echo"]}}
    assert report["plan_id"] == offline["plan_id"]
    assert {"kind": "server", "instance": status["instance"]} in report["preconditions"]
    assert status["models"] == []
    assert json.loads(cli(*DRY, "--ask-server", "status", env=running.env).out)["unknown"] == []


def test_the_server_tells_what_a_load_and_an_unload_would_take_away(cli, server, model_path, tmp_path):
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("first", "second"):
        (folder / f"{name}.gguf").symlink_to(model_path)
    running = server(
        "--model", "first", "--n-ctx", "256", "--max-loaded", "1", env={"LOCALLLM_MODELS_DIR": str(folder)}
    )
    load = json.loads(cli(*DRY, "--ask-server", "models", "load", "second", env=running.env).out)
    unload = json.loads(cli(*DRY, "--ask-server", "models", "unload", "first", env=running.env).out)
    words = cli("--dry-run", "--ask-server", "models", "unload", "first", env=running.env).out
    load_words = cli("--dry-run", "--ask-server", "models", "load", "second", env=running.env).out
    offline = json.loads(cli(*DRY, "models", "unload", "first", env=running.env).out)
    status = json.loads(cli("--output", "json", "status", env=running.env).out)

    assert load["resolved"]["would_evict"] == ["first"]
    assert (load["diff"]["before"]["loaded"], load["diff"]["after"]["loaded"]) == (["first"], ["second"])
    assert (unload["diff"]["before"]["loaded"], unload["diff"]["after"]["loaded"]) == (["first"], [])
    assert 'before: {"loaded": ["first"]' in words
    assert (
        "evicts: `first`, to make room\nlimits: 1 loaded model at most (`max_loaded`); no memory budget" in load_words
    )
    assert "diff" not in offline
    assert any("`--ask-server` tells" in each for each in offline["unknown"])
    assert [model["model_id"] for model in status["models"]] == ["first"]


def test_a_saved_report_is_applied_once_and_only_to_the_server_it_was_made_for(cli, running, tmp_path):
    saved = str(tmp_path / "load.json")
    made = cli(*DRY, "--ask-server", "--out", saved, "models", "load", "echo", env=running.env)
    assert json.loads(made.out) == json.loads((tmp_path / "load.json").read_text())

    applied = cli("apply", saved, env=running.env)
    again = cli("--output", "json", "apply", saved, env=running.env)
    report = json.loads((tmp_path / "load.json").read_text())
    report["preconditions"] = [{"kind": "server", "instance": "another"}]
    (tmp_path / "other.json").write_text(json.dumps(report))
    other = cli("--output", "json", "apply", str(tmp_path / "other.json"), env=running.env)

    assert applied.code == 0, applied.err
    assert (again.code, json.loads(again.out)["error"]["code"]) == (5, "stale_plan")
    assert (other.code, json.loads(other.out)["error"]["code"]) == (5, "stale_plan")
    assert "is another run" in json.loads(other.out)["error"]["data"]["failed"][0]


def test_a_plan_that_runs_here_asks_nobody(cli, tmp_path):
    report = json.loads(cli(*DRY, "--ask-server", "--server", "http://127.0.0.1:9", "config", "list").out)

    assert report["depth"] == "offline"


@pytest.mark.parametrize("flags", [("--out", "x.json"), ("--ask-server",)])
def test_options_of_a_dry_run_are_refused_without_one(cli, flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli(*flags, "config", "set", "port", "8485")

    assert done.code == 2
    assert f"`{flags[0]}` belongs to a dry run" in done.err
    assert not (tmp_path / "home" / "config").exists()


def test_a_report_that_cannot_be_saved_is_told(cli, tmp_path):
    (tmp_path / "folder").mkdir()
    done = cli("--dry-run", "--out", str(tmp_path / "folder"), "version")

    assert done.code == 2
    assert "cannot be written" in done.err
