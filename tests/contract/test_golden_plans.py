"""Golden cases, one file a command: an argument vector, the plan it means, and the summary people see.

`LOCALLLM_UPDATE_GOLDEN=1 pytest tests/contract/test_golden_plans.py` rewrites `plan`, `plan_id` and `summary` of each
file from its `argv`; read the difference before it is committed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from localllm.planner.cli import parse
from localllm.planner.codec import dump_plan, load_plan
from localllm.planner.identity import plan_id
from localllm.planner.plans import COMMANDS
from localllm.planner.settings import resolve_settings
from localllm.planner.spell import argv_of
from localllm.planner.summary import summarize

FOLDER = Path(__file__).parent / "golden"
FILES = sorted(FOLDER.glob("*.json"))


def outcome_of(argv: list[str]) -> dict[str, object]:
    invocation = parse(argv)
    plan = load_plan(invocation.raw)
    settings = resolve_settings({**invocation.options.flags(), "models_dir": "/models"}, {}, config_file="/dev/null")
    dumped = dump_plan(plan)
    return {
        "argv": argv,
        "plan": dumped,
        "plan_id": plan_id(dumped),
        "summary": summarize(plan, settings).splitlines(),
    }


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_an_argument_vector_means_its_golden_plan(path):
    golden = json.loads(path.read_text("utf-8"))
    outcome = outcome_of(golden["argv"])
    if os.environ.get("LOCALLLM_UPDATE_GOLDEN"):
        path.write_text(json.dumps(outcome, indent=2, ensure_ascii=False) + "\n", "utf-8")
        golden = outcome

    assert outcome == golden
    assert golden["plan"]["command"] == path.stem


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_golden_plan_loads_from_its_file_with_the_same_id(path):
    golden = json.loads(path.read_text("utf-8"))

    assert plan_id(dump_plan(load_plan(golden["plan"]))) == golden["plan_id"]
    assert dump_plan(load_plan(parse(argv_of(golden["plan"])).raw)) == golden["plan"]


def test_every_command_has_a_golden_file():
    assert {path.stem for path in FILES} == set(COMMANDS)
