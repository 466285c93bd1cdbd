"""`apply`: a saved plan or report runs as it was saved, or is refused with the reason."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import BadInput, InvalidPlan, NotFound, PayloadTooLarge, StalePlan, Unsupported
from localllm.executors.apply import read_saved
from localllm.executors.context import Context
from localllm.executors.dispatch import preview
from localllm.executors.events import Event, Record, Result
from localllm.executors.preconditions import failed_locally, file_preconditions
from localllm.planner.codec import load_plan
from localllm.planner.settings import resolve_settings
from localllm.runtime.models.catalog import scan

SET = {"command": "config.set", "key": "port", "value": "9000"}
MakeContext = Callable[..., Context]
RunPlan = Callable[..., list[Event]]


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], str]:
    """Save a document (or bytes as they are) and give the file's name."""

    def save(document: Any) -> str:
        path = tmp_path / "saved.json"
        path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
        return str(path)

    return save


def apply_plan(file: str) -> dict[str, str]:
    return {"command": "apply", "file": file}


def test_a_bare_plan_runs(run_plan: RunPlan, saved: Callable[[Any], str], tmp_path: Path) -> None:
    events = run_plan(apply_plan(saved(SET)))

    first, last = events
    assert isinstance(first, Record)
    assert first.data["applying"] == "config.set"
    assert isinstance(last, Result)
    assert resolve_settings({}, {}, config_file=tmp_path / "config.toml").port == 9000


def test_a_fresh_report_runs(run_plan: RunPlan, make_context: MakeContext, saved: Callable[[Any], str]) -> None:
    report = preview(load_plan(SET), make_context())

    events = run_plan(apply_plan(saved(report)))

    assert events[0] == Record(data={"applying": "config.set", "plan_id": report["plan_id"]})


def test_a_report_from_before_a_change_of_the_config_is_stale(
    run_plan: RunPlan, make_context: MakeContext, saved: Callable[[Any], str], tmp_path: Path
) -> None:
    report = preview(load_plan(SET), make_context())
    (tmp_path / "config.toml").write_text("port = 1\n")

    with pytest.raises(StalePlan, match="config file") as caught:
        run_plan(apply_plan(saved(report)))

    assert caught.value.exit_code == 5
    assert len(caught.value.data["failed"]) == 1
    assert (tmp_path / "config.toml").read_text() == "port = 1\n"


def test_a_report_of_another_server_run_is_stale(
    run_plan: RunPlan, make_context: MakeContext, saved: Callable[[Any], str]
) -> None:
    report = preview(load_plan(SET), make_context()) | {"preconditions": [{"kind": "server", "instance": "old"}]}

    with pytest.raises(StalePlan, match="another run"):
        run_plan(apply_plan(saved(report)), make_context(on_server=True, instance="new"))


def test_a_precondition_nobody_knows_does_not_hold(
    run_plan: RunPlan, make_context: MakeContext, saved: Callable[[Any], str]
) -> None:
    report = preview(load_plan(SET), make_context()) | {"preconditions": [{"kind": "moon phase"}]}

    with pytest.raises(StalePlan, match="moon phase"):
        run_plan(apply_plan(saved(report)))


@pytest.mark.parametrize("change", ["touch", "grow", "swap", "delete"])
def test_a_changed_model_file_is_noticed(
    make_context: MakeContext, tmp_path: Path, model_path: Path, change: str
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    copy = models / model_path.name
    os.link(model_path, copy) if change == "delete" else copy.write_bytes(model_path.read_bytes())
    (entry,) = scan(models).entries
    preconditions = file_preconditions(entry, models)
    ctx = make_context()
    assert failed_locally(preconditions, ctx) == []

    stat = copy.stat()
    if change == "touch":
        os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    elif change == "grow":
        with copy.open("ab") as file:
            file.write(b"x")
        os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    elif change == "swap":
        content = bytearray(copy.read_bytes())
        place = content.index(b"general.name")
        content[place + 24] ^= 1
        copy.write_bytes(content)
        os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    else:
        copy.unlink()

    (failed,) = failed_locally(preconditions, ctx)
    assert {"touch": "last change", "grow": "size", "swap": "header", "delete": "gone"}[change] in failed


def test_an_edited_plan_no_longer_fits_its_report(
    run_plan: RunPlan, make_context: MakeContext, saved: Callable[[Any], str]
) -> None:
    report = preview(load_plan(SET), make_context())
    report["plan"]["value"] = "1"

    with pytest.raises(BadInput, match="plan_id"):
        run_plan(apply_plan(saved(report)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"{\n  oops", r":2:3: is not JSON"),
        (b"[]", "neither a plan nor a report"),
        (b'{"command": "version", "command": "status"}', "twice"),
        (b'{"command": "chat", "temperature": NaN}', "NaN"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 100_000, "nested"),
        (b'{"error": {"code": "x"}}', "holds an error"),
        (b'{"format_version": "1.0", "plan": 5}', "not a plan"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_plan_is_refused_in_words(saved: Callable[[Any], str], content: bytes, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        read_saved(saved(content))

    assert caught.value.exit_code == 2


def test_a_wrong_plan_lists_every_problem(saved: Callable[[Any], str]) -> None:
    with pytest.raises(InvalidPlan) as caught:
        read_saved(saved({"command": "logs", "lines": -1, "level": "loud"}))

    assert len(caught.value.data["problems"]) == 2


def test_a_newer_format_is_refused(saved: Callable[[Any], str], make_context: MakeContext) -> None:
    report = preview(load_plan(SET), make_context())

    assert read_saved(saved(report | {"format_version": "1.9"})).plan.command == "config.set"
    with pytest.raises(Unsupported, match=r"2\.0"):
        read_saved(saved(report | {"format_version": "2.0"}))


def test_a_file_over_16_mb_is_refused_before_it_is_parsed(saved: Callable[[Any], str]) -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        read_saved(saved(b"{" + b" " * (16 * 1024 * 1024)))

    assert caught.value.exit_code == 2


def test_a_missing_file_is_not_found() -> None:
    with pytest.raises(NotFound, match="nowhere"):
        read_saved("nowhere.json")


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(SET).encode())))

    assert read_saved("-").plan.command == "config.set"


def test_a_plan_that_applies_another_is_refused(saved: Callable[[Any], str]) -> None:
    with pytest.raises(Unsupported):
        read_saved(saved(apply_plan("x")))


def test_the_dry_run_of_a_stale_report_says_so(
    make_context: MakeContext, saved: Callable[[Any], str], tmp_path: Path
) -> None:
    file = saved(preview(load_plan(SET), make_context()))
    (tmp_path / "config.toml").write_text("port = 1\n")

    report = preview(load_plan(apply_plan(file)), make_context())

    assert any("would be refused" in warning for warning in report["warnings"])
