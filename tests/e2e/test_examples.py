"""Every file in `examples/` runs: programs by themselves, plans by `apply`, plan files by `replay`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from localllm.planner.plans import COMMANDS

FOLDER = Path(__file__).parents[2] / "examples"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.is_file())


def test_each_example_is_a_program_or_a_plan_file():
    assert {"".join(Path(name).suffixes) for name in FILES} == {".py", ".json", ".plan.yaml"}


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith(".plan.yaml")])
def test_it_runs(model_server, name):
    path = str(FOLDER / name)
    command = [path] if name.endswith(".py") else ["-m", "localllm", "apply", path]
    done = subprocess.run([sys.executable, *command], env=model_server.env, capture_output=True, text=True, timeout=200)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".plan.yaml")])
def test_a_plan_file_is_replayed_with_a_junit_report(model_server, tmp_path, name):
    report = f"junit={tmp_path}/junit.xml"
    command = [sys.executable, "-m", "localllm", "replay", f"examples/{name}", "--report", report]
    done = subprocess.run(command, env=model_server.env, capture_output=True, text=True, timeout=290, cwd=FOLDER.parent)
    cases = list(ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase"))

    assert done.returncode == 0, done.stdout + done.stderr
    assert cases
    assert [case.get("name") for case in cases if case.find("failure") is not None] == []


def test_the_tour_takes_in_every_command():
    text = (FOLDER / "tour.plan.yaml").read_text("utf-8")

    assert [name for name in COMMANDS if not re.search(rf"(command: |[\[,] ?){re.escape(name)}[],}}\s]", text)] == []
