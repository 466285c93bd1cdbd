"""`plan log` and `plan undo`: what was changed is told, and taken back unless something has changed it since."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import ConfigInvalid, NotFound, StalePlan, Unsupported
from localllm.executors.context import Context
from localllm.executors.dispatch import dispatch, preview
from localllm.executors.events import Event, Result
from localllm.executors.keys import key_is_required, key_is_valid
from localllm.executors.render import Renderer
from localllm.planner.codec import load_plan

MakeContext = Callable[..., Context]
RunResult = Callable[..., Result]
UNDO = {"command": "plan.undo", "entry": "last"}


def setting(port: str) -> dict[str, str]:
    return {"command": "config.set", "key": "port", "value": port}


def entries(run_result: RunResult, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_result({"command": "plan.log", **more}).data["entries"]
    return found


def test_the_log_lists_changes_oldest_first(run_result: RunResult) -> None:
    run_result(setting("1"))
    run_result(setting("2"))
    run_result({"command": "auth.enable"})

    rows = entries(run_result)
    assert [row["command"] for row in rows] == ["config.set", "config.set", "auth.enable"]
    assert all(row["reversible"] for row in rows)
    assert [row["command"] for row in entries(run_result, lines=1)] == ["auth.enable"]
    assert entries(run_result, lines=0) == []
    assert "sha256" not in json.dumps([row for row in rows if row["command"] == "auth.enable"]).replace("sha256:", "")


def test_a_setting_gets_its_earlier_value_back(run_result: RunResult, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("# mine\nport = 7 # seven\n")
    run_result(setting("9000"))

    result = run_result(UNDO)

    assert (result.data["before"], result.data["after"]) == (9000, 7)
    assert (tmp_path / "config.toml").read_text() == "# mine\nport = 7 # seven\n"


def test_a_setting_that_was_not_there_goes_again(run_result: RunResult, tmp_path: Path) -> None:
    run_result(setting("9000"))
    run_result(UNDO)

    assert "port" not in (tmp_path / "config.toml").read_text()


def test_an_unset_setting_comes_back(run_result: RunResult, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('allowed_hosts = ["a, b"]\n')
    run_result({"command": "config.unset", "key": "allowed_hosts"})
    run_result(UNDO)

    assert (tmp_path / "config.toml").read_text() == 'allowed_hosts = ["a, b"]\n'


def test_what_has_changed_since_is_not_overwritten(run_result: RunResult, tmp_path: Path) -> None:
    run_result(setting("9000"))
    (tmp_path / "config.toml").write_text("port = 5\n")

    with pytest.raises(StalePlan, match="`port` is `5` by now") as caught:
        run_result(UNDO)
    assert caught.value.exit_code == 5
    assert (tmp_path / "config.toml").read_text() == "port = 5\n"


def test_undoing_goes_back_step_by_step(run_result: RunResult, tmp_path: Path) -> None:
    for port in ("1", "2", "3"):
        run_result(setting(port))
    found = [run_result(UNDO).data["after"] for _ in range(3)]

    assert found == [2, 1, None]
    with pytest.raises(NotFound):
        run_result(UNDO)


def test_an_entry_is_taken_back_once(run_result: RunResult) -> None:
    run_result(setting("9000"))
    (row,) = entries(run_result)
    run_result({**UNDO, "entry": row["entry"]})

    with pytest.raises(StalePlan, match="already"):
        run_result({**UNDO, "entry": row["entry"]})
    first, second, refused = entries(run_result)
    assert (first["undone_by"], first["reversible"]) == (second["entry"], False)
    assert (refused["outcome"], refused["error"]["code"]) == ("failed", "stale_plan")


def test_taking_back_an_undo_does_the_change_again(run_result: RunResult, tmp_path: Path) -> None:
    run_result(setting("9000"))
    run_result(UNDO)
    undone = entries(run_result)[-1]["entry"]

    run_result({**UNDO, "entry": undone})

    assert "port = 9000" in (tmp_path / "config.toml").read_text()
    assert run_result(UNDO).data["after"] is None


def test_turning_auth_on_is_taken_back(run_result: RunResult, tmp_path: Path) -> None:
    run_result({"command": "auth.enable"})
    run_result(UNDO)

    assert not key_is_required(tmp_path / "state")


@pytest.mark.parametrize("command", ["auth.disable", "auth.enable"])
def test_a_key_that_was_disabled_or_replaced_works_again(run_result: RunResult, tmp_path: Path, command: str) -> None:
    key = run_result({"command": "auth.enable"}).data["key"]
    run_result({"command": command})
    assert not key_is_valid(tmp_path / "state", key)

    run_result(UNDO)

    assert key_is_valid(tmp_path / "state", key)


def test_a_key_that_was_replaced_since_is_left_alone(run_result: RunResult, tmp_path: Path) -> None:
    run_result({"command": "auth.enable"})
    (first,) = entries(run_result)
    key = run_result({"command": "auth.enable"}).data["key"]

    with pytest.raises(StalePlan):
        run_result({**UNDO, "entry": first["entry"]})
    assert key_is_valid(tmp_path / "state", key)


def test_what_cannot_be_taken_back_says_why(run_result: RunResult) -> None:
    run_result(setting("9000"))
    run_result(setting("9000"))
    rows = entries(run_result)

    assert [row["reversible"] for row in rows] == [True, False]
    with pytest.raises(Unsupported, match="changed nothing"):
        run_result({**UNDO, "entry": rows[1]["entry"]})


def test_a_dry_run_shows_the_way_back_and_takes_no_step(
    run_result: RunResult, make_context: MakeContext, tmp_path: Path
) -> None:
    run_result(setting("9000"))
    before = (tmp_path / "config.toml").read_bytes()

    report = preview(load_plan(UNDO), make_context())

    assert report["diff"] == {"before": {"port": 9000}, "after": {"port": None}}
    assert report["effects"] == ["update"]
    assert {item["kind"] for item in report["preconditions"]} == {"config", "applied"}
    assert (tmp_path / "config.toml").read_bytes() == before
    (tmp_path / "config.toml").write_text("port = 5\n")
    assert any("would be refused" in warning for warning in preview(load_plan(UNDO), make_context())["warnings"])


def test_the_log_is_a_table_for_people(run_result: RunResult, capsys: pytest.CaptureFixture[str]) -> None:
    run_result(setting("9000"))
    for raw in ({"command": "plan.log"}, UNDO, {"command": "plan.log"}):
        Renderer(raw["command"]).result(run_result(raw))

    shown = capsys.readouterr().out
    assert "config set port 9000" in shown
    assert "can be undone" in shown
    assert "port: 9000 -> unset" in shown
    assert "undone by" in shown


def test_a_report_of_a_change_is_applied_once(run_result: RunResult, make_context: MakeContext, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    apply = {"command": "apply", "file": str(file)}
    enable = load_plan({"command": "auth.enable"})
    file.write_text(json.dumps(preview(enable, make_context())))
    run_result(apply)

    with pytest.raises(StalePlan, match="was applied already") as caught:
        run_result(apply)
    assert caught.value.exit_code == 5
    file.write_text(json.dumps(preview(enable, make_context())))
    assert run_result(apply).data["replaced"]


def test_a_report_that_its_own_application_made_stale_names_that_first(
    run_result: RunResult, make_context: MakeContext, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(preview(load_plan(setting("9000")), make_context())))
    run_result({"command": "apply", "file": str(file)})

    with pytest.raises(StalePlan, match="was applied already") as caught:
        run_result({"command": "apply", "file": str(file)})
    assert len(caught.value.data["failed"]) == 2


def test_a_report_whose_plan_failed_may_be_applied_again(
    run_result: RunResult, make_context: MakeContext, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(preview(load_plan(setting("9000")), make_context())))
    (tmp_path / ".config.toml.lock").mkdir()
    with pytest.raises(ConfigInvalid, match="cannot be written"):
        run_result({"command": "apply", "file": str(file)})
    (tmp_path / ".config.toml.lock").rmdir()

    assert run_result({"command": "apply", "file": str(file)}).data["after"] == 9000


def test_of_two_applies_at_once_one_is_refused(make_context: MakeContext, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(preview(load_plan({"command": "auth.enable"}), make_context())))

    async def one() -> list[Event]:
        plan = load_plan({"command": "apply", "file": str(file)})
        return [event async for event in dispatch(plan, make_context())]

    async def both() -> list[Any]:
        return await asyncio.gather(one(), one(), return_exceptions=True)

    outcomes = asyncio.run(both())

    refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(refused) == 1
    assert getattr(refused[0], "exit_code", None) == 5
