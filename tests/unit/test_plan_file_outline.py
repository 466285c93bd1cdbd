"""The short ways of reading a plan file mean what the long way means, to the place of every step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localllm.planner.files import outline as outlines
from localllm.planner.files import rewrite
from localllm.planner.files.load import load_plan_files
from localllm.planner.files.outline import Outline, read_outline
from localllm.planner.files.packed import Unsure
from localllm.planner.files.recordings import recording_head, recording_line
from localllm.planner.files.rewrite import dump_yaml
from localllm.planner.files.texts import TextFault, compose

HEAD = recording_head("r").decode()
FLOW = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.fixed_dictionaries(
    {"steps": st.lists(FLOW, max_size=4), "vars": st.dictionaries(st.text(max_size=5), FLOW, max_size=3)},
    optional={"finally": FLOW, "name": FLOW},
)


def told(found: Outline) -> Any:
    """Everything an outline says, in a form that tells 1 from true and 1.0."""
    lists = {
        name: [(packed.place(number), packed.value(number)) for number in range(len(packed))]
        for name, packed in found.lists.items()
    }
    return json.dumps([found.document, lists])


def both(text: str, *, is_json: bool) -> tuple[Any, Any]:
    """What the short ways say, or the fault they end with, and the same of the long way."""
    results = []
    for read in (read_outline, lambda text, is_json: outlines._composed(text, is_json)):
        try:
            results.append(told(read(text, is_json=is_json)))
        except TextFault as fault:
            results.append((fault.message, fault.line, fault.column))
    return results[0], results[1]


@given(DOCUMENTS, st.sampled_from([None, 1]))
def test_json_means_the_same_either_way(document: Any, indent: int | None) -> None:
    short, long = both(json.dumps(document, indent=indent), is_json=True)

    assert short == long


@given(DOCUMENTS)
def test_yaml_means_the_same_either_way(document: Any) -> None:
    short, long = both("# a comment\n" + dump_yaml(document), is_json=False)

    assert short == long


@given(st.lists(st.dictionaries(st.text(), FLOW, max_size=4), max_size=4))
def test_a_recording_means_the_same_either_way(steps: list[dict[str, Any]]) -> None:
    lines = [recording_line({**step, "plan": step}).decode() for step in steps]
    short, long = both(HEAD + "# a comment\n\n".join(lines), is_json=False)

    assert short == long


@pytest.mark.parametrize(
    "line",
    [
        '- {"a": 1, "a": 2}',
        '- {"a": {"b": 1, "b": 2}}',
        '- {"a": 1} # a comment',
        '- {"a": 1e999, "b": -1E5, "c": 0.0}',
        '- {"a": NaN}',
        '- {"a": "\x7f"}',
        '- {"a": "\x85"}',
        '- {"a": "\u2028"}',
        '- {"a": "\\ud83d\\ude42"}',
        '- {"a": no}',
        "- {a: 1}",
        "- a: 1\n  b: 2",
        '- {"a": 1,\n  "b": 2}',
        '- {"a": 1}\r- {"b": 2}',
        "- &x {}\n- *x",
        '- {"a": ' + "[" * 200 + "]" * 200 + "}",
        "- {" + f'"a": {"1" * 4200}' + "}",
        'finally:\n- {"b": 1}',
        '"steps": []',
        "...",
    ],
)
def test_a_line_that_the_recorder_did_not_write_means_what_yaml_says(line: str) -> None:
    for text in (f"{HEAD}{line}\n", f'{HEAD}- {{"first": 1}}\n{line}\n- {{"last": 1}}\n'):
        short, long = both(text, is_json=False)

        assert short == long


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "3",
        '{"steps": [1, 2], "steps": []}',
        '{"steps": [{"a": 1, "a": 2}]}',
        '{"steps": [1 2]}',
        '{"steps": [1,]}',
        '{"steps": []',
        '{"steps": [], }',
        '{"steps": []} x',
        '{"steps": {"a": 1}, "finally": [ ]}',
        '{"vars": ' + "[" * 200 + "]" * 200 + "}",
    ],
)
def test_odd_json_means_or_lacks_the_same_either_way(text: str) -> None:
    short, long = both(text, is_json=True)

    assert short == long


@pytest.mark.parametrize(
    "text",
    [
        "",
        "steps: [1, {a: !!str 2}]",
        "steps: &s [1]\nfinally: *s",
        "a: 1\n<<: {b: 2}",
        "? [a]\n: 1",
        "a: 1\na: 2",
        "steps:\n- a: 1\n  a: 2\n",
        "a: 1\n---\nb: 2",
        "steps: [1\n",
        "- 1",
        "word",
        "a: " + "[" * 200 + "]" * 200,
    ],
)
def test_odd_yaml_means_or_lacks_the_same_either_way(text: str) -> None:
    short, long = both(text, is_json=False)

    assert short == long


def test_what_the_recorder_writes_is_read_the_short_way() -> None:
    line = recording_line({"name": "a", "plan": {"command": "chat"}, "recorded": {"x": [1.5, "é 🙂"]}}).decode()
    found = outlines._recording(HEAD + line * 2)

    assert found.lists["steps"].place(1) == (6, 3)
    with pytest.raises(Unsure):
        outlines._recording(HEAD + "- [1]\n")


def test_a_recording_is_rewritten_line_by_line_as_it_is_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"name": "a", "plan": {"command": "chat"}, "expect": {"ok": True}, "recorded": {"x": [1.5, "é 🙂"]}}
    text = HEAD + "# a comment\n" + recording_line(step).decode() * 3 + "# the end\n"
    edits = {
        ("steps", 0, "recorded"): {"x": [1.5, "other"], "y": {"new\x7f": None}},
        ("steps", 2, "expect", "exit_code"): 3,
        ("steps", 2, "recorded", "x", 0): 2,
    }
    by_lines = rewrite.rewrite(text, edits, is_json=False)
    with pytest.raises(KeyError):
        rewrite.rewrite(text, {("steps", 3, "name"): "b"}, is_json=False)
    monkeypatch.setattr(rewrite, "_rewrite_lines", lambda *_: None)

    assert by_lines == rewrite.rewrite(text, edits, is_json=False)
    assert [line.startswith("#") for line in by_lines.splitlines()[4:]] == [True, False, False, False, True]
    assert by_lines.splitlines()[6] == text.splitlines()[6]


def test_a_text_without_libyaml_has_the_same_outline(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from localllm.planner.files import texts

    text = "name: é\nsteps:\n- {a: [1, 'two']}\n- b: |\n    lines\n"
    expected = told(read_outline(text, is_json=False))
    texts.loader.cache_clear()
    monkeypatch.setitem(sys.modules, "yaml.cyaml", None)
    try:
        assert told(read_outline(text, is_json=False)) == expected
    finally:
        texts.loader.cache_clear()


def test_faults_of_many_steps_are_each_told_at_their_place(tmp_path: Any) -> None:
    from localllm.errors import InvalidPlan

    path = tmp_path / "r.plan.yaml"
    good = '- {"plan": {"command": "status"}}\n'
    bad = '- {"plan": {"command": "status"}, "nme": 1}\n'
    worse = '- {"plan": {"command": "status", "wrong": 1}}\n'
    path.write_text(HEAD + good * 50 + bad + good * 50 + worse)
    with pytest.raises(InvalidPlan) as fault:
        load_plan_files([str(path)])

    first = len(HEAD.splitlines()) + 51
    assert [(each["line"], each["column"], each["path"]) for each in fault.value.data["problems"]] == [
        (first, 35, "$.steps[50].nme"),
        (first + 51, 34, "$.steps[101].plan.wrong"),
    ]


def test_the_steps_of_a_file_are_counted_and_sliced_like_a_list(tmp_path: Any) -> None:
    path = tmp_path / "a.plan.json"
    steps = [{"name": name, "plan": {"command": "status"}} for name in "abc"]
    path.write_text(json.dumps({"format_version": "1.0", "steps": steps, "finally": steps[:1]}))
    (file,) = load_plan_files([str(path)])

    assert compose(path.read_text(), is_json=True).at(("steps", 1)).column == file.steps[1].place.column
    assert [(step.index, step.name) for step in file.steps] == [(1, "a"), (2, "b"), (3, "c")]
    assert [step.index for step in file.steps[-2:]] == [2, 3]
    assert (file.steps[-1].name, file.finally_[0].index) == ("c", 4)
    with pytest.raises(IndexError):
        file.steps[3]
