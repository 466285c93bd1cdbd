"""What every command really prints with `--output json` keeps its published `result.<command>` schema."""

from __future__ import annotations

import json

import pytest
from localllm.planner.plans import COMMANDS
from localllm.planner.results import RESULTS
from localllm.schemas import load_schema, problems

ONE = 'format_version: "1.0"\nsteps:\n  - plan: {command: version}\n  - plan: {command: models.list}\n'
SET = ("config", "set", "port", "8485")

RUNS: dict[str, list[tuple[str, ...]]] = {
    "status": [("status",), ("--server", "http://127.0.0.1:9", "status")],
    "models.scan": [("models", "scan")],
    "models.list": [("models", "list"), ("models", "list", "--kind", "all")],
    "models.show": [("models", "show", "smollm2-135m")],
    "models.load": [("models", "load", "echo"), ("models", "load", "echo")],
    "models.unload": [("models", "unload", "--all")],
    "models.pull": [("models", "pull", "smollm2-135m")],
    "auth.enable": [("auth", "enable"), ("auth", "enable")],
    "auth.disable": [("auth", "disable"), ("auth", "disable")],
    "auth.status": [("auth", "status"), ("auth", "enable"), ("auth", "status")],
    "config.get": [("config", "get", "port"), ("config", "get", "aliases")],
    "config.set": [SET, SET],
    "config.unset": [("config", "unset", "port"), SET, ("config", "unset", "port")],
    "config.list": [("config", "list"), SET, ("config", "list")],
    "bench.latency": [("bench", "latency", "--model", "echo", "--requests", "2", "--warmup", "0")],
    "bench.throughput": [("bench", "throughput", "--model", "echo", "--clients", "2", "--requests", "1")],
    "logs": [("logs",)],
    "doctor": [("doctor",)],
    "chat": [("chat", "hello", "--model", "echo"), ("chat", "hello", "--model", "echo", "--n", "2", "--logprobs")],
    "complete": [("complete", "hello", "--model", "echo", "--max-tokens", "3")],
    "apply": [("apply", "version.json")],
    "explain": [("explain", "one.plan.yaml"), ("explain", "--", "serve"), ("explain", "--", "chat", "hi")],
    "plan.validate": [("plan", "validate", "one.plan.yaml", "version.json")],
    "plan.diff": [("plan", "diff", "one.plan.yaml", "version.json"), ("plan", "diff", "version.json", "version.json")],
    "plan.id": [("plan", "id", "one.plan.yaml"), ("plan", "id", "version.json")],
    "plan.lock": [("plan", "lock", "one.plan.yaml")],
    "plan.log": [("plan", "log"), SET, ("plan", "log")],
    "plan.undo": [SET, ("plan", "undo", "last")],
    "replay": [("replay", "one.plan.yaml")],
    "schema": [("schema",), ("schema", "plan-file")],
    "version": [("version",)],
}
"""Command lines of each command; others among them make what it is about. `serve` has no end, and a test of its own."""


@pytest.mark.parametrize("command", RUNS)
def test_the_result_keeps_its_schema(cli, echo_server, models_dir, model_path, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.plan.yaml").write_text(ONE)
    (tmp_path / "version.json").write_text('{"command": "version"}')
    env = {"LOCALLLM_MODELS_DIR": str(models_dir), "LOCALLLM_SERVER": echo_server.url}
    for args in RUNS[command]:
        done = cli("--output", "json", *args, env=env)
        document = json.loads(done.out)
        words = [word for word in args if not word.startswith(("-", "http"))]
        ran = next(name for name in COMMANDS if words[: len(name.split("."))] == name.split("."))

        assert done.code in (0, 1), done.out
        assert [str(problem) for problem in problems(f"result.{ran}", document)] == []


@pytest.mark.parametrize(
    "args", [("replay", "one.plan.yaml"), ("chat", "hi", "--model", "echo"), ("models", "show", "x")]
)
def test_each_line_of_a_stream_keeps_its_schema(cli, echo_server, tmp_path, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.plan.yaml").write_text(ONE)
    done = cli("--output", "json", "--stream", *args, "--server", echo_server.url)
    lines = [json.loads(line) for line in done.out.splitlines()]

    assert [str(problem) for line in lines for problem in problems("events", line)] == []
    assert lines[-1]["event"] == ("result" if done.code == 0 else "error")


@pytest.mark.parametrize("args", [("models", "show", "x"), ("config", "set", "port", "x"), ("nope",)])
def test_an_error_keeps_its_schema(cli, args):
    assert problems("error", json.loads(cli("--output", "json", *args).out)) == []


def test_every_command_is_tried():
    assert set(RUNS) | {"serve"} == set(COMMANDS) == set(RESULTS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_result_may_say_more_than_its_schema(command):
    assert "additionalProperties" not in load_schema(f"result.{command}")


def test_what_serve_prints_when_it_ends_keeps_its_schema(server):
    running = server("--backend", "echo", "--output", "json")
    running.stop()
    last = json.loads(running.log().splitlines()[-1])

    assert last["event"] == "result"
    assert problems("result.serve", last["data"]) == []
    assert problems("events", last) == []
