import re
import subprocess
import sys
from pathlib import Path

import pytest
from localllm.errors import InvalidPlan
from localllm.planner import plan_union
from localllm.planner.chat_request import Message, TextPart
from localllm.planner.codec import dump_plan, load_plan
from localllm.planner.plans import COMMANDS
from localllm.planner.plans.chat import Chat
from localllm.planner.plans.models import ModelsLoad

CHAT = {"command": "chat", "messages": [{"role": "user", "content": "hi"}]}


def refused(raw):
    with pytest.raises(InvalidPlan) as error:
        load_plan(raw)
    return {problem["path"]: problem["message"] for problem in error.value.data["problems"]}


def test_a_raw_plan_becomes_its_class_with_tuples_for_arrays():
    plan = load_plan({**CHAT, "stop": ["a", "b"], "temperature": 0})

    assert plan == Chat(messages=(Message(role="user", content="hi"),), stop=("a", "b"), temperature=0.0)
    assert isinstance(plan.temperature, float)


def test_content_may_be_parts_or_null():
    plan = load_plan({**CHAT, "messages": [{"role": "user", "content": [{"text": "A"}]}, {"role": "assistant"}]})

    assert plan.messages[0].content == (TextPart(text="A"),)
    assert plan.messages[1].content is None


@pytest.mark.parametrize("value", [7, "auto", "all"])
def test_a_union_of_number_and_words_keeps_what_was_given(value):
    plan = load_plan({"command": "models.load", "model": "m", "gpu_layers": value})

    assert plan.gpu_layers == value
    assert type(plan.gpu_layers) is type(value)


def test_dumping_fills_in_every_default_and_names_the_command_first():
    dumped = dump_plan(ModelsLoad("m"))

    assert list(dumped)[:2] == ["command", "model"]
    assert dumped["n_ctx"] is None
    assert dumped["gpu_layers"] is None
    assert load_plan(dumped) == ModelsLoad("m")


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("make_default", "false", "'false' is not of type 'boolean'"),
        ("n_ctx", 3.9, "3.9 is not of type 'integer', 'null'"),
        ("n_ctx", "3", "'3' is not of type 'integer', 'null'"),
        ("n_ctx", True, "True is not of type 'integer', 'null'"),
        ("n_ctx", 1, "1 is less than the minimum of 8"),
        ("model", None, "None is not of type 'string'"),
        ("model", "", "is empty"),
        ("model", "\udcff", "holds an unpaired surrogate, which is no text"),
        ("gpu_layers", 10_000, "10000 is greater than the maximum of 9999"),
        ("gpu_layers", "some", "'some' is not one of ['auto', 'all']"),
        ("gpu_layers", [], "[] is not integer or one of `auto`, `all` or null"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(field, value, words):
    assert refused({"command": "models.load", "model": "m", field: value}) == {f"$.{field}": words}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_cannot_carry_is_refused(value):
    assert "not a number that JSON can carry" in refused({**CHAT, "temperature": value})["$.temperature"]


def test_free_form_json_holds_what_json_can_carry():
    options = {"a": [1, {"b c": float("nan")}], "d": "\udcff"}

    assert set(refused({"command": "serve", "backend_options": options})) == {
        "$.backend_options.a[1]['b c']",
        "$.backend_options.d",
    }
    assert load_plan({"command": "serve", "backend_options": {"a": [1, None]}}).backend_options == {"a": [1, None]}


def test_a_text_is_not_taken_for_a_list_of_letters():
    assert refused({**CHAT, "stop": "abc"}) == {"$.stop": "'abc' is not of type 'array'"}


def test_every_problem_is_reported_and_not_the_first_alone():
    found = refused({"command": "chat", "messages": [{"role": "boss", "content": 5}], "temprature": 1, "top_p": 2})

    assert set(found) == {"$.messages[0].role", "$.messages[0].content", "$.temprature", "$.top_p"}
    assert found["$.temprature"] == "unknown field `temprature`, did you mean `temperature`?"
    assert found["$.messages[0].content"] == "5 is not string or array or null"


def test_a_part_of_another_kind_is_refused_by_name():
    raw = {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]}

    assert refused(raw) == {"$.messages[0].content[0].type": "'image_url' is not one of ['text']"}


def test_a_conversation_without_messages_is_refused():
    assert refused({"command": "chat", "messages": []}) == {"$.messages": "is empty"}
    assert refused({"command": "chat"}) == {"$": "'messages' is a required property"}


@pytest.mark.parametrize(
    "raw, words",
    [
        ({"command": "models.laod"}, "unknown command `models.laod`"),
        ({"command": 5}, "a command is a string, not a number"),
        ({"command": None}, "the plan names no command"),
        ({}, "the plan names no command"),
        ([], "a plan is a JSON object, not an array"),
        ("chat", "a plan is a JSON object, not a string"),
        (None, "a plan is a JSON object, not null"),
    ],
)
def test_what_is_no_known_command_is_refused(raw, words):
    with pytest.raises(InvalidPlan, match=words):
        load_plan(raw)


def test_an_unknown_command_gets_the_nearest_one():
    with pytest.raises(InvalidPlan) as error:
        load_plan({"command": "models.laod"})
    assert error.value.hint == "did you mean `models.load`?"


def test_a_very_long_value_does_not_flood_the_message():
    assert len(refused({**CHAT, "model": ["x" * 100_000]})["$.model"]) < 300


def test_loading_a_plan_imports_no_other_noun():
    program = """
import sys
from localllm.planner.codec import load_plan
load_plan({"command": "status"})
print([name for name in sys.modules if name.startswith("localllm.planner.plans.")])
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert out.strip() == "['localllm.planner.plans.status']"


def test_the_union_for_type_checkers_names_every_plan_class():
    source = Path(plan_union.__file__).read_text("utf-8")

    for _, name in COMMANDS.values():
        assert re.search(rf"^ +(\| )?{name}$", source, re.MULTILINE), f"`{name}` is not in CommandPlan"
