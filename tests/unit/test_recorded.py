"""Why an answer differs from the recorded one, or may."""

from __future__ import annotations

from typing import Any

import pytest
from localllm.planner.files.recorded import compare_outcomes, sampling_of

STRICT: dict[str, Any] = {
    "model": "m",
    "sha256": "a" * 64,
    "tokenizer_hash": "sha256:1",
    "template_hash": "sha256:2",
    "build": "localllm/0.1 llama-cpp-python/0.3.36 llama",
    "machine": "x86_64 CPU",
    "parameters": {"n_batch": 512},
    "strict": True,
    "sampling": {"temperature": 0.8, "seed": 5},
}
ECHO: dict[str, Any] = {"model": "echo", "build": "localllm/0.1 echo", "strict": False, "sampling": {"seed": 5}}


def answered(text: str, **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "message": {"role": "assistant", "content": text, **more}, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return {"ok": True, "error": None, "result": {"id": str(id(more)), "choices": choices, "usage": usage}}


def compared(before: str, after: str, then: dict[str, Any] = STRICT, **changed: Any) -> Any:
    now = {**then, **changed}
    return compare_outcomes("chat", {**answered(before), "lock": then}, answered(after), now)


def test_an_equal_answer_from_the_strict_lane_is_the_same_and_stays_so():
    found = compared("hello", "hello")

    assert (found.verdict, found.reasons, found.failed) == ("same", (), False)


def test_a_difference_that_nothing_explains_is_a_failure_that_shows_where():
    found = compared("hello there", "hello world")

    assert (found.verdict, found.failed) == ("differs", True)
    assert "from character 6: 'there' is now 'world'" in found.sentence


@pytest.mark.parametrize(
    "changed, reason, fails",
    [
        ({"sha256": "b" * 64}, "weights", True),
        ({"tokenizer_hash": "sha256:9"}, "tokenizer", True),
        ({"template_hash": "sha256:9"}, "template", True),
        ({"sampling": {"temperature": 0.8, "seed": 6}}, "sampling", False),
        ({"strict": False}, "numerics", False),
        ({"build": "localllm/0.1 llama-cpp-python/0.4 llama"}, "numerics", False),
        ({"machine": "x86_64 another"}, "numerics", False),
        ({"parameters": {"n_batch": 64}}, "numerics", False),
    ],
)
def test_what_changed_is_the_reason_for_a_difference(changed, reason, fails):
    found = compared("hello there", "hello world", **changed)

    assert found.reasons == (reason,)
    assert (found.verdict, found.failed) == ("differs", fails)


def test_an_equal_answer_may_differ_next_time_where_something_changed():
    assert compared("hello", "hello", sha256="b" * 64).verdict == "may differ"
    assert compared("hello", "hello", {**STRICT, "strict": False}).reasons == ("numerics",)


def test_weights_that_explain_are_not_tolerated_because_numerics_could_explain_too():
    found = compared("hello", "other", {**STRICT, "strict": False}, sha256="b" * 64)

    assert found.reasons == ("weights", "numerics")
    assert found.failed


def test_the_seed_of_a_greedy_answer_explains_nothing():
    greedy = {**STRICT, "sampling": {"temperature": 0, "seed": 1}}

    assert compared("a", "a", greedy, sampling={"temperature": 0, "seed": 2}).verdict == "same"


def test_the_echo_is_the_same_without_weights():
    assert compared("a", "a", ECHO).verdict == "same"
    assert compared("a", "b", ECHO).failed


def test_what_is_not_known_promises_nothing():
    found = compared("a", "a", {**STRICT, "sha256": STRICT["sha256"]}, sampling=STRICT["sampling"])
    unknown = compare_outcomes("chat", {**answered("a"), "lock": STRICT}, answered("a"), {"build": STRICT["build"]})

    assert found.verdict == "same"
    assert unknown.verdict == "may differ"
    assert "weights" in unknown.unknown


def test_ids_and_times_are_no_difference():
    call = {"tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": "{}"}}]}
    other = {"tool_calls": [{"id": "call_2", "function": {"name": "f", "arguments": "{}"}}]}

    assert compare_outcomes("chat", {**answered("", **call), "lock": STRICT}, answered("", **other), STRICT).equal


def test_an_answer_that_failed_this_time_ended_otherwise():
    failed = {"ok": False, "error": {"code": "queue_full"}, "result": None}
    found = compare_outcomes("chat", {**answered("a"), "lock": STRICT}, failed, STRICT)

    assert found.reasons == ("outcome",)
    assert found.failed


def test_an_answer_that_failed_both_times_alike_depended_on_no_model():
    failed = {"ok": False, "error": {"code": "model_not_found", "message": "m"}, "result": None}
    other = {**failed, "error": {"code": "queue_full"}}

    assert compare_outcomes("chat", failed, failed, {}).verdict == "same"
    assert compare_outcomes("chat", failed, other, {}).failed


def test_of_other_plans_only_the_ending_counts():
    before = {"ok": True, "result": {"pid": 1}, "error": None}

    assert compare_outcomes("status", before, {"ok": True, "result": {"pid": 2}, "error": None}, {}).verdict == "same"
    assert compare_outcomes("status", before, {"ok": False, "result": {}, "error": None}, {}).failed


def test_the_sampling_of_a_plan_holds_the_seed_that_was_used():
    assert sampling_of({"temperature": 0.5, "seed": None, "stop": []}, 9) == {"temperature": 0.5, "seed": 9}


@pytest.mark.parametrize("mark", ["hidden", "merged"])
def test_a_secret_that_was_taken_out_explains_a_difference_and_excuses_no_other_weights(mark: str):
    before = {**answered("hello"), "lock": STRICT, mark: True}
    found = compare_outcomes("chat", before, answered("world"), STRICT)
    other = compare_outcomes("chat", before, answered("world"), {**STRICT, "sha256": "b" * 64})

    assert (found.verdict, found.reasons, found.failed) == ("differs", ("secret",), False)
    assert "a secret was taken out of the recording" in found.sentence
    assert (other.reasons, other.failed) == (("secret", "weights"), True)
    assert compare_outcomes("chat", before, answered("hello"), STRICT).verdict == "may differ"
