"""`doctor`: each check finds its fault, and no fault hides another check."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures import gguf_bytes
from localllm.errors import ConfigInvalid
from localllm.executors import checks
from localllm.executors.context import Context
from localllm.executors.doctor import CHECKS
from localllm.executors.events import Result
from localllm.executors.keys import make_key, store_key
from localllm.executors.state import keys_file

MakeContext = Callable[..., Context]
RunResult = Callable[..., Result]


@pytest.fixture
def diagnose(run_result: RunResult) -> Callable[..., dict[str, dict[str, Any]]]:
    """The doctor's findings by their name."""
    return lambda ctx=None: {row["name"]: row for row in run_result({"command": "doctor"}, ctx).data["checks"]}


def test_every_check_answers(run_result: RunResult) -> None:
    data = run_result({"command": "doctor"}).data

    assert [row["name"] for row in data["checks"]] == list(CHECKS)
    assert len(CHECKS) >= 10
    assert {row["status"] for row in data["checks"]} <= {"ok", "warn", "fail"}
    assert all(row["message"] for row in data["checks"])
    assert data["ok"] + data["warnings"] + data["failures"] == len(CHECKS)


def test_llama_cpp_loads_and_names_its_devices(make_context: MakeContext) -> None:
    found = checks.llama_cpp(make_context())

    assert found.status == "ok"
    assert "CPU" in found.message


def test_a_broken_config_is_repeated(run_result: RunResult, make_context: MakeContext) -> None:
    fault = ConfigInvalid("c.toml:1: there is no setting `n_ctxx`", hint="did you mean `n_ctx`?")

    done = run_result({"command": "doctor"}, make_context(config_fault=fault))

    row = next(row for row in done.data["checks"] if row["name"] == "config")
    assert (row["status"], row["message"], row["hint"]) == ("fail", fault.message, fault.hint)
    assert done.ok is False


def test_a_misspelt_variable_is_a_warning(
    diagnose: Callable[..., dict[str, dict[str, Any]]], make_context: MakeContext
) -> None:
    assert diagnose(make_context(env={"LOCALLLM_PROT": "1"}))["config"]["status"] == "warn"


def test_a_broken_model_file_is_named(diagnose: Callable[..., dict[str, dict[str, Any]]], tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "bad.gguf").write_bytes(b"GGUF")

    row = diagnose()["models_folder"]

    assert row["status"] == "warn"
    assert "bad.gguf" in row["hint"]


def test_a_default_model_that_is_gone_is_a_fault(
    diagnose: Callable[..., dict[str, dict[str, Any]]], make_context: MakeContext
) -> None:
    row = diagnose(make_context(flags={"default_model": "gone"}))["default_model"]

    assert row["status"] == "fail"
    assert "gone" in row["message"]


def test_the_template_of_the_real_model_works(make_context: MakeContext, model_path: Path) -> None:
    ctx = make_context(flags={"models_dir": str(model_path.parent), "default_model": "smollm2-135m"})

    found = checks.chat_template(ctx)

    assert found.status == "ok"
    assert "gguf" in found.message


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for m in %}", "the form of `qwen` is: "),
        ("{# nothing #}", "does not write the user's text into the prompt"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "more than 100000 steps"),
    ],
)
def test_a_template_that_does_not_work_is_found_in_any_model(
    diagnose: Callable[..., dict[str, dict[str, Any]]], tmp_path: Path, template: str, words: str
) -> None:
    working = gguf_bytes.model(tokenizer__chat_template="{{ messages[0].content }}")
    broken = gguf_bytes.model(tokenizer__chat_template=template)
    gguf_bytes.write(tmp_path / "models", {"good.gguf": working, "qwen2.5-bad.gguf": broken})

    row = diagnose()["chat_template"]

    assert row["status"] == "warn"
    assert "`qwen2.5-bad`" in row["message"]
    assert words in row["message"]
    assert "good" not in row["message"]


def test_a_model_without_a_template_is_told(diagnose: Callable[..., dict[str, dict[str, Any]]], tmp_path: Path) -> None:
    gguf_bytes.write(tmp_path / "models", {"plain.gguf": gguf_bytes.model(), "gemma-2b.gguf": gguf_bytes.model()})

    row = diagnose()["chat_template"]

    assert row["status"] == "warn"
    assert "`plain`: it has no chat template" in row["message"]
    assert row["hint"] is None


def test_a_key_file_that_others_can_read_is_a_fault(
    diagnose: Callable[..., dict[str, dict[str, Any]]], tmp_path: Path
) -> None:
    store_key(tmp_path / "state", make_key())
    assert diagnose()["api_key"]["status"] == "ok"

    keys_file(tmp_path / "state").chmod(0o644)

    row = diagnose()["api_key"]
    assert row["status"] == "fail"
    assert row["hint"].startswith("chmod 600")


def test_a_damaged_key_file_is_a_fault_and_hides_nothing(
    diagnose: Callable[..., dict[str, dict[str, Any]]], tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    keys_file(tmp_path / "state").write_text("{")

    found = diagnose()

    assert found["api_key"]["status"] == "fail"
    assert list(found) == list(CHECKS)


def test_a_port_that_a_stranger_holds_is_a_fault(
    diagnose: Callable[..., dict[str, dict[str, Any]]], make_context: MakeContext
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        row = diagnose(make_context(flags={"port": stranger.getsockname()[1]}))["port"]

    assert row["status"] == "fail"


def test_a_state_folder_below_a_file_is_a_fault(
    diagnose: Callable[..., dict[str, dict[str, Any]]], tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("in the way")

    assert diagnose()["state_folder"]["status"] == "fail"
