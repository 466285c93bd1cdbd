"""`auth enable|disable|status`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import ConfigInvalid, StalePlan
from localllm.executors.context import Context
from localllm.executors.dispatch import preview
from localllm.executors.events import Result
from localllm.executors.keys import key_is_valid, read_keys, store_key
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


def keys_mark(report: dict[str, Any]) -> str | None:
    (found,) = [item["revision"] for item in report["preconditions"] if item["kind"] == "keys"]
    return None if found is None else str(found)


CHANGES = [
    ([], [{"command": "auth.enable"}], "an API key was made"),
    ([{"command": "auth.enable"}], [{"command": "auth.disable"}], "the API key was removed"),
    ([{"command": "auth.enable"}], [{"command": "auth.enable"}], "the API key has changed"),
]


@pytest.mark.parametrize("command", ["auth.enable", "auth.disable"])
@pytest.mark.parametrize("before, since, words", CHANGES, ids=["made", "removed", "replaced"])
def test_a_saved_report_is_stale_once_the_key_has_changed(
    run_result: Run,
    make_context: Callable[..., Context],
    tmp_path: Path,
    command: str,
    before: list[dict[str, Any]],
    since: list[dict[str, Any]],
    words: str,
) -> None:
    for raw in before:
        run_result(raw)
    saved = tmp_path / "report.json"
    saved.write_text(json.dumps(preview(load_plan({"command": command}), make_context())))
    for raw in since:
        run_result(raw)
    state = read_keys(tmp_path / "state")

    dry = preview(load_plan({"command": "apply", "file": str(saved)}), make_context())
    with pytest.raises(StalePlan) as refused:
        run_result({"command": "apply", "file": str(saved)})

    assert refused.value.exit_code == 5
    assert any(words in each for each in refused.value.data["failed"])
    assert any(words in each for each in dry["warnings"])
    assert read_keys(tmp_path / "state") == state


@pytest.mark.parametrize("command", ["auth.enable", "auth.disable"])
def test_a_report_from_the_present_key_is_applied(
    run_result: Run, make_context: Callable[..., Context], tmp_path: Path, command: str
) -> None:
    run_result({"command": "auth.enable"})
    saved = tmp_path / "report.json"
    saved.write_text(json.dumps(preview(load_plan({"command": command}), make_context())))

    assert run_result({"command": "apply", "file": str(saved)}).ok
    assert run_result({"command": "auth.status"}).data["enabled"] is (command == "auth.enable")


def test_a_report_says_nothing_about_the_key(
    run_result: Run, make_context: Callable[..., Context], tmp_path: Path
) -> None:
    key = run_result({"command": "auth.enable"}).data["key"]
    (entry,) = read_keys(tmp_path / "state")
    texts = [
        json.dumps(preview(load_plan({"command": command}), make_context()))
        for command in ("auth.enable", "auth.disable", "auth.status")
    ]
    # the same key under another salt has another mark: who guesses a key cannot hold it against one
    mark = keys_mark(json.loads(texts[0]))
    store_key(tmp_path / "state", key)
    other = keys_mark(preview(load_plan({"command": "auth.enable"}), make_context()))

    assert mark is not None
    assert other is not None
    assert other != mark
    for text in texts:
        assert not [secret for secret in (key, entry["salt"], entry["sha256"], entry["sha256"][:8]) if secret in text]


def test_a_damaged_file_is_a_state_of_its_own(
    run_result: Run, make_context: Callable[..., Context], tmp_path: Path
) -> None:
    keys_file(tmp_path / "state").parent.mkdir()
    keys_file(tmp_path / "state").write_text("{")
    report = preview(load_plan({"command": "auth.disable"}), make_context())

    assert keys_mark(report) == "damaged"
