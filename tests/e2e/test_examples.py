"""Every file in `examples/` runs: programs by themselves, plan files by `localllm apply`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.is_file())


def test_each_example_is_a_program_or_a_plan_file():
    assert {Path(name).suffix for name in FILES} == {".py", ".json"}


@pytest.mark.parametrize("name", FILES)
def test_it_runs(model_server, name):
    path = str(FOLDER / name)
    command = [path] if name.endswith(".py") else ["-m", "localllm", "apply", path]
    done = subprocess.run([sys.executable, *command], env=model_server.env, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr
