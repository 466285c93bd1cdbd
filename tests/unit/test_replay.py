"""`replay`: steps run in order and are judged, whatever fails is an outcome, and `finally` always runs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import BadInput, InvalidPlan, NotFound, StalePlan
from localllm.executors.context import Context
from localllm.executors.dispatch import preview
from localllm.executors.events import Event, Record, Result
from localllm.executors.ledger import ledger_of
from localllm.planner.codec import load_plan
from localllm.planner.settings import resolve_settings

MakeContext = Callable[..., Context]
VERSION = {"command": "version"}
PORT = {"command": "config.get", "key": "port"}
HANGS = {"command": "logs", "follow": True}
FAILS = {"command": "config.get", "key": "nope"}


def setting(port: str) -> dict[str, str]:
    return {"command": "config.set", "key": "port", "value": port}


class Replayed:
    """What a replay yielded: its result, and each step's record by name."""

    def __init__(self, events: list[Event]) -> None:
        last = events[-1]
        assert isinstance(last, Result)
        self.result = last
        self.data = last.data
        self.records = [event.data for event in events if isinstance(event, Record)]

    def marks(self) -> list[tuple[str, str]]:
        return [(record["name"], record["status"]) for record in self.records]

    def counts(self) -> tuple[int, int, int]:
        return self.data["passed"], self.data["failed"], self.data["skipped"]


@pytest.fixture
def replay(run_plan: Callable[..., list[Event]], tmp_path: Path) -> Callable[..., Replayed]:
    """Write plan files and replay them: `replay(document, …, jobs=2)`; names are `a`, `b`, …"""

    def run(*documents: dict[str, Any] | str, ctx: Context | None = None, **options: Any) -> Replayed:
        files = []
        for letter, document in zip("abcdef", documents, strict=False):
            path = tmp_path / f"{letter}.plan.yaml"
            path.write_text(document if isinstance(document, str) else json.dumps(document))
            files.append(str(path))
        return Replayed(run_plan({"command": "replay", "files": files, **options}, ctx))

    return run


def steps(*given: Any, **more: Any) -> dict[str, Any]:
    """A plan file with these steps; a bare plan is a step of its own."""
    written = [each if "plan" in each or "include" in each else {"plan": each} for each in given]
    return {"format_version": "1.0", "steps": written, **more}


def port_now(tmp_path: Path) -> int:
    return resolve_settings({}, {}, config_file=tmp_path / "config.toml", must_exist=False).port


def test_steps_run_in_order_and_are_counted(replay: Callable[..., Replayed]) -> None:
    done = replay(steps({"name": "one", "plan": VERSION}, {"name": "two", "plan": PORT}))

    assert done.marks() == [("one", "passed"), ("two", "passed")]
    assert done.result.ok
    assert (done.data["total"], done.data["score"]) == (2, 100.0)
    assert done.records[0]["place"]["line"] == 1


def test_after_a_failed_step_the_rest_is_skipped_and_finally_runs(
    replay: Callable[..., Replayed], tmp_path: Path
) -> None:
    document = steps({"name": "bad", "plan": FAILS}, setting("1"), **{"finally": [{"plan": setting("2")}]})
    done = replay(document)

    assert [mark for _, mark in done.marks()] == ["failed", "skipped", "passed"]
    assert not done.result.ok
    assert port_now(tmp_path) == 2
    assert any("nope" in problem["message"] for problem in done.records[0]["problems"])
    assert done.records[0]["exit_code"] == 3


def test_a_step_may_fail_and_let_the_others_go_on(replay: Callable[..., Replayed]) -> None:
    done = replay(steps(FAILS, VERSION, VERSION, VERSION, defaults={"continue_on_error": True}))

    assert done.counts() == (3, 1, 0)
    assert done.data["score"] == 75.0


def test_a_failure_that_was_expected_passes(replay: Callable[..., Replayed]) -> None:
    done = replay(steps({"plan": FAILS, "expect": {"exit_code": 3, "$.error.code": "not_found"}}))

    assert done.counts() == (1, 0, 0)


