"""What a step's outcome should be, and what it lacks."""

from __future__ import annotations

import pytest
from localllm.planner.files.expect import ExpectFault, capture, check_expectations, compile_expectations, holds

OUTCOME = {
    "ok": True,
    "exit_code": 0,
    "http_status": 200,
    "result": {"usage": {"total_tokens": 65}, "text": "hello there", "list": [1, 2], "a b": {"c": None}},
    "error": None,
    "events": [{"event": "delta", "index": 0}, {"event": "delta", "index": 1}],
    "duration_ms": 12.5,
}

HOLD = [
    {},
    {"ok": True},
    {"exit_code": 0, "error": None},
    {"$.result.usage.total_tokens": 65},
    {"$.result.usage.total_tokens": {"<=": 65, ">": 64, "!=": 3, "type": "integer"}},
    {"$.result.usage.total_tokens": {"<": 66, ">=": 65, "one_of": [1, 65]}},
    {"$.result.text": {"matches": "^hel+o", "contains": "there", "length": 11, "not": {"contains": "bye"}}},
    {"$.result.text": {"starts_with": "hello", "not": "bye", "length": {">=": 1, "<": 12}}},
    {"$.result.list": {"contains": 2, "length": 2, "each": {">=": 1, "<=": 2}}},
    {"$.result": {"contains": "usage", "length": 4}},
    {"$.result.nothing": {"exists": False}, "$.result.list": {"exists": True}},
    {"$.result['a b'].c": None},
    {"$.events[*].event": "delta"},
    {"$.events[?@.index > 0].event": {"equals": "delta"}},
    {"duration_ms": {"<": 1000}},
    {"required": ["result"], "properties": {"result": {"required": ["usage"]}}},
    {"$.result.usage": {"schema": {"type": "object", "required": ["total_tokens"]}}},
    {"$.result.usage.total_tokens": {"matches": "x", "not": {"type": "string"}}, "not": {"required": ["x"]}},
]


@pytest.mark.parametrize("expect", HOLD[:-1])
def test_an_expectation_that_holds_has_no_problem(expect):
    assert check_expectations(expect, OUTCOME) == []


@pytest.mark.parametrize(
    "expect, problem",
    [
        ({"$.result.usage.total_tokens": {"<=": 64}}, "$.result.usage.total_tokens: 65 is greater than"),
        ({"exit_code": 1}, "$.exit_code: is 0, not 1"),
        ({"$.result.text": "bye"}, '$.result.text: is "hello there", not "bye"'),
        ({"$.result.nothing": 1}, "$.result.nothing: is not there"),
        ({"$.result.nothing": {"exists": True}}, "$.result.nothing: is not there"),
        ({"$.result.nothing": {"not": "x"}}, "$.result.nothing: is not there"),
        ({"$.result.list": {"exists": False}}, "$.result.list: is there: [1, 2]"),
        ({"$.events[*].index": 0}, "$.events[1].index: is 1, not 0"),
        ({"$.result.list": {"each": {">": 1}}}, "$.result.list[0]: 1 is less than or equal"),
        ({"$.result.list": {"length": 3}}, "$.result.list: has too few items: 2, where 3"),
        ({"$.result['a b'].c": 3}, "$.result['a b'].c: is null, not 3"),
        ({"ok": 1}, "$.ok: is true, not 1"),
        ({"properties": {"result": {"required": ["id"]}}}, "$.result: 'id' is a required property"),
        ({"properties": {"result": {"$ref": "http://localhost:9/x"}}}, "the schema refers to `http://localhost:9/x`"),
    ],
)
def test_what_does_not_hold_is_told_with_its_path(expect, problem):
    (found,) = check_expectations(expect, OUTCOME)

    assert problem in str(found)


def test_every_problem_is_told():
    found = check_expectations({"exit_code": 1, "$.result.text": {"contains": "x", "length": 3}}, OUTCOME)

    assert [problem.path for problem in found] == ["$.exit_code", "$.result.text", "$.result.text"]


@pytest.mark.parametrize("expect", [{}, {"$.result": {"exists": False}}, {"required": ["ok"]}])
def test_a_step_that_fails_is_a_problem_unless_the_expectation_says_how_it_ends(expect):
    failed = {"ok": False, "exit_code": 3, "error": {"code": "model_not_found"}}

    assert "$.ok" in [problem.path for problem in check_expectations(expect, failed)]
    assert check_expectations({"exit_code": 3}, failed) == []
    assert check_expectations({"$.error.code": "model_not_found"}, failed) == []
    assert check_expectations({"properties": {"ok": {"const": False}}}, failed) == []


@pytest.mark.parametrize(
    "expect, message, path",
    [
        ({"exit_cod": 1}, "did you mean `exit_code`?", ("exit_cod",)),
        ({"$.a[": 1}, "is no JSONPath", ("$.a[",)),
        ({"$.a": {"<==": 3}}, "`<==` is no operator", ("$.a", "<==")),
        ({"$.a": {"matches": "("}}, "takes a regular expression", ("$.a", "matches")),
        ({"$.a": {"<": "3"}}, "takes a number", ("$.a", "<")),
        ({"$.a": {"length": -1}}, "takes a number", ("$.a", "length")),
        ({"$.a": {"length": {"~": 1}}}, "bounds such as", ("$.a", "length")),
        ({"$.a": {"type": "text"}}, "takes one of", ("$.a", "type")),
        ({"$.a": {"one_of": 3}}, "takes a list", ("$.a", "one_of")),
        ({"$.a": {"exists": "no"}}, "true or false", ("$.a", "exists")),
        ({"$.a": {"exists": False, "<": 1}}, "has no other property", ("$.a",)),
        ({"$.a": {"schema": {"type": "x"}}}, "takes a JSON Schema", ("$.a", "schema")),
        ({"type": "objekt"}, "is no JSON Schema", ("type",)),
        ({"properties": {"result": {"pattern": "("}}}, "is no regular expression", ("pattern",)),
    ],
)
def test_an_expectation_that_says_nothing_is_refused_where_it_does(expect, message, path):
    with pytest.raises(ExpectFault, match=r".*") as fault:
        compile_expectations(expect)

    assert message in str(fault.value)
    assert fault.value.path == path


def test_operators_of_the_same_keyword_are_both_kept():
    assert check_expectations({"$.result.text": {"contains": "hello", "matches": "there$"}}, OUTCOME) == []
    assert check_expectations({"$.result.text": {"contains": "hello", "matches": "^there"}}, OUTCOME) != []
    assert check_expectations({"$.result.text": {"contains": "bye", "matches": "there$"}}, OUTCOME) != []


def test_a_capture_takes_the_value_or_all_values():
    assert capture("$.result.usage.total_tokens", OUTCOME) == 65
    assert capture("$.events[*].index", OUTCOME) == [0, 1]
    assert capture("$.events[?@.index == 1].index", OUTCOME) == [1]
    with pytest.raises(LookupError, match="selects nothing"):
        capture("$.result.gone", OUTCOME)


def test_a_condition_is_an_expectation_over_variables():
    assert holds({"$.n": {">": 3}}, {"n": 4})
    assert not holds({"$.n": {">": 3}}, {"n": 3})
    assert not holds({"$.m": {"exists": True}}, {"n": 3})
