import pytest
from localllm.planner.fields import FieldSpec, first_line, problem_with, spec_of
from localllm.planner.plans import COMMANDS, plan_class
from localllm.planner.plans.chat import Chat
from localllm.planner.plans.models import ModelsLoad


@pytest.mark.parametrize(
    "spec, value, words",
    [
        ({"ge": 1}, 0, "less than the minimum of 1"),
        ({"gt": 0}, 0, "not above 0"),
        ({"le": 5}, 6, "greater than the maximum of 5"),
        ({"ge": 0}, float("nan"), "less than the minimum"),
        ({"min_length": 1}, "", "shorter than 1"),
        ({"max_length": 2}, ("a", "b", "c"), "longer than 2"),
        ({"pattern": "^a"}, "b", "does not match"),
        ({"choices": ("x", "y")}, "z", "is not one of `x`, `y`"),
    ],
)
def test_a_value_outside_its_bounds_is_named(spec, value, words):
    assert words in str(problem_with(FieldSpec(help="", **spec), value))


@pytest.mark.parametrize("value", [1, 5, 2.5, "abc", True, ("a",)])
def test_a_value_within_its_bounds_has_no_problem(value):
    assert problem_with(FieldSpec(help="", ge=1, le=5, min_length=1, max_length=3), value) is None


def test_a_plan_built_in_python_keeps_the_same_bounds():
    with pytest.raises(ValueError, match="`n_ctx`: 1 is less than the minimum of 8"):
        ModelsLoad("m", n_ctx=1)
    with pytest.raises(ValueError, match="`messages`: is shorter than 1"):
        Chat(messages=())


def test_operands_are_positional_and_options_are_not():
    assert ModelsLoad("tiny").model == "tiny"
    with pytest.raises(TypeError):
        ModelsLoad("tiny", "turbo4b")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_plan_class_explains_itself_and_its_fields(command):
    cls = plan_class(command)

    assert cls.command == command
    assert cls.where in ("local", "server", "either")
    assert cls.effects
    assert len(first_line(cls)) > 10
    for attribute in cls.__attrs_attrs__:
        assert len(spec_of(attribute).help) > 5, f"{command}.{attribute.name} has no help"


def test_what_names_a_path_of_the_client_stays_off_the_server():
    for command in COMMANDS:
        cls = plan_class(command)
        if any(spec_of(attribute).client_path for attribute in cls.__attrs_attrs__):
            assert not cls.on_server
