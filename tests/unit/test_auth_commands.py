"""`auth enable|disable|status`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from localllm.errors import ConfigInvalid
from localllm.executors.context import Context
from localllm.executors.dispatch import preview
from localllm.executors.events import Result
from localllm.executors.keys import key_is_valid
from localllm.executors.state import keys_file
from localllm.planner.codec import load_plan

Run = Callable[..., Result]


def test_the_key_is_shown_once_and_works(run_result: Run, tmp_path: Path) -> None:
    key = run_result({"command": "auth.enable"}).data["key"]

    assert key_is_valid(tmp_path / "state", key)
    assert key not in json.dumps(run_result({"command": "auth.status"}).data)


def test_status_follows(run_result: Run) -> None:
    assert run_result({"command": "auth.status"}).data["enabled"] is False
    run_result({"command": "auth.enable"})
    assert run_result({"command": "auth.status"}).data["enabled"] is True
    assert run_result({"command": "auth.disable"}).data == {"enabled": False, "changed": True}
    assert run_result({"command": "auth.disable"}).data == {"enabled": False, "changed": False}
    assert run_result({"command": "auth.status"}).data["enabled"] is False


def test_a_second_enable_says_that_the_old_key_is_gone(run_result: Run) -> None:
    assert run_result({"command": "auth.enable"}).data["replaced"] is False
    assert run_result({"command": "auth.enable"}).data["replaced"] is True


def test_a_dry_run_makes_no_key(make_context: Callable[..., Context], tmp_path: Path) -> None:
    report = preview(load_plan({"command": "auth.enable"}), make_context())

    assert report["diff"] == {"before": {"enabled": False}, "after": {"enabled": True}}
    assert not (tmp_path / "state").exists()


def test_disable_mends_a_damaged_file(run_result: Run, tmp_path: Path) -> None:
    keys_file(tmp_path / "state").parent.mkdir()
    keys_file(tmp_path / "state").write_text("{")
    with pytest.raises(ConfigInvalid):
        run_result({"command": "auth.status"})

    run_result({"command": "auth.disable"})

    assert run_result({"command": "auth.status"}).data["enabled"] is False
