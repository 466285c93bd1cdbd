"""Ctrl-C and SIGTERM in each phase of a replay: what runs is ended, `finally` runs, the report is written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fixtures.waiting import wait_until

HANGS = {"plan": {"command": "logs", "follow": True}}
SLOW = {
    "plan": {"command": "version"},
    "retry": {"times": 20, "interval_s": 0.1, "until": {"$.result.version": "never"}},
    "continue_on_error": True,
}


def marks(tmp_path: Path, name: str) -> dict[str, Any]:
    """A step that leaves a mark in the config file of the test."""
    return {"plan": {"command": "config.set", "key": f"aliases.{name}", "value": "done"}}


@pytest.fixture
def start(tmp_path: Path, clean_env: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `localllm replay` on files, with a JUnit report beside them."""
    running: list[subprocess.Popen[str]] = []
    env = clean_env | {"LOCALLLM_CONFIG": str(tmp_path / "config.toml")}
    (tmp_path / "config.toml").touch()

    def run(*files: Path, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "localllm", "replay", *map(str, files), *options]
        process = subprocess.Popen(
            [*command, "--report", f"junit={tmp_path}/junit.xml"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def write(tmp_path: Path, name: str, steps: list[Any], last: list[Any]) -> Path:
    path = tmp_path / f"{name}.plan.json"
    path.write_text(json.dumps({"format_version": "1.0", "steps": steps, "finally": last}))
    return path


def wait_for(process: subprocess.Popen[str], tmp_path: Path, name: str) -> None:
    """Wait until a step has left its mark."""

    def has_left_it() -> bool:
        assert process.poll() is None, process.communicate()
        return f"{name} = " in (tmp_path / "config.toml").read_text()

    wait_until(has_left_it, "the step")


def wait_for_end_of_first_step(tmp_path: Path) -> None:
    """Wait until what the first step came to is kept; the next one begins, or is about to."""

    def is_kept() -> bool:
        return any('"step":1,' in path.read_text() for path in (tmp_path / "home").rglob("replay/*.jsonl"))

    wait_until(is_kept, "the first step's end")


def end(process: subprocess.Popen[str], number: int) -> tuple[int, str, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


def statuses(tmp_path: Path) -> list[list[str]]:
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    return [[child.tag for child in case] for case in root.iter("testcase")]


def open_once_it_is_read(pipe: Path) -> int:
    """Open a pipe for writing when somebody reads it, who then waits for what is never written."""
    opened: list[int] = []

    def is_open() -> bool:
        try:
            opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    wait_until(is_open, "the reading")
    return opened[0]


def test_ctrl_c_while_files_are_checked_runs_nothing(start, tmp_path):
    os.mkfifo(tmp_path / "pipe.plan.json")
    good = write(tmp_path, "a", [marks(tmp_path, "ran")], [marks(tmp_path, "last")])
    process = start(good, tmp_path / "pipe.plan.json")
    writer = open_once_it_is_read(tmp_path / "pipe.plan.json")
    code, out, err = end(process, signal.SIGINT)
    os.close(writer)

    assert (code, out) == (130, "")
    assert "interrupted" in err
    assert (tmp_path / "config.toml").read_text() == ""
    assert not (tmp_path / "junit.xml").exists()


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_a_step_runs_ends_it_and_finally_runs(start, tmp_path, number, code):
    steps = [marks(tmp_path, "began"), HANGS, marks(tmp_path, "never")]
    process = start(write(tmp_path, "a", steps, [marks(tmp_path, "last")]))
    wait_for_end_of_first_step(tmp_path)
    got, out, err = end(process, number)

    assert got == code, err
    assert out.splitlines()[-1] == "passed=2 failed=0 skipped=2 total=4 score=50"
    assert "last" in (tmp_path / "config.toml").read_text()
    assert "never" not in (tmp_path / "config.toml").read_text()
    assert statuses(tmp_path) == [[], ["skipped"], ["skipped"], []]


def test_ctrl_c_ends_every_file_that_runs_and_starts_no_other(start, tmp_path):
    files = [
        write(tmp_path, name, [marks(tmp_path, f"began_{name}"), HANGS], [marks(tmp_path, f"last_{name}")])
        for name in "abc"
    ]
    process = start(*files, options=("--jobs", "2"))
    wait_for(process, tmp_path, "began_a")
    wait_for(process, tmp_path, "began_b")
    code, _, err = end(process, signal.SIGINT)
    text = (tmp_path / "config.toml").read_text()

    assert code == 130, err
    assert "last_a" in text
    assert "last_b" in text
    assert "_c" not in text


def test_ctrl_c_while_finally_runs_lets_it_end(start, tmp_path):
    last = [marks(tmp_path, "finishing"), SLOW, marks(tmp_path, "last")]
    process = start(write(tmp_path, "a", [{"plan": {"command": "version"}}], last))
    wait_for(process, tmp_path, "finishing")
    code, out, err = end(process, signal.SIGINT)

    assert code == 130, err
    assert "last" in (tmp_path / "config.toml").read_text()
    assert out.splitlines()[-1].startswith("passed=3 failed=1")
    assert len(statuses(tmp_path)) == 4


def test_a_second_ctrl_c_ends_at_once_and_leaves_the_report(start, tmp_path):
    last = [marks(tmp_path, "finishing"), HANGS, marks(tmp_path, "last")]
    process = start(write(tmp_path, "a", [{"plan": {"command": "version"}}], last))
    wait_for(process, tmp_path, "finishing")
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    for _ in range(20):  # two that come before the first is heeded are one
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=10)
            break
        except subprocess.TimeoutExpired:
            pass

    assert process.returncode == 130, err
    assert "last" not in (tmp_path / "config.toml").read_text()
    assert "Traceback" not in err
    assert len(statuses(tmp_path)) == 2


def test_an_interrupted_replay_is_resumed(start, tmp_path):
    pipe = tmp_path / "read.plan.json"
    os.mkfifo(pipe)
    reads = {"plan": {"command": "plan.validate", "files": [str(pipe)]}}
    path = write(tmp_path, "a", [marks(tmp_path, "began"), reads, {"plan": {"command": "version"}}], [])
    process = start(path)
    handle = open_once_it_is_read(pipe)
    assert end(process, signal.SIGINT)[0] == 130
    os.close(handle)
    pipe.unlink()
    pipe.write_text(json.dumps({"command": "version"}))
    (tmp_path / "config.toml").write_text("")
    out, err = start(path, options=("--resume",)).communicate(timeout=200)

    assert out.splitlines()[-1] == "passed=3 failed=0 skipped=0 total=3 score=100", err
    assert (tmp_path / "config.toml").read_text() == "", "the first step ran again"


def test_what_was_interrupted_is_not_resumed_with_other_variables(start, tmp_path):
    path = write(tmp_path, "a", [marks(tmp_path, "began"), {**HANGS, "if": "${hang}"}], [])
    process = start(path, options=("--var", "hang=true"))
    wait_for_end_of_first_step(tmp_path)
    assert end(process, signal.SIGINT)[0] == 130
    again = start(path, options=("--var", "hang=false", "--resume"))
    out, err = again.communicate(timeout=200)

    assert again.returncode == 5, (out, err)
    assert "variable" in err


def test_two_replays_of_one_file_at_once_both_end_well(start, tmp_path):
    path = write(tmp_path, "a", [{"plan": {"command": "version"}}] * 20, [])
    first, second = start(path), start(path)
    outs = [process.communicate(timeout=200)[0] for process in (first, second)]

    assert [process.returncode for process in (first, second)] == [0, 0]
    assert [out.splitlines()[-1][:9] for out in outs] == ["passed=20"[:9]] * 2