def test_what_one_step_captures_the_next_ones_use(replay: Callable[..., Replayed]) -> None:
    first = {"plan": PORT, "capture": {"port": "$.result.value"}}
    then = {"name": "again ${port}", "plan": PORT, "expect": {"$.result.value": "${port}"}}
    done = replay(steps(first, then))

    assert done.counts() == (2, 0, 0)
    assert done.records[1]["name"] == "again 8484"


def test_a_capture_of_what_is_not_there_fails_its_step(replay: Callable[..., Replayed]) -> None:
    done = replay(steps({"plan": PORT, "capture": {"port": "$.result.nope"}}, {"plan": PORT, "if": "${port}"}))

    assert [mark for _, mark in done.marks()] == ["failed", "skipped"]


def test_conditions_and_lists(replay: Callable[..., Replayed]) -> None:
    done = replay(
        steps(
            {"name": "never", "plan": VERSION, "if": "${wanted}"},
            {"name": "each ${item}", "plan": VERSION, "for_each": ["a", "b"]},
            {"name": "none", "plan": VERSION, "for_each": []},
            vars={"wanted": False},
        )
    )

    assert done.marks() == [("never", "skipped"), ("each a", "passed"), ("each b", "passed"), ("none", "skipped")]
    assert [record.get("iteration") for record in done.records] == [None, 0, 1, 0]


def test_a_step_is_tried_again_until_it_is_as_expected(replay: Callable[..., Replayed]) -> None:
    waits = {
        "plan": {"command": "plan.log"},
        "retry": {"times": 1000, "interval_s": 0.02, "until": {"$.result.total": {">=": 1}}},
    }
    done = replay(steps(waits), steps(setting("1")), jobs=2)

    assert done.counts() == (2, 0, 0)


def test_a_step_that_never_is_as_expected_is_tried_as_often_as_it_says(replay: Callable[..., Replayed]) -> None:
    done = replay(steps({"plan": PORT, "expect": {"$.result.value": 1}, "retry": {"times": 2, "interval_s": 0}}))

    assert (done.records[0]["status"], done.records[0]["attempts"]) == ("failed", 3)


