"""The engine on the echo backend: order of outputs, limits, stops, cancellation, and nobody gets another's answer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fixtures.asking import chat, echo
from localllm.errors import (
    BadInput,
    DecodeFailed,
    InternalError,
    Interrupted,
    ModelLoadFailed,
    PromptTooLong,
    QueueFull,
    TimedOut,
)
from localllm.runtime.engine.cost import CostModel
from localllm.runtime.types import Constraint, Piece, Sampling, Started

HALF_EMOJI = [{"hex": "f09f"}, {"hex": "918d"}, " ok ", {"hex": "e29c85"}, {"hex": "85"}, "end", {"hex": "e29c"}]


def test_it_answers_with_the_users_last_words() -> None:
    asking = echo()
    told = asking.ask(chat("first") + chat("Was sagt man? 👍 Ja."))

    told.check_order()
    assert told.text == "Was sagt man? 👍 Ja."
    assert told.reason == "stop"
    assert isinstance(told.outputs[0], Started)
    assert told.done.usage.prompt_tokens == told.outputs[0].prompt_tokens


def test_broken_characters_of_a_script_come_out_whole_and_tokens_are_counted_not_pieces() -> None:
    told = echo(script=HALF_EMOJI).ask(chat("x"))

    assert told.text == "👍 ok ✅\ufffdend\ufffd"
    assert told.done.usage.completion_tokens == len(HALF_EMOJI) + 1


@pytest.mark.parametrize(
    "script, text, reason",
    [
        (["Hi", "\nUs", "er", ": no"], "Hi", "stop"),
        (["Hi", "\nUs", "ual"], "Hi\nUsual", "stop"),
        (["ends XY"], "ends XY", "stop"),
    ],
)
def test_stop_strings_over_token_boundaries(script: list[str], text: str, reason: str) -> None:
    told = echo(script=script).ask(chat("x"), stop=("\nUser:", "XYZ"))

    assert (told.text, told.reason) == (text, reason)


@pytest.mark.parametrize("max_tokens", [1, 7])
def test_a_token_limit_is_exact(max_tokens: int) -> None:
    told = echo(script=["a"], endless=True).ask(chat("x"), max_tokens=max_tokens)

    assert told.done.usage.completion_tokens == max_tokens
    assert told.reason == "length"


def test_without_a_limit_an_endless_answer_ends_with_the_context() -> None:
    told = echo(script=["a"], endless=True, n_ctx=64).ask(chat("x"))

    assert told.reason == "length"
    assert told.done.usage.prompt_tokens + told.done.usage.completion_tokens == 64


def test_no_token_at_all_may_be_asked_for() -> None:
    told = echo().ask(chat("x"), max_tokens=0)

    told.check_order()
    assert told.done.usage.completion_tokens == 0
    assert told.reason == "length"


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers() -> None:
    error = echo(n_ctx=16).ask(chat("one two three four five six seven eight nine ten")).error

    assert isinstance(error, PromptTooLong)
    assert error.data["n_ctx"] == 16
    assert error.data["prompt_tokens"] >= 16


@pytest.mark.parametrize("broken", [{"sampling": Sampling(seed="odd")}, {"max_tokens": "many"}], ids=str)
def test_a_bug_on_a_requests_way_in_costs_that_request_alone(broken: dict[str, Any]) -> None:
    asking = echo()
    before, bad, after = asking.submit("one"), asking.submit("two", **broken), asking.submit("three")
    asking.run()

    bad.check_order()
    assert isinstance(bad.error, InternalError)
    assert bad.error.__cause__ is not None
    assert (before.text, after.text) == ("one", "three")
    assert asking.engine.status()["slots"] == ()


@pytest.mark.parametrize("prompt", [[], [999_999], [-1]])
def test_a_prompt_of_no_or_unknown_tokens_is_refused(prompt: list[int]) -> None:
    assert isinstance(echo().ask(prompt).error, BadInput)


def test_eight_requests_at_once_each_get_their_own_answer_and_the_one_they_get_alone() -> None:
    prompts = [chat(f"The marker of request {i} is M{i}M and nothing else.") for i in range(8)]
    alone = [echo().ask(prompt).text for prompt in prompts]
    asking = echo()
    together = [asking.submit(prompt) for prompt in prompts]
    asking.run()

    assert [told.text for told in together] == alone
    assert asking.engine.meter.steps_total < 40


def test_more_requests_than_slots_wait_their_turn() -> None:
    asking = echo(n_slots=2)
    tolds = [asking.submit(chat(f"number {i}")) for i in range(6)]
    asking.run()

    assert [told.text for told in tolds] == [f"number {i}" for i in range(6)]


def test_beyond_the_queue_a_request_is_told_to_come_back() -> None:
    asking = echo(n_slots=1, max_queue=1, script=["a"], endless=True)
    first = asking.submit(chat("a"), max_tokens=50)
    asking.engine.step()
    asking.submit(chat("b"), max_tokens=5)
    third = asking.submit(chat("c"), max_tokens=5)
    asking.run()

    assert isinstance(third.error, QueueFull)
    assert third.error.retry_after_s >= 1
    assert first.done.usage.completion_tokens == 50


def test_several_answers_share_one_prompt() -> None:
    asking = echo(speculation=False)
    told = asking.ask(chat("say this again and again, word for word, until the end of the line is reached"), n=3)

    told.check_order(n=3)
    assert len({told.text_of(i) for i in range(3)}) == 1
    usage = told.done.usage
    assert usage.completion_tokens == 3 * (usage.completion_tokens // 3)
    assert asking.engine.meter.rows_total < 2 * usage.prompt_tokens + usage.completion_tokens


def test_what_was_cached_is_reported_and_can_be_forbidden() -> None:
    asking = echo()
    prompt = chat("a question that is long enough to be worth keeping in the cache for the next time it is asked")
    first, second = asking.ask(prompt), asking.ask(prompt)
    third = asking.ask(prompt, cache_prompt=False)

    assert first.done.usage.cached_tokens == 0
    assert second.done.usage.cached_tokens == second.done.usage.prompt_tokens - 1
    assert third.done.usage.cached_tokens == 0
    assert first.text == second.text == third.text


def test_a_seeded_request_without_a_cache_takes_the_same_steps_whatever_was_said_before() -> None:
    asking = echo()
    speculator = asking.engine.scheduler.speculator
    assert speculator is not None
    speculator.cost = CostModel.of({1: 1.0, 64: 1.01})
    text = "one two three four five six seven eight nine ten " * 3
    for _ in range(3):
        asking.ask(chat(text))
    learned = asking.engine.metrics()
    steps = []
    for _ in range(2):
        before = asking.engine.meter.steps_total
        asking.ask(chat(text), cache_prompt=False, sampling=Sampling(seed=7))
        steps.append(asking.engine.meter.steps_total - before)

    assert learned["drafted_tokens_total"] > 0
    assert asking.engine.metrics()["drafted_tokens_total"] == learned["drafted_tokens_total"]
    assert steps == [32, 32]


def test_a_conversation_in_turns_is_computed_once() -> None:
    asking = echo()
    talk = ""
    for turn in range(4):
        talk += chat(f"this is turn {turn} of a talk that goes on for quite a while, is it not")
        told = asking.ask(talk)
        talk += told.text + "<|im_end|>\n"

    assert told.done.usage.cached_tokens > 0.6 * told.done.usage.prompt_tokens


def test_conversations_in_turns_keep_their_answers_where_their_prefixes_are_parked() -> None:
    asking = echo(idle_cells=0, parked_cells=400, pool=600, n_ctx=300, n_slots=2)
    talks = dict.fromkeys(("ada", "bob", "eve"), "")
    for turn in range(4):
        for name in talks:
            said = f"{name} says a long sentence of many words for the turn number {turn}"
            talks[name] += chat(said)
            told = asking.ask(talks[name])

            assert told.text == said
    assert asking.engine.metrics()["kv_cells_parked"] > 0
    assert asking.engine.metrics()["cached_tokens_total"] > 0


def test_cancelling_stops_a_running_answer_within_a_step_and_frees_its_slot() -> None:
    asking = echo(script=["a"], endless=True)
    told = asking.submit(chat("x"), request_id="gone")
    for _ in range(5):
        asking.engine.step()
    asking.engine.cancel("gone")
    asking.engine.step()

    assert isinstance(told.error, Interrupted)
    assert asking.engine.status()["slots"] == ()
    assert not asking.engine.step()


def test_cancelling_stops_a_prompt_between_its_chunks() -> None:
    asking = echo(n_batch=8, tokens="bytes")
    told = asking.submit(chat("x" * 500), request_id="gone")
    asking.engine.step()
    asking.engine.step()
    assert asking.engine.status()["slots"][0].state == "prefill"
    asking.engine.cancel("gone")
    asking.engine.step()

    assert isinstance(told.error, Interrupted)
    assert asking.engine.meter.rows_total < 40


def test_cancelling_a_queued_request_means_it_never_starts() -> None:
    asking = echo(n_slots=1)
    running, queued = asking.submit(chat("x y z")), asking.submit(chat("never"), request_id="gone")
    asking.engine.step()
    asking.engine.cancel("gone")
    asking.run()

    assert isinstance(queued.error, Interrupted)
    assert not any(isinstance(out, Piece) for out in queued.outputs)
    assert running.text == "x y z"


def test_cancelling_interrupts_a_slow_prompt_in_the_middle_of_a_decode() -> None:
    import threading
    import time

    asking = echo(prefill_delay_s=600.0)
    told = asking.submit(chat("x"), request_id="gone")
    threading.Timer(0.1, asking.engine.cancel, ("gone",)).start()
    began = time.monotonic()
    asking.run()

    assert time.monotonic() - began < 60
    assert isinstance(told.error, Interrupted)


def test_cancelling_what_is_unknown_changes_nothing() -> None:
    asking = echo()
    asking.engine.cancel("nobody")

    assert asking.ask(chat("still here")).text == "still here"


def test_a_request_that_takes_too_long_ends_with_an_error() -> None:
    told = echo(script=["a"], endless=True, step_delay_s=0.02).ask(chat("x"), timeout_s=0.1)

    assert isinstance(told.error, TimedOut)


def test_a_failed_decode_costs_its_requests_and_the_next_one_is_answered() -> None:
    asking = echo(script=["a"], endless=True)
    told = asking.submit(chat("x"))
    asking.engine.step()
    asking.backend.spec.options["fail_after"] = asking.backend.decodes  # type: ignore[attr-defined]
    asking.run()
    del asking.backend.spec.options["fail_after"]  # type: ignore[attr-defined]

    assert isinstance(told.error, DecodeFailed)
    assert asking.ask(chat("x"), max_tokens=3).text == "aaa"


def test_a_pool_that_is_too_small_for_all_at_once_still_answers_all() -> None:
    asking = echo(tokens="bytes", n_ctx=400, pool=600, n_slots=4, n_batch=64)
    texts = [f"{i}: " + "abcdefgh" * 18 for i in range(6)]
    tolds = [asking.submit(chat(text)) for text in texts]
    asking.run()

    assert [told.text for told in tolds] == texts
    assert asking.engine.scheduler.preemptions > 0


def test_a_model_that_cannot_share_or_rewind_still_answers() -> None:
    asking = echo(shares_prefixes=False, tokens="bytes")
    for _ in range(2):
        told = asking.ask(chat("the same question twice, long enough to be cached elsewhere"), n=2)

    told.check_order(n=2)
    assert told.text_of(1) == "the same question twice, long enough to be cached elsewhere"
    assert told.done.usage.cached_tokens == 0


def test_the_strict_lane_runs_beside_the_others_and_shares_nothing() -> None:
    asking = echo()
    prompt = chat("a question that is long enough to be worth keeping in the cache for the next time")
    asking.ask(prompt)
    strict, other = asking.submit(prompt, determinism="strict"), asking.submit(chat("an other one"))
    asking.run()

    strict.check_order()
    assert strict.done.usage.cached_tokens == 0
    assert strict.text.endswith("next time")
    assert other.text == "an other one"


def test_cancelling_reaches_the_strict_lane() -> None:
    asking = echo(script=["a"], endless=True)
    told = asking.submit(chat("x"), determinism="strict", request_id="gone")
    for _ in range(3):
        asking.engine.step()
    asking.engine.cancel("gone")
    asking.run()

    assert isinstance(told.error, Interrupted)


def test_log_probabilities_come_with_every_token_of_the_text() -> None:
    told = echo(tokens="bytes").ask(chat("h\u00e9!"), logprobs=2)
    logprobs = [entry for piece in told.pieces for entry in piece.logprobs]

    assert b"".join(entry.token for entry in logprobs) == "hé!".encode()
    for entry in logprobs:
        assert entry.logprob <= 0
        assert len(entry.top) == 2
        assert entry.top[0] == (entry.token, entry.logprob)
        assert entry.top[0][1] >= entry.top[1][1]


def test_an_answer_goes_on_to_its_least_number_of_tokens() -> None:
    told = echo(tokens="bytes").ask(chat("ab"), sampling=Sampling(temperature=0, min_tokens=5), max_tokens=20)

    assert told.done.usage.completion_tokens >= 5


def test_forced_tokens_count_toward_the_least_number_of_tokens() -> None:
    constraint = Constraint(kind="regex", source="x{20}y*")
    told = echo(tokens="bytes").ask(chat(""), sampling=Sampling(min_tokens=10), constraint=constraint, max_tokens=60)

    assert told.text == "x" * 20


def test_an_ignored_end_leads_to_the_limit() -> None:
    told = echo(tokens="bytes").ask(chat("ab"), sampling=Sampling(temperature=0, ignore_eos=True), max_tokens=9)

    assert (told.reason, told.done.usage.completion_tokens) == ("length", 9)


def test_an_object_ends_at_its_closing_brace_although_the_model_prefers_line_feeds() -> None:
    asking = echo(tokens="bytes", prefer="\n")
    for whitespace, said in ((False, '{"a": {"b": [1, 2]}, "c": "d"}'), (True, '{"a":{"b":[1,2]}}')):
        told = asking.ask(
            chat(said),
            constraint=Constraint(kind="json_object", source=None, whitespace=whitespace),
            max_tokens=400,
        )

        assert told.reason == "stop"
        assert json.loads(told.text) == json.loads(said)
        assert "\n" * 21 not in told.text


@pytest.mark.parametrize("source", ["forced", "f(orced|a)", "(f|a)orced"])
def test_a_forced_answer_that_the_limit_cuts_ends_with_length(source: str) -> None:
    ask = chat("forced"), Constraint(kind="regex", source=source)
    cut, whole = (echo(tokens="bytes").ask(ask[0], constraint=ask[1], max_tokens=limit) for limit in (4, 6))

    assert (cut.text, cut.reason, cut.done.usage.completion_tokens) == ("forc", "length", 4)
    assert (whole.text, whole.reason) == ("forced", "stop")


@pytest.mark.parametrize("n_batch", [1, 4, 16])
def test_a_forced_answer_longer_than_a_step_comes_to_its_end(n_batch: int) -> None:
    source = "[0-9]" + "x" * 70 + "[0-9]"
    asking = echo(n_batch=n_batch)
    told = asking.submit(chat("hi"), constraint=Constraint(kind="regex", source=source), max_tokens=200)
    other = asking.submit(chat("one two three"))
    for _ in range(500):
        asking.engine.step()

    told.check_order()
    assert re.fullmatch(source, told.text)
    assert other.text == "one two three"


def test_forced_tokens_of_an_answer_do_not_count_as_cached_ones_of_the_prompt() -> None:
    asking = echo(tokens="bytes")
    prompt, word = chat("y" * 100), "forced" * 10
    asking.ask(prompt + word, max_tokens=4)
    told = asking.ask(prompt, constraint=Constraint(kind="regex", source=f"{word}(a|y)"), max_tokens=90)

    assert told.text.startswith(word)
    assert 0 < told.done.usage.cached_tokens <= told.done.usage.prompt_tokens


def test_a_constraint_leaves_nothing_to_the_next_request() -> None:
    asking = echo(tokens="bytes")
    constraint = Constraint(kind="regex", source="ab+c")
    answers = [asking.ask(chat("abbbc"), constraint=constraint, max_tokens=20).text for _ in range(2)]
    plain = asking.ask(chat("free")).text
    cancelled = asking.submit(chat("abbbc"), constraint=constraint, request_id="gone")
    asking.engine.step()
    asking.engine.cancel("gone")
    asking.run()

    assert answers == ["abbbc", "abbbc"]
    assert plain == "free"
    assert cancelled.over
    assert asking.ask(chat("abbbc"), constraint=constraint, max_tokens=20).text == "abbbc"


@pytest.mark.parametrize(
    "schema, path",
    [
        ({"properties": {"x": {"type": "array", "uniqueItems": True}}}, "$.properties.x.uniqueItems"),
        ({"anyOf": [{"type": "string"}, {"dependentRequired": {"a": ["b"]}}]}, "$.anyOf[1].dependentRequired"),
        ({"properties": {"contains": {"contains": {}}}}, "$.properties.contains.contains"),
        ({"items": {"type": "strin"}}, "$.items.type"),
    ],
)
def test_a_keyword_that_cannot_be_enforced_is_refused_with_its_place(schema: dict[str, object], path: str) -> None:
    error = echo(tokens="bytes").ask(chat("x"), constraint=Constraint(kind="json_schema", source=schema)).error

    assert isinstance(error, BadInput)
    assert error.data["path"] == path


@pytest.mark.parametrize("kind, source", [("regex", "(?=a"), ("lark", "start: nothing"), ("gbnf", "root := [")])
def test_a_grammar_that_cannot_be_read_is_refused(kind: str, source: str) -> None:
    error = echo(tokens="bytes").ask(chat("x"), constraint=Constraint(kind=kind, source=source)).error  # type: ignore[arg-type]

    assert isinstance(error, BadInput)


@pytest.mark.parametrize(
    ("kind", "source", "form"),
    [
        ("regex", "[0-9]{2}-x", "[0-9]{2}-x"),
        ("lark", 'start: "a" NUMBER\nNUMBER: /[0-9]{3}/', "a[0-9]{3}"),
        ("gbnf", 'root ::= "<" ("yes" | "no") ">"', "<(yes|no)>"),
        ("json_schema", {"enum": ["red", "blue"]}, '"(red|blue)"'),
    ],
)
def test_each_kind_of_constraint_is_kept(kind: Any, source: Any, form: str) -> None:
    told = echo(tokens="bytes").ask(chat("free text"), constraint=Constraint(kind=kind, source=source), max_tokens=80)

    assert told.reason == "stop"
    assert re.fullmatch(form, told.text)


def test_a_trigger_binds_the_answer_from_its_text_on() -> None:
    told = echo(tokens="bytes").ask(
        chat("free text <call>{bad} and more"),
        constraint=Constraint(kind="regex", source="[0-9]{3};", trigger="<call>"),
        max_tokens=60,
    )

    head, _, tail = told.text.partition("<call>")
    assert head == "free text "
    assert tail[:3].isdigit()
    assert tail[3] == ";"


@pytest.mark.parametrize("required", [False, True])
def test_a_token_that_ends_the_trigger_and_breaks_the_constraint_is_not_said(required: bool) -> None:
    script = ["<call", ">bad", "<call", ">1", "more"]
    constraint = Constraint(kind="regex", source="[0-9]{3};", trigger="<call>", required=required)
    told = echo(script=script).ask(chat("x"), constraint=constraint, max_tokens=8)

    assert re.match("<call <call>1[0-9]{2};", told.text)


def test_closing_the_engine_ends_every_request() -> None:
    asking = echo(script=["a"], endless=True, n_slots=1)
    tolds = [asking.submit(chat("x")) for _ in range(3)]
    asking.engine.step()
    last = asking.submit(chat("y"))
    asking.engine.close()

    assert all(isinstance(told.error, Interrupted) for told in [*tolds, last])


def test_a_load_that_fails_says_why() -> None:
    with pytest.raises(ModelLoadFailed, match="no such luck"):
        echo(fail_load="no such luck")
