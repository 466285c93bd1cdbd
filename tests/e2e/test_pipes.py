"""What happens when standard output is closed, full, or read by nobody, as shells make it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

LOCALLLM = f"{shlex.quote(sys.executable)} -m localllm"
COMMANDS = ["version", "config list", "--help", "--dry-run chat hello", "models show nope --output json"]


def shell(script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_leaves_early_is_no_fault(clean_env, command):
    # the reader is gone before anything is written, so that the write fails for certain
    done = shell(f"{{ sleep 0.5; {LOCALLLM} {command}; echo code $? >&2; }} | true", clean_env)

    code = int(done.stderr.split("code")[-1])
    assert code == 141
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_said_and_not_taken_for_success(clean_env, command):
    done = shell(f"{LOCALLLM} {command} > /dev/full", clean_env)

    assert done.returncode == 6
    assert done.stderr.startswith("error: standard output cannot be written")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_stdout_is_said_and_not_taken_for_success(clean_env, command):
    done = shell(f"{LOCALLLM} {command} >&-", clean_env)

    assert done.returncode == 6
    assert done.stderr == "error: standard output is closed\n"


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full", "<&-"])
def test_the_result_still_comes_when_stderr_or_stdin_is_unusable(clean_env, redirect):
    done = shell(f"{LOCALLLM} config get port {redirect}", clean_env)

    assert done.returncode == 0
    assert "8484" in done.stdout


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full"])
def test_a_failure_keeps_its_exit_code_when_nobody_can_read_about_it(clean_env, redirect):
    assert shell(f"{LOCALLLM} config get nope {redirect}", clean_env).returncode == 3
