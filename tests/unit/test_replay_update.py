"""`--update` and the lock: recordings are renewed in place, rules stay, and what a file belongs to is checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.tiny_models import write_llama
from localllm.errors import BadInput, StalePlan
from localllm.executors.events import Event, Result
from localllm.executors.replay.update import Updates

RunPlan = Callable[..., list[Event]]
FILE = """\
# a recording
format_version: "1.0"
vars: {wanted: 1}
steps:
  - name: port   # the port
    plan: {command: config.get, key: port}
    expect:
      "$.result.value": 1   # was recorded
      "$.result.default": {equals: 2, type: integer}
      exit_code: 0
"""


@pytest.fixture
def replay(run_plan: RunPlan, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Replay a text with these options and give the result's data."""

    def run(text: str, **options: Any) -> dict[str, Any]:
        file = tmp_path / "a.plan.yaml"
        file.write_text(text)
        last = run_plan({"command": "replay", "files": [str(file)], **options})[-1]
        assert isinstance(last, Result)
        return last.data

    return run


def test_what_came_out_takes_the_place_of_what_was_recorded(
    replay: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    data = replay(FILE, update=True)

    text = (tmp_path / "a.plan.yaml").read_text()
    assert (data["passed"], data["updated"]) == (1, [str(tmp_path / "a.plan.yaml")])
    assert text == FILE.replace('value": 1 ', 'value": 8484 ').replace("equals: 2", "equals: 8484")
    assert replay(text)["failed"] == 0


@pytest.mark.parametrize(
    "rule", ['{"<=": 1}', "{matches: x}", '"${wanted}"'], ids=["a bound", "a pattern", "a variable"]
)
def test_a_rule_is_kept_and_goes_on_failing(replay: Callable[..., dict[str, Any]], tmp_path: Path, rule: str) -> None:
    text = FILE.replace('value": 1 ', f'value": {rule} ')
    data = replay(text, update=True)

    assert data["failed"] == 1
    assert (tmp_path / "a.plan.yaml").read_text() == text


def test_what_a_retry_waits_for_is_a_rule(replay: Callable[..., dict[str, Any]]) -> None:
    waiting = FILE + '    retry: {times: 1, interval_s: 0, until: {"$.result.value": 80}}\n'

    assert replay(waiting, update=True)["failed"] == 1


def test_without_update_no_file_is_touched(replay: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    assert replay(FILE)["failed"] == 1
    assert (tmp_path / "a.plan.yaml").read_text() == FILE


def test_a_file_that_was_edited_meanwhile_is_left_alone(
    replay: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Updates.write
    edited = FILE + "# edited\n"

    def late(updates: Updates, file: str) -> None:
        (tmp_path / "a.plan.yaml").write_text(edited)
        write(updates, file)

    monkeypatch.setattr(Updates, "write", late)
    data = replay(FILE, update=True)

    assert "changed while" in data["report_faults"][0]
    assert (tmp_path / "a.plan.yaml").read_text() == edited


def test_standard_input_cannot_be_updated(run_plan: RunPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FILE.encode())))
    with pytest.raises(BadInput):
        run_plan({"command": "replay", "files": ["-"], "update": True})


@pytest.fixture
def locked(replay: Callable[..., dict[str, Any]], run_plan: RunPlan, tmp_path: Path) -> str:
    """A plan file that is locked to a small model."""
    (tmp_path / "models").mkdir()
    write_llama(tmp_path / "models" / "tiny.gguf")
    text = FILE.replace('value": 1 ', 'value": 8484 ').replace("equals: 2", "equals: 8484")
    text += "  - plan: {command: models.show, model: tiny}\n"
    (tmp_path / "a.plan.yaml").write_text(text)
    run_plan({"command": "plan.lock", "file": str(tmp_path / "a.plan.yaml")})
    return (tmp_path / "a.plan.yaml").read_text()


def test_a_locked_file_says_what_it_belongs_to_and_keeps_its_comments(
    replay: Callable[..., dict[str, Any]], locked: str
) -> None:
    assert "# was recorded" in locked
    for word in ("lock:", "build: localllm", "tiny:", "sha256:", "template_hash:", "tokenizer_hash:"):
        assert word in locked
    assert replay(locked)["passed"] == 2


@pytest.mark.parametrize("change", ["weights", "chat template", "build", "model"])
def test_a_replay_refuses_other_weights_another_template_or_build(
    replay: Callable[..., dict[str, Any]], locked: str, tmp_path: Path, change: str
) -> None:
    path, text = tmp_path / "models" / "tiny.gguf", locked
    if change == "weights":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif change == "chat template":
        write_llama(path, chat_template="{{ messages[0].content }}")
    elif change == "model":
        path.unlink()
    else:
        text = locked.replace("build: localllm", "build: another")

    with pytest.raises(StalePlan) as caught:
        replay(text)
    assert any(change in words for words in caught.value.data["failed"])
    assert caught.value.exit_code == 5
    assert not (tmp_path / "state" / "replay").exists()


def test_an_update_renews_the_lock(replay: Callable[..., dict[str, Any]], locked: str, tmp_path: Path) -> None:
    old = locked.replace("build: localllm", "build: another")
    data = replay(old, update=True)

    assert data["failed"] == 0
    assert replay((tmp_path / "a.plan.yaml").read_text())["passed"] == 2
    assert "another" not in (tmp_path / "a.plan.yaml").read_text()


def test_what_an_alias_shares_is_not_updated_and_the_file_stays_as_it_is(
    replay: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    text = """\
format_version: "1.0"
steps:
  - plan: {command: config.get, key: port}
    expect: &same
      $.result.value: 1
  - plan: {command: config.get, key: host}
    expect: *same
"""
    data = replay(text, update=True)

    assert (tmp_path / "a.plan.yaml").read_text() == text
    assert data["updated"] == []
    assert "a.plan.yaml:5:23: is shared by an alias" in data["report_faults"][0]


def test_the_rest_of_a_file_with_aliases_is_updated(replay: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    text = """\
format_version: "1.0"
steps:
  - plan: &port {command: config.get, key: port}
    tags: &tags [x, y]
    expect:
      $.result.value: 1
  - plan: *port
    tags: *tags
    expect: {$.result.value: 2}
"""
    data = replay(text, update=True)

    assert data["report_faults"] == []
    updated = text.replace("value: 1", "value: 8484").replace("value: 2", "value: 8484")
    assert (tmp_path / "a.plan.yaml").read_text() == updated


def test_one_file_that_cannot_be_updated_keeps_no_other_from_it(run_plan: RunPlan, tmp_path: Path) -> None:
    shared = tmp_path / "a.plan.yaml"
    shared.write_text(
        'format_version: "1.0"\nsteps:\n- {plan: {command: config.get, key: port}, expect: &e {$.result.value: 1}}\n'
        "- {plan: {command: config.get, key: port}, expect: *e}\n"
    )
    other = tmp_path / "b.plan.yaml"
    other.write_text("\ufeff" + FILE, encoding="utf-8")
    last = run_plan({"command": "replay", "files": [str(shared), str(other)], "update": True})[-1]

    assert isinstance(last, Result)
    assert (last.ok, last.data["updated"]) == (False, [str(other)])
    assert other.read_bytes().startswith("\ufeff# a recording".encode())
