"""With `--output json` stdout is one JSON document for every command, also when it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

RUNS: list[tuple[str, int]] = [
    ("version", 0),
    ("status", 1),
    ("models scan", 0),
    ("models list", 0),
    ("models show nope", 3),
    ("models load nope", 7),
    ("models unload nope", 7),
    ("models unload", 2),
    ("models pull nope", 3),
    ("auth status", 0),
    ("auth enable", 0),
    ("auth disable", 0),
    ("config get port", 0),
    ("config get prt", 3),
    ("config set port 1", 0),
    ("config set port 80a", 2),
    ("config set n_gpu_layer 4", 2),
    ("config unset port", 0),
    ("config list", 0),
    ("logs", 0),
    ("logs --lines -1", 2),
    ("chat hello --model nope", 3),
    ("chat hello", 3),
    ("bench latency --model nope", 3),
    ("bench throughput --model nope", 3),
    ("apply nowhere.json", 3),
    ("serve --port 99999", 2),
    ("nonsense", 2),
    ("models load", 2),
    ("version --nonsense", 2),
]


@pytest.fixture
def run(cli: Cli, tmp_path: Path) -> Cli:
    """A call with folders of its own and no server."""
    env = {
        "LOCALLLM_SERVER": "http://127.0.0.1:9",
        "LOCALLLM_MODELS_DIR": str(tmp_path / "models"),
        "LOCALLLM_STATE_DIR": str(tmp_path / "state"),
    }
    return lambda *args: cli(*args, env=env)


@pytest.mark.parametrize(("line", "code"), RUNS, ids=[line for line, _ in RUNS])
def test_stdout_is_one_document_and_the_exit_code_is_that_of_text(run: Cli, line: str, code: int) -> None:
    done = run("--output", "json", *line.split())
    text = run(*line.split())

    document = json.loads(done.out)
    assert done.code == code, done.out
    assert text.code == code, text.err
    if code not in (0, 1):
        assert document["error"]["message"]
        assert document["error"]["exit_code"] == code
        assert text.out == ""
        assert any(row.startswith("error: ") for row in text.err.splitlines())
    assert "Traceback" not in done.err + text.err


@pytest.mark.parametrize("flags", [("-v",), ("--quiet",), ()])
def test_how_much_is_said_does_not_change_stdout(run: Cli, flags: tuple[str, ...]) -> None:
    done = run("--output", "json", *flags, "models", "list")

    assert json.loads(done.out)["models"] == []


def test_streamed_json_is_one_event_a_line(run: Cli) -> None:
    done = run("--output", "json", "--stream", "config", "list")

    (line,) = done.out.splitlines()
    assert json.loads(line)["event"] == "result"
