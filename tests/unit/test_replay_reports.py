"""Reports of a replay say what happened, whatever texts are in it, and are whole or not there."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from localllm.errors import BadInput
from localllm.executors.events import Event, Record, Result
from localllm.executors.render import Renderer

RunPlan = Callable[..., list[Event]]
NASTY = "a\x07b | <i>&`*\u202e\n] ]]>"


@pytest.fixture
def replay(run_plan: RunPlan, tmp_path: Path) -> Callable[..., list[Event]]:
    """Replay one file of a passed, a failed and a skipped step, with these options."""

    def run(**options: Any) -> list[Event]:
        file = tmp_path / "suite.plan.json"
        steps = [
            {"name": "good", "plan": {"command": "version"}},
            {"name": NASTY, "plan": {"command": "version"}, "expect": {"$.result.version": NASTY}},
            {"name": "late", "plan": {"command": "version"}},
        ]
        file.write_text(json.dumps({"format_version": "1.0", "steps": steps}, indent=1))
        return run_plan({"command": "replay", "files": [str(file)], **options})

    return run


def test_the_junit_report_is_xml_with_a_case_for_each_step(replay: Callable[..., list[Event]], tmp_path: Path) -> None:
    replay(report=[f"junit={tmp_path}/junit.xml"])

    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    cases = list(root.iter("testcase"))
    assert (root.tag, root.get("tests"), root.get("failures"), root.get("skipped")) == ("testsuites", "3", "1", "1")
    assert [[child.tag for child in case] for case in cases] == [[], ["failure"], ["skipped"]]
    assert cases[1].get("name") == "2. " + NASTY.replace("\x07", "\\x07").replace("\n", "\n")
    assert cases[1].get("file") == str(tmp_path / "suite.plan.json")
    assert int(cases[1].get("line") or 0) > int(cases[0].get("line") or 0) > 0


def test_the_json_report_has_every_step(replay: Callable[..., list[Event]], tmp_path: Path) -> None:
    replay(report=[f"json={tmp_path}/report.json"])

    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["passed"], report["failed"], report["skipped"], report["total"]) == (1, 1, 1, 3)
    assert report["score"] == pytest.approx(33.3333)
    (suite,) = report["suites"]
    assert [step["status"] for step in suite["steps"]] == ["passed", "failed", "skipped"]
    assert suite["steps"][1]["name"] == NASTY


def test_the_markdown_report_shows_what_failed_as_text(replay: Callable[..., list[Event]], tmp_path: Path) -> None:
    replay(report=[f"md={tmp_path}/report.md"])

    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# Replay failed: 1 of 3 steps, score 33.3333\n")
    assert "| suite | 1 | 1 | 1 |" in text
    assert r"\<i\>" in text
    assert "\x07" not in text
    assert "\u202e" not in text


def test_a_report_takes_the_place_of_an_older_one_with_its_mode(
    replay: Callable[..., list[Event]], tmp_path: Path
) -> None:
    (tmp_path / "old.xml").write_text("old")
    (tmp_path / "old.xml").chmod(0o640)
    mask = os.umask(0o022)
    try:
        replay(report=[f"junit={tmp_path}/old.xml", f"md={tmp_path}/new.md"])
    finally:
        os.umask(mask)

    assert stat.S_IMODE((tmp_path / "old.xml").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "new.md").stat().st_mode) == 0o644
    assert not list(tmp_path.glob(".*.new"))


@pytest.mark.parametrize("given", ["junit", "junit=", "html=x", "junit=/nowhere/x.xml"])
def test_what_is_no_report_is_refused_before_anything_runs(
    replay: Callable[..., list[Event]], tmp_path: Path, given: str
) -> None:
    with pytest.raises(BadInput):
        replay(report=[given])

    assert not (tmp_path / "state").exists()


def test_a_report_that_cannot_be_written_is_said_and_counts(
    replay: Callable[..., list[Event]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "report.md")

    monkeypatch.setattr(os, "replace", full)
    last = replay(report=[f"md={tmp_path}/report.md"])[-1]

    assert isinstance(last, Result)
    assert not last.ok
    assert "No space left" in last.data["report_faults"][0]
    assert not list(tmp_path.glob(".*.new"))


def test_the_totals_are_the_last_line_for_people(
    replay: Callable[..., list[Event]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renderer = Renderer("replay")
    codes = [renderer.show(event) for event in replay()]

    *failures, last = capsys.readouterr().out.splitlines()
    assert codes[-1] == 1
    assert last == "passed=1 failed=1 skipped=1 total=3 score=33.3333"
    assert failures[0].startswith(f"failed  {tmp_path}/suite.plan.json:")
    assert "\x07" not in "".join(failures)


def test_github_gets_an_annotation_at_the_step(
    replay: Callable[..., list[Event]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    renderer = Renderer("replay", output="json")
    records = [event for event in replay() if isinstance(event, Record)]
    for record in records:
        renderer.show(record)

    captured = capsys.readouterr()
    line = records[1].data["place"]["line"]
    (shown,) = captured.err.splitlines()
    assert captured.out == ""
    assert shown.startswith(f"::error file={tmp_path}/suite.plan.json,line={line},col=")
    assert "%0A" in shown
