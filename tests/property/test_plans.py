"""What holds for every plan that the schema accepts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localllm.errors import InvalidPlan
from localllm.planner.cli import parse
from localllm.planner.codec import dump_plan, load_plan
from localllm.planner.identity import plan_id
from localllm.planner.spell import argv_of
from localllm.schemas import load_schema, problems


@given(data=st.data())
def test_what_the_schema_accepts_structures(raw_plans, data):
    raw = data.draw(raw_plans)

    assert problems(f"plan.{raw['command']}", raw) == []
    assert load_plan(raw).command == raw["command"]


@given(data=st.data())
def test_dump_and_load_are_inverse(raw_plans, data):
    plan = load_plan(data.draw(raw_plans))
    dumped = dump_plan(plan)

    assert load_plan(dumped) == plan
    assert dump_plan(load_plan(json.loads(json.dumps(dumped)))) == dumped


@given(data=st.data())
def test_what_is_dumped_keeps_the_published_union(raw_plans, data):
    dumped = dump_plan(load_plan(data.draw(raw_plans)))

    assert problems("command-plan", dumped) == []


@given(data=st.data())
def test_the_same_intent_through_argv_and_a_dict_has_the_same_id(raw_plans, data):
    plan = dump_plan(load_plan(data.draw(raw_plans)))
    parsed = dump_plan(load_plan(parse(argv_of(plan)).raw))

    assert parsed == plan
    assert plan_id(parsed) == plan_id(plan)


@given(data=st.data())
def test_the_order_of_keys_and_written_defaults_do_not_change_the_id(raw_plans, data):
    raw = data.draw(raw_plans)
    shuffled = dict(data.draw(st.permutations(list(raw.items()))))

    assert plan_id(dump_plan(load_plan(shuffled))) == plan_id(dump_plan(load_plan(dump_plan(load_plan(raw)))))


@given(data=st.data())
def test_a_plan_with_a_field_of_the_wrong_type_is_refused_at_that_field(raw_plans, data):
    plan = dump_plan(load_plan(data.draw(raw_plans)))
    fields = load_schema(f"plan.{plan['command']}")["properties"]
    name = data.draw(st.sampled_from(sorted(fields)))
    if name == "command":
        return

    with pytest.raises(InvalidPlan) as refused:
        load_plan({**plan, name: [] if _takes_objects(fields[name]) else {"no": "field takes this"}})
    assert [problem["path"] for problem in refused.value.data["problems"]] == [f"$.{name}"]


def _takes_objects(schema):
    branches = schema.get("anyOf", [schema])
    return any("object" in branch.get("type", ()) for branch in branches)


@given(data=st.data(), key=st.text(min_size=1, max_size=10))
def test_an_unknown_field_is_refused(raw_plans, data, key):
    raw = data.draw(raw_plans)
    if key in load_schema(f"plan.{raw['command']}")["properties"]:
        return

    with pytest.raises(InvalidPlan, match="unknown field"):
        load_plan({**raw, key: None})
