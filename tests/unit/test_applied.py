"""The marks that let a report be applied once: how many are kept, and that forgetting makes no report good again."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import InUse, StalePlan
from localllm.executors import applied
from localllm.executors.applied import applied_precondition, claim, failed_applied

MOST = 10


def plan(number: int) -> str:
    return f"sha256:{number:064x}"


def report(number: int, state: Path) -> list[dict[str, Any]]:
    return [applied_precondition(plan(number), state)]


def apply(number: int, preconditions: list[dict[str, Any]], state: Path) -> None:
    with claim(plan(number), preconditions, state, most=MOST) as done:
        done()
    # files of one moment have no order: tell which is older, as a slower machine would
    os.utime(state / "applied" / f"{number:064x}.json", ns=(number * 10**9, number * 10**9))


def marks(state: Path) -> list[int]:
    return sorted(int(path.stem, 16) for path in (state / "applied").glob("*.json"))


def test_the_marks_that_are_kept_are_bounded(tmp_path: Path) -> None:
    most = 0
    for number in range(100):
        apply(number, report(number, tmp_path), tmp_path)
        most = max(most, len(list((tmp_path / "applied").iterdir())))

    assert most <= MOST + 1
    assert marks(tmp_path)[-1] == 99


def test_no_report_is_applied_twice_whatever_was_forgotten(tmp_path: Path) -> None:
    reports = {}
    for number in range(40):
        reports[number] = report(number, tmp_path)
        apply(number, reports[number], tmp_path)
    assert len(marks(tmp_path)) < 40

    for number, saved in reports.items():
        assert failed_applied(saved, plan(number), tmp_path)
        with pytest.raises(StalePlan), claim(plan(number), saved, tmp_path, most=MOST):
            pytest.fail("it was applied again")


def test_a_report_from_before_a_forgetting_may_be_among_the_forgotten(tmp_path: Path) -> None:
    waiting = report(500, tmp_path)
    for number in range(MOST):
        apply(number, report(number, tmp_path), tmp_path)
    assert failed_applied(waiting, plan(500), tmp_path) == []
    apply(MOST, report(MOST, tmp_path), tmp_path)

    (words,) = failed_applied(waiting, plan(500), tmp_path)
    assert "not known whether this one was" in words
    apply(500, report(500, tmp_path), tmp_path)


def test_a_report_of_a_plan_that_is_remembered_outlives_a_forgetting(tmp_path: Path) -> None:
    for number in range(MOST):
        apply(number, report(number, tmp_path), tmp_path)
    waiting = report(MOST - 1, tmp_path)
    apply(MOST, report(MOST, tmp_path), tmp_path)

    assert marks(tmp_path)[0] > 0
    assert failed_applied(waiting, plan(MOST - 1), tmp_path) == []


def test_a_crash_at_any_point_of_a_forgetting_makes_no_report_good_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends at the first, second, … change of the folder."""

    class Crash(BaseException):
        pass

    reports = {number: report(number, tmp_path / "whole") for number in range(MOST + 1)}
    for at in range(30):
        state = tmp_path / f"crash-{at}"
        for number in range(MOST):
            apply(number, reports[number], state)
        left = at

        def counted(do: Any) -> Any:
            def step(*args: Any, **more: Any) -> Any:
                nonlocal left
                if left == 0:
                    raise Crash
                left -= 1
                return do(*args, **more)

            return step

        with monkeypatch.context() as patch:
            patch.setattr(applied, "_write", counted(applied._write))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            try:
                apply(MOST, reports[MOST], state)
            except Crash:
                pass
        good = [number for number in range(MOST) if not failed_applied(reports[number], plan(number), state)]
        assert good == []


def test_what_fails_is_free_again_and_leaves_nothing(tmp_path: Path) -> None:
    saved = report(1, tmp_path)
    with pytest.raises(ValueError, match="no"), claim(plan(1), saved, tmp_path):
        raise ValueError("no")

    assert list((tmp_path / "applied").iterdir()) == []
    apply(1, saved, tmp_path)
    assert [path.name for path in (tmp_path / "applied").iterdir()] == [f"{1:064x}.json"]


def test_what_is_being_applied_is_not_forgotten(tmp_path: Path) -> None:
    with ExitStack() as held:
        held.enter_context(claim(plan(0), report(0, tmp_path), tmp_path, most=MOST))
        os.utime(tmp_path / "applied" / f"{0:064x}.json", ns=(0, 0))
        for number in range(1, 30):
            apply(number, report(number, tmp_path), tmp_path)
        assert marks(tmp_path)[0] == 0
        with pytest.raises(InUse), claim(plan(0), report(0, tmp_path), tmp_path):
            pytest.fail("two at once")


MANY = """
import sys
from localllm.errors import InUse, StalePlan
from localllm.executors.applied import applied_precondition, claim

for number in range(60):
    plan = f"sha256:{number:064x}"
    try:
        with claim(plan, [{"kind": "applied", "last": None}], sys.argv[1], most=10_000) as done:
            print(number, flush=True)
            done()
    except (InUse, StalePlan):
        pass
"""


def test_processes_at_the_same_time_apply_each_report_once(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", MANY, str(tmp_path)]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    applied_by = [process.communicate(timeout=280)[0].split() for process in running]

    assert [process.returncode for process in running] == [0, 0, 0]
    assert sorted(int(number) for each in applied_by for number in each) == list(range(60))
    assert not list((tmp_path / "applied").glob(".*"))
