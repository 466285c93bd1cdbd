"""Variables of plan files: types kept, faults told, secrets hidden."""

from __future__ import annotations

import pytest
from localllm.planner.files.variables import (
    UNKNOWN,
    Secret,
    VariableFault,
    from_environment,
    from_flags,
    redact,
    references,
    secrets_of,
    settle,
    substitute,
)

SCOPE = {"n": 5, "flag": True, "name": "tiny", "list": [1, {"x": "y"}], "user": {"id": 7, "a-b": 1}, "none": None}


@pytest.mark.parametrize(
    "text, value",
    [
        ("${n}", 5),
        ("${ n }", 5),
        ("${flag}", True),
        ("${none}", None),
        ("${list}", [1, {"x": "y"}]),
        ("${list[1].x}", "y"),
        ("${user.id}", 7),
        ("${user.a-b}", 1),
        ("n=${n}", "n=5"),
        ("${name}-${flag}-${none}", "tiny-true-null"),
        ("in ${user}", 'in {"id": 7, "a-b": 1}'),
        ("$${n} and $n and ${n}", "${n} and $n and 5"),
        ("$${n}", "${n}"),
        ("plain", "plain"),
        (["${n}", {"${name}": "${flag}"}], [5, {"tiny": True}]),
        (3.5, 3.5),
    ],
)
def test_a_reference_takes_the_values_type_and_becomes_text_within_text(text, value):
    assert substitute(text, SCOPE) == value


@pytest.mark.parametrize(
    "text, message",
    [
        ("${nam}", "there is no variable `nam`, did you mean `name`?"),
        ("${user.ids}", "there is no `ids` in it"),
        ("${list[9]}", "there is no `9` in it"),
        ("a ${list.x}", "there is no `x` in it"),
        ("${}", "is not a reference"),
        ("x ${1a}", "is not a reference"),
        ("${n", "is not a reference"),
        ({"$secret": "env:X"}, "a secret belongs in `vars`"),
    ],
)
def test_a_reference_that_means_nothing_is_refused_in_words(text, message):
    with pytest.raises(VariableFault) as fault:
        substitute(text, SCOPE)

    assert message in str(fault.value)


def test_variables_may_refer_to_each_other_in_any_order():
    given = {"both": "${a}-${b}", "a": "${b}", "b": 3, "deep": {"list": ["${a}"]}}

    assert settle(given, {}, {}) == {"both": "3-3", "a": 3, "b": 3, "deep": {"list": [3]}}


def test_a_variable_may_take_the_outer_one_of_its_name():
    assert settle({"a": "${a}!"}, {"a": "x"}, {}) == {"a": "x!"}


def test_a_circle_of_variables_is_refused_with_its_path():
    with pytest.raises(VariableFault, match="a → b → c → a"):
        settle({"a": "${b}", "b": "${c}", "c": "${a}"}, {}, {})
    with pytest.raises(VariableFault, match="a → a"):
        settle({"a": "x${a}"}, {}, {})


def test_what_only_running_can_tell_stays_unknown():
    scope = {"id": UNKNOWN, "n": 1}

    assert substitute("${id}", scope) is UNKNOWN
    assert substitute("x ${id.deep[3]} ${n}", scope) is UNKNOWN
    assert substitute(["${n}", "${id}"], scope) == [1, UNKNOWN]


def test_a_secret_is_read_from_the_environment_and_hidden_everywhere():
    scope = settle({"key": {"$secret": "env:KEY"}, "alias": "${key}", "header": "Bearer ${key}"}, {}, {"KEY": "s3cret"})
    secrets = secrets_of(scope)

    assert substitute("x-${key}", scope) == "x-s3cret"
    assert substitute("${alias}", scope) == "s3cret"
    assert secrets == {"s3cret"}
    assert "s3cret" not in repr(scope["key"])
    assert redact({"a": ["Bearer s3cret"], "s3cret": scope["key"]}, secrets) == {
        "a": ["Bearer ***"],
        "***": {"$secret": "env:KEY"},
    }


@pytest.mark.parametrize("reference", ["KEY", "env:", "file:x", 3])
def test_a_secret_is_a_reference_to_the_environment(reference):
    with pytest.raises(VariableFault, match="`env:NAME`"):
        settle({"key": {"$secret": reference}}, {}, {"KEY": "x"})


def test_a_secret_that_is_not_there_is_told_by_its_name():
    with pytest.raises(VariableFault, match="`KEY`, which holds a secret, is not set"):
        settle({"key": {"$secret": "env:KEY"}}, {}, {})


def test_longer_secrets_are_hidden_before_those_within_them():
    assert redact("abc ab", frozenset({"ab", "abc"})) == "*** ***"


def test_flags_and_the_environment_give_typed_values():
    assert from_flags(["n=5", "s=five", 't="5"', "l=[1, true]", "e=", "u=a=b", "w=NaN"]) == {
        "n": 5,
        "s": "five",
        "t": "5",
        "l": [1, True],
        "e": "",
        "u": "a=b",
        "w": "NaN",
    }
    assert from_environment(
        {"LOCALLLM_VAR_MODEL": "tiny", "LOCALLLM_VAR_n": "3", "LOCALLLM_VAR_": "x", "OTHER": "y"}
    ) == {
        "MODEL": "tiny",
        "model": "tiny",
        "n": 3,
    }
    with pytest.raises(VariableFault, match="`5=x` is not `name=value`"):
        from_flags(["5=x"])


def test_references_are_found_wherever_they_are():
    assert list(references({"${a}": ["x ${b.c} $${d}", 3], "e": "${f[0]}"})) == ["a", "b.c", "f[0]"]


def test_a_secret_never_prints_its_value():
    assert repr(Secret("env:KEY", "value")) == "Secret('env:KEY')"
