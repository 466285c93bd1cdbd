"""What holds for every plan file: it reads back as it was written, and a fault in it is told at its path."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from localllm.errors import InvalidPlan
from localllm.planner.codec import dump_plan, load_plan
from localllm.planner.files.load import load_plan_files
from localllm.planner.files.nodes import plain
from localllm.planner.files.rewrite import dump_yaml, rewrite
from localllm.planner.files.steps import bind
from localllm.planner.files.texts import compose
from localllm.planner.files.variables import substitute
from localllm.planner.identity import plan_id
from localllm.schemas import problems

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=4)


def escaped(value):
    """The value as a plan file writes it: a plain `${` is `$${`."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, dict):
        return {escaped(key): escaped(item) for key, item in value.items()}
    return [escaped(item) for item in value] if isinstance(value, list) else value


def load(document, *, as_json):
    text = json.dumps(document) if as_json else dump_yaml(document)
    name = "x.plan.json" if as_json else "x.plan.yaml"
    (file,) = load_plan_files([name], texts={name: text})
    return file


@settings(max_examples=200)
@given(value=JSON)
def test_yaml_that_is_dumped_reads_back(value):
    assert plain(compose(dump_yaml({"a": value}), is_json=False)) == {"a": value}


@settings(max_examples=200)
@given(value=OBJECTS)
def test_json_reads_as_the_standard_library_reads_it(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert plain(compose(text, is_json=True)) == json.loads(text)


@settings(max_examples=150)
@given(before=OBJECTS, after=JSON, data=st.data(), as_json=st.booleans())
def test_a_value_that_is_rewritten_is_the_only_change(before, after, data, as_json):
    document = {"head": 1, "inner": before, "tail": [before]}
    text = json.dumps(document, indent=2) if as_json else "# first\n" + dump_yaml(document) + "# last\n"
    key = data.draw(st.sampled_from([*before, "new"]))
    changed = rewrite(text, {("inner", key): after}, is_json=as_json)

    assert plain(compose(changed, is_json=as_json)) == {**document, "inner": {**before, key: after}}
    assert as_json or (changed.startswith("# first\n") and changed.endswith("# last\n"))


@settings(max_examples=150)
@given(value=JSON)
def test_what_is_escaped_is_left_alone(value):
    assert substitute(escaped(value), {}) == value


@settings(max_examples=60, deadline=None)
@given(data=st.data(), as_json=st.booleans())
def test_the_plans_of_a_file_are_those_that_were_written(step_plans, data, as_json):
    raws = data.draw(st.lists(step_plans, min_size=1, max_size=3))
    document = {"format_version": "1.0", "steps": [{"plan": escaped(raw)} for raw in raws]}
    file = load(document, as_json=as_json)
    bound = [bind(step, {}, {}).plan for step in file.steps]

    assert problems("plan-file", document) == []
    assert [plan_id(dump_plan(load_plan(plan))) for plan in bound] == [
        plan_id(dump_plan(load_plan(raw))) for raw in raws
    ]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), as_json=st.booleans())
def test_a_plan_that_is_mutated_is_refused_at_its_path(step_plans, data, as_json):
    raws = data.draw(st.lists(step_plans, min_size=1, max_size=3))
    position = data.draw(st.integers(0, len(raws) - 1))
    steps = [{"plan": escaped(raw)} for raw in raws]
    mutated = dict(steps[position]["plan"])
    mutation = data.draw(st.sampled_from(["unknown field", "no command", "unknown command"]))
    path = f"$.steps[{position}].plan.command"
    if mutation == "unknown field":
        mutated["no_such_field"] = 1
        path = f"$.steps[{position}].plan.no_such_field"
    elif mutation == "no command":
        del mutated["command"]
    else:
        mutated["command"] += "x"
    steps[position] = {"plan": mutated}
    with pytest.raises(InvalidPlan) as refused:
        load({"format_version": "1.0", "steps": steps}, as_json=as_json)

    assert [problem["path"] for problem in refused.value.data["problems"]] == [path]
