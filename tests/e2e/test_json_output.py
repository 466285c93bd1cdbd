"""With `--output json`, stdout is JSON whatever happens: every command, its failures, and prints of llama.cpp."""

from __future__ import annotations

import json

import pytest
from localllm.planner.plans import COMMANDS

NOBODY = ("--server", "http://127.0.0.1:9")

WITHOUT_SERVER: dict[str, tuple[tuple[str, ...], int]] = {
    "status": ((*NOBODY, "status"), 1),
    "models.scan": (("models", "scan"), 0),
    "models.list": (("models", "list"), 0),
    "models.show": (("models", "show", "nope"), 3),
    "models.load": ((*NOBODY, "models", "load", "smollm2-135m"), 7),
    "models.unload": ((*NOBODY, "models", "unload", "--all"), 7),
    "models.pull": (("models", "pull", "nope"), 3),
    "auth.enable": (("auth", "enable"), 0),
    "auth.disable": (("auth", "disable"), 0),
    "auth.status": (("auth", "status"), 0),
    "config.get": (("config", "get", "port"), 0),
    "config.set": (("config", "set", "port", "8485"), 0),
    "config.unset": (("config", "unset", "port"), 0),
    "config.list": (("config", "list"), 0),
    "bench.latency": ((*NOBODY, "bench", "latency", "--model", "nope"), 3),
    "bench.throughput": ((*NOBODY, "bench", "throughput", "--model", "nope"), 3),
    "logs": (("logs",), 0),
    "chat": ((*NOBODY, "chat", "hi", "--model", "nope"), 3),
    "serve": (("serve", "--host", "198.51.100.7", "--port", "8484"), 4),
    "complete": ((*NOBODY, "complete", "hi", "--model", "nope"), 3),
    "apply": (("apply", "missing.json"), 3),
    "replay": (("replay", "missing.plan.yaml"), 3),
    "plan.lock": (("plan", "lock", "missing.plan.yaml"), 3),
    "plan.log": (("plan", "log"), 0),
    "plan.undo": (("plan", "undo", "last"), 3),
    "explain": (("explain", "--", "status"), 0),
    "plan.validate": (("plan", "validate", "missing.json"), 3),
    "plan.diff": (("plan", "diff", "missing.json", "missing.json"), 3),
    "plan.id": (("plan", "id", "missing.json"), 3),
    "schema": (("schema", "plan-file"), 0),
    "version": (("version",), 0),
}
"""Every command with the exit code it has on an empty models folder and no server; `doctor` has a test of its own."""

WRONG: list[tuple[tuple[str, ...], int]] = [
    ((), 2),
    (("nope",), 2),
    (("models",), 2),
    (("models", "load"), 2),
    (("models", "load", "m", "--n-ctx", "many"), 2),
    (("models", "load", "m", "--n-ctx", "1"), 2),
    (("models", "unload"), 2),
    (("models", "unload", "m", "--all"), 2),
    (("status", "--nope"), 2),
    (("config", "get", "nope"), 3),
    (("config", "set", "n_slot", "4"), 2),
    (("config", "set", "port", "many"), 2),
]


def test_every_command_has_its_case():
    assert set(WITHOUT_SERVER) | {"doctor"} == set(COMMANDS)


@pytest.mark.parametrize("command", WITHOUT_SERVER)
def test_stdout_is_one_json_document(cli, tmp_path, command):
    args, code = WITHOUT_SERVER[command]
    (tmp_path / "models").mkdir()
    done = cli("--output", "json", *args, env={"LOCALLLM_MODELS_DIR": str(tmp_path / "models")})

    document = json.loads(done.out)

    assert done.code == code, done.out + done.err
    assert ("error" in document) == (code > 1)


def test_doctor_prints_one_json_document_with_its_verdict(cli, models_dir, model_path):
    done = cli("--output", "json", "doctor", env={"LOCALLLM_MODELS_DIR": str(models_dir)})

    document = json.loads(done.out)

    assert done.code in (0, 1)
    assert "error" not in document


@pytest.mark.parametrize("args, code", WRONG, ids=[" ".join(args) or "no command" for args, _ in WRONG])
@pytest.mark.parametrize("spelling", [("--output", "json"), ("--output=json",)], ids=["two words", "one word"])
def test_a_wrong_command_line_is_a_json_error(cli, args, code, spelling):
    done = cli(*spelling, *args)

    error = json.loads(done.out)["error"]

    assert (done.code, error["exit_code"]) == (code, code)
    assert error["message"]


def test_the_environment_may_ask_for_json_too(cli):
    done = cli("models", "show", "nope", env={"LOCALLLM_OUTPUT": "json"})

    assert json.loads(done.out)["error"]["code"] == "model_not_found"


def test_help_and_version_are_json_too(cli):
    assert json.loads(cli("--output", "json", "--version").out)["version"]
    assert "models" in json.loads(cli("--output", "json", "--help").out)["help"]


def test_an_embedded_chat_leaves_stdout_clean_while_llama_cpp_prints(cli, models_dir, model_path):
    args = (*NOBODY, "chat", "hi", "--model", "smollm2-135m", "--max-tokens", "4", "--temperature", "0")
    done = cli("--output", "json", "-v", "-v", *args, env={"LOCALLLM_MODELS_DIR": str(models_dir)})

    document = json.loads(done.out)

    assert done.code == 0, done.err
    assert document["object"] == "chat.completion"
    assert document["usage"]["completion_tokens"] == 4


def test_a_streamed_chat_is_one_json_event_a_line(cli, models_dir, model_path):
    args = (*NOBODY, "chat", "hi", "--model", "smollm2-135m", "--max-tokens", "4", "--temperature", "0", "--stream")
    done = cli("--output", "json", *args, env={"LOCALLLM_MODELS_DIR": str(models_dir)})

    events = [json.loads(line) for line in done.out.splitlines()]

    assert done.code == 0, done.err
    assert [event["event"] for event in events].count("result") == 1
    assert events[-1]["event"] == "result"
