"""Recordings are plan files that only grow by whole lines."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures.yardstick import slowness
from hypothesis import given
from hypothesis import strategies as st
from localllm.executors.recorder import _Files as RecordingFiles
from localllm.planner.files.load import load_plan_files, read_document
from localllm.planner.files.nodes import plain
from localllm.planner.files.recordings import recording_head, recording_line, whole_part
from localllm.planner.files.steps import bind
from localllm.planner.files.texts import compose

ODD = 'a "quote" \\ud83d \\\\ ${not.a_variable} $${x} 🙂 \x7f\x85\u2028\ufeff\ttab\nline é: - # {}'


def step(text: str, number: int = 1) -> dict[str, Any]:
    plan = {"command": "chat", "messages": [{"role": "user", "content": text}]}
    return {"name": f"chat {number}", "plan": plan, "recorded": {"ok": True, "result": {"text": text}, "x": 1e-7}}


def written(path: Path, *texts: str) -> bytes:
    lines = [recording_line(step(text, number)) for number, text in enumerate(texts, 1)]
    content = recording_head("recorded") + b"".join(lines)
    path.write_bytes(content)
    return content


def test_a_recorded_step_is_read_back_as_it_was(tmp_path: Path):
    path = tmp_path / "r.plan.yaml"
    written(path, ODD)
    found = load_plan_files([str(path)])[0].steps[0]

    assert bind(found, {}, {}).plan == step(ODD)["plan"]
    assert found.recorded == step(ODD)["recorded"]


def test_a_file_that_was_cut_at_any_byte_holds_its_whole_steps(tmp_path: Path):
    path = tmp_path / "r.plan.yaml"
    content = written(path, "one", "two 🙂", "three")
    head = len(recording_head("recorded"))
    ends = [head]
    for line in content[head:].splitlines(keepends=True):
        ends.append(ends[-1] + len(line))

    for cut in range(head, len(content) + 1):
        path.write_bytes(content[:cut])
        whole = sum(end - 1 <= cut for end in ends[1:])
        assert len(plain(read_document(str(path))[1]).get("steps", [])) == whole, cut


def test_a_large_recording_is_read_at_once(tmp_path: Path):
    path = tmp_path / "r.plan.yaml"
    chunks = [{"event": "delta", "index": 0, "delta": {"content": f"word {n}"}, "logprobs": None} for n in range(40)]
    line = recording_line({**step(ODD), "recorded": {"ok": True, "events": chunks}})
    path.write_bytes(recording_head("recorded") + line * (4_000_000 // len(line)))
    seconds = []
    for _ in range(3):
        began = time.process_time()
        load_plan_files([str(path)])
        seconds.append(time.process_time() - began)

    assert min(seconds) < 3 * slowness()


def test_a_plan_file_that_is_no_recording_is_never_shortened():
    assert whole_part(b"steps:\n- {plan: {comm") == b"steps:\n- {plan: {comm"


@pytest.mark.parametrize("lone", ["\ud83d", "x\udc00y"])
def test_half_a_surrogate_pair_becomes_the_replacement_character(lone: str):
    line = recording_line(step(lone)).decode()
    found = plain(compose("steps:\n" + line, is_json=False))["steps"][0]

    assert "\ufffd" in found["recorded"]["result"]["text"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_survives(text: str):
    line = recording_line(step(text)).decode()
    found = plain(compose("steps:\n" + line, is_json=False))["steps"][0]

    assert line.count("\n") == 1
    assert found["recorded"] == step(text)["recorded"]


def test_a_recording_whose_head_does_not_fit_on_the_disk_leaves_no_file_that_nobody_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write = os.write
    fits = [3, None, None]  # bytes of the head, then whole writes

    def full(handle: int, content: bytes) -> int:
        most = fits.pop(0)
        return write(handle, content[:most])

    files = RecordingFiles(tmp_path, 1_000_000)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="only 3 of"):
            files.append(step("lost"))
        files.append(step("kept", 2))
    files.close()

    (path,) = tmp_path.iterdir()
    assert [each.plan["messages"][0]["content"] for each in load_plan_files([str(path)])[0].steps] == ["kept"]