def test_a_step_that_hangs_is_ended_by_its_time(replay: Callable[..., Replayed]) -> None:
    began = time.monotonic()
    done = replay(
        steps({"plan": HANGS, "timeout_s": 0.2, "continue_on_error": True}, HANGS, VERSION),
        timeout_s=0.3,
    )

    assert [mark for _, mark in done.marks()] == ["failed", "failed", "skipped"]
    assert "0.2 s" in done.records[0]["problems"][-1]["message"]
    assert "0.3 s" in done.records[1]["problems"][-1]["message"]
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "plan",
    [
        {"command": "apply", "file": "PIPE"},
        {"command": "plan.validate", "files": ["PIPE"]},
        {"command": "plan.id", "file": "PIPE"},
        {"command": "plan.diff", "a": "PIPE", "b": "PIPE"},
        {"command": "plan.lock", "file": "PIPE"},
        {"command": "explain", "target": ["PIPE"]},
    ],
    ids=lambda plan: plan["command"],
)
def test_a_step_that_hangs_in_the_system_is_left_behind(
    replay: Callable[..., Replayed], tmp_path: Path, plan: dict[str, Any]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    plan = json.loads(json.dumps(plan).replace("PIPE", str(tmp_path / "pipe")))
    before = set(threading.enumerate())
    done = replay(steps({"plan": plan, "timeout_s": 0.2, "continue_on_error": True}, VERSION))

    assert done.counts() == (1, 1, 0)
    left = set(threading.enumerate()) - before
    assert left
    assert all(thread.daemon for thread in left)  # else the process would wait for it for ever
    # the reader that was left behind must not outlive the test
    threading.Thread(target=lambda: (tmp_path / "pipe").write_text(""), daemon=True).start()


def test_one_failure_stops_the_other_files_too_where_that_is_asked_for(replay: Callable[..., Replayed]) -> None:
    done = replay(steps(FAILS, defaults={"continue_on_error": True}), steps(VERSION, VERSION), fail_fast=True)

    assert done.counts() == (0, 1, 2)
    assert done.records[-1]["reason"] == "another step failed"


def test_files_know_nothing_of_each_other(replay: Callable[..., Replayed]) -> None:
    writes = steps({"plan": PORT, "capture": {"port": "$.result.value"}}, vars={"who": "a"})
    reads = steps(
        {"name": "${who}", "plan": PORT, "expect": {"$.result.value": {"type": "integer"}}}, vars={"who": "b"}
    )
    done = replay(writes, reads, jobs=2)

    assert sorted(record["suite"] for record in done.records) == ["a", "b"]
    assert done.counts() == (2, 0, 0)
    with pytest.raises(InvalidPlan, match="there is no variable `port`"):
        replay(writes, steps({"name": "${port}", "plan": PORT}))


def test_a_changed_setting_holds_for_the_steps_that_follow(
    replay: Callable[..., Replayed], make_context: MakeContext, tmp_path: Path
) -> None:
    ctx = make_context()
    ctx.refresh = lambda: make_context().settings
    done = replay(steps(setting("9000"), {"plan": PORT, "expect": {"$.result.value": 9000}}), ctx=ctx)

    assert done.counts() == (2, 0, 0)
    assert [entry.record["actor"]["door"] for entry in ledger_of(tmp_path / "state").entries()] == ["replay"]


def test_a_step_may_only_show_what_it_would_do(replay: Callable[..., Replayed], tmp_path: Path) -> None:
    step = {"plan": setting("9000"), "dry_run": True, "expect": {"$.result.diff.after.port": 9000}}
    done = replay(steps(step))

    assert done.counts() == (1, 0, 0)
    assert not (tmp_path / "config.toml").exists()


def test_tags_select_steps(replay: Callable[..., Replayed]) -> None:
    document = steps(
        {"name": "one", "plan": VERSION, "tags": ["smoke"]}, {"name": "two", "plan": VERSION, "tags": ["slow"]}, VERSION
    )

    assert replay(document, tags=["smoke"]).marks() == [("one", "passed")]
    assert replay(document, tags=["smoke,slow"]).counts() == (2, 0, 0)
    with pytest.raises(BadInput, match="`nope`"):
        replay(document, tags=["nope"])


def test_an_empty_selection_fails_unless_it_is_allowed(replay: Callable[..., Replayed], tmp_path: Path) -> None:
    document = steps(VERSION, **{"finally": [{"plan": setting("1")}]})

    with pytest.raises(BadInput):
        replay(steps())
    done = replay(document, tags=["nope"], allow_empty=True)
    assert (done.data["total"], done.result.ok) == (0, True)
    assert not (tmp_path / "config.toml").exists()


def test_a_replay_may_begin_at_a_step(replay: Callable[..., Replayed]) -> None:
    document = steps({"name": "one", "plan": VERSION}, {"name": "two", "plan": VERSION}, {"name": "x", "plan": VERSION})

    assert [name for name, _ in replay(document, from_step="two").marks()] == ["two", "x"]
    assert [name for name, _ in replay(document, from_step="3").marks()] == ["x"]
    with pytest.raises(NotFound, match="`twoo`") as caught:
        replay(document, from_step="twoo")
    assert "`two`" in str(caught.value.hint)


def test_only_what_failed_last_time_runs_again(replay: Callable[..., Replayed], tmp_path: Path) -> None:
    wanted = "1"
    first = {"name": "first", "plan": PORT, "capture": {"port": "$.result.value"}}
    second = {"name": "second", "plan": PORT, "expect": {"$.result.value": 1}}
    third = {"name": "third", "plan": PORT, "expect": {"$.result.value": "${port}"}}
    document = steps(first, second, third, defaults={"continue_on_error": True})
    assert replay(document).counts() == (2, 1, 0)
    (tmp_path / "config.toml").write_text(f"port = {wanted}\n")

    done = replay(document, only_failed=True)

    assert done.marks() == [("second", "passed")]
    with pytest.raises(BadInput, match="no step failed"):
        replay(document, only_failed=True)


def test_a_replay_that_is_refused_leaves_what_the_last_one_came_to(replay: Callable[..., Replayed]) -> None:
    document = steps(PORT, FAILS, defaults={"continue_on_error": True})
    replay(document)

    with pytest.raises(BadInput, match="no step has the tag"):
        replay(document, tags=["nowhere"])
    assert [name for name, _ in replay(document, only_failed=True).marks()] == ["config.get"]


def test_a_killed_replay_goes_on_where_it_was(replay: Callable[..., Replayed], tmp_path: Path) -> None:
    first = {"name": "first", "plan": PORT, "capture": {"port": "$.result.value"}}
    second = {"name": "second ${port}", "plan": PORT, "expect": {"$.result.value": "${port}"}}
    document = steps(first, second, VERSION)
    replay(document)
    (state,) = (tmp_path / "state" / "replay").glob("*.jsonl")
    lines = state.read_bytes().splitlines(keepends=True)
    state.write_bytes(b"".join(lines[:2]) + lines[2][:20])  # killed while it wrote of the second step

    done = replay(document, resume=True)

    assert [name for name, _ in done.marks()] == ["second 8484", "version"]
    assert done.counts() == (3, 0, 0)


def test_a_resumed_replay_that_is_killed_too_goes_on_where_both_were(
    replay: Callable[..., Replayed], tmp_path: Path
) -> None:
    first = {"name": "first", "plan": PORT, "expect": {"$.result.value": 1}, "continue_on_error": True}
    second = {"name": "second", "plan": PORT, "capture": {"port": "$.result.value"}}
    third = {"name": "third", "plan": VERSION, "if": {"port": 8484}}
    document = steps(first, second, third)
    replay(document)
    (state,) = (tmp_path / "state" / "replay").glob("*.jsonl")
    state.write_bytes(b"".join(state.read_bytes().splitlines(keepends=True)[:-2]))  # killed in the third step
    replay(document, resume=True)
    state.write_bytes(b"".join(state.read_bytes().splitlines(keepends=True)[:3]))  # and again in the first

    done = replay(document, resume=True)

    assert done.marks() == [("first", "failed"), ("third", "passed")]
    assert done.counts() == (2, 1, 0)
    assert done.data["total"] == 3


def test_what_failed_for_items_that_are_gone_does_not_stay_failed(
    replay: Callable[..., Replayed], tmp_path: Path
) -> None:
    step = {"name": "each", "plan": PORT, "expect": {"$.result.value": "${item}"}, "continue_on_error": True}
    replay(steps({**step, "for_each": [8484, 1]}))

    assert replay(steps({**step, "for_each": [8484]}, FAILS), only_failed=True).counts() == (0, 1, 0)
    with pytest.raises(BadInput, match="no step failed"):
        replay(steps({**step, "for_each": [8484]}), only_failed=True)


@pytest.mark.parametrize("change", ["an included file", "a variable"])
def test_what_a_file_depends_on_is_not_resumed_once_it_has_changed(
    replay: Callable[..., Replayed], tmp_path: Path, change: str
) -> None:
    included = tmp_path / "included.plan.json"
    included.write_text(json.dumps(steps(VERSION)))
    document = steps({"include": "included.plan.json"}, vars={"x": 1})
    replay(document, var=["x=2"])
    if change == "an included file":
        included.write_text(json.dumps(steps(PORT)))

    with pytest.raises(StalePlan, match="was changed since"):
        replay(document, resume=True, var=["x=2"] if change == "an included file" else ["x=3"])


def test_a_file_that_was_changed_is_not_resumed(replay: Callable[..., Replayed]) -> None:
    replay(steps(VERSION))

    with pytest.raises(StalePlan, match="was changed since") as caught:
        replay(steps(VERSION, VERSION), resume=True)
    assert caught.value.exit_code == 5


def test_what_holds_a_secret_is_captured_and_not_kept(replay: Callable[..., Replayed], tmp_path: Path) -> None:
    step = {"plan": {"command": "auth.enable"}, "capture": {"made": "$.result.key"}}
    done = replay(
        steps(step, {"plan": VERSION, "if": {"made": {"starts_with": "llm_"}}}), report=[f"json={tmp_path}/r"]
    )

    assert done.counts() == (2, 0, 0)
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or b"llm_" not in path.read_bytes().replace(b'"starts_with": "llm_"', b"")


def test_a_secret_variable_is_shown_nowhere(
    replay: Callable[..., Replayed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "tr0ub4dor")
    document = steps(
        {"name": "set ${secret}", "plan": {"command": "config.set", "key": "default_model", "value": "${secret}"}},
        {"plan": {"command": "config.get", "key": "${secret}"}},
        vars={"secret": {"$secret": "env:MY_SECRET"}},
    )
    reports = [f"{kind}={tmp_path}/report.{kind}" for kind in ("junit", "json", "md")]
    done = replay(document, report=reports)

    assert done.counts() == (1, 1, 0)
    assert "tr0ub4dor" not in json.dumps([done.data, done.records])
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or path.name == "config.toml" or b"tr0ub4dor" not in path.read_bytes()


def test_the_dry_run_of_a_replay_counts_its_steps_and_runs_none(
    replay: Callable[..., Replayed], make_context: MakeContext, tmp_path: Path
) -> None:
    file = tmp_path / "a.plan.json"
    file.write_text(json.dumps(steps(setting("1"), VERSION)))
    before = sorted(tmp_path.rglob("*"))

    report = preview(load_plan({"command": "replay", "files": [str(file)]}), make_context())

    assert report["resolved"]["steps"] == 2
    assert report["effects"] == ["read", "create", "update"]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_replay_begins_no_other_one(replay: Callable[..., Replayed], tmp_path: Path) -> None:
    (tmp_path / "inner.json").write_text(json.dumps({"command": "replay", "files": [str(tmp_path / "a.plan.yaml")]}))
    done = replay(steps({"plan": {"command": "apply", "file": str(tmp_path / "inner.json")}}))

    assert done.records[0]["status"] == "failed"
    assert any("no other one" in problem["message"] for problem in done.records[0]["problems"])


def test_what_no_step_should_raise_is_an_outcome_all_the_same(
    replay: Callable[..., Replayed], make_context: MakeContext
) -> None:
    ctx = make_context()
    ctx.settings = None  # type: ignore[assignment]  # an executor that meets this has a bug

    with pytest.raises(AttributeError):
        replay(steps(PORT), ctx=ctx)
    broken = make_context()
    broken.refresh = lambda: None  # type: ignore[assignment,return-value]
    done = replay(steps(setting("1"), PORT, VERSION, defaults={"continue_on_error": True}), ctx=broken)
    assert done.counts() == (2, 1, 0)
    assert any("unexpected" in problem["message"] for problem in done.records[1]["problems"])


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"format_version": "2.0", "steps": []}, "format version"),
        (steps({"include": "a.plan.yaml"}), "includes itself"),
        (steps({"include": "gone.plan.yaml"}), "there is no file"),
        (steps({"command": "config.gett", "key": "x"}), "config.gett"),
        (steps({"command": "replay", "files": ["x"]}), "include"),
    ],
    ids=["newer", "circle", "gone", "unknown command", "a replay"],
)
def test_a_faulty_file_stops_everything_before_it_starts(
    replay: Callable[..., Replayed], tmp_path: Path, document: dict[str, Any], words: str
) -> None:
    with pytest.raises((InvalidPlan, NotFound), match=words):
        replay(document, steps(setting("1")))

    assert not (tmp_path / "config.toml").exists()
    assert not (tmp_path / "state").exists()


def test_a_file_that_is_gone_is_not_found(run_plan: Callable[..., list[Event]], tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        run_plan({"command": "replay", "files": [str(tmp_path / "gone.plan.yaml")]})

    assert caught.value.exit_code == 3
