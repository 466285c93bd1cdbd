"""A thinking budget closes the thought cleanly; without a thought it changes nothing."""

from __future__ import annotations

import pytest
from fixtures.asking import Asking, Told, echo
from localllm.runtime.engine.answer import Work
from localllm.runtime.engine.thinking import Thinking, ThinkingLimit, ThinkingTags
from localllm.runtime.types import Constraint, GenerateRequest, Sampling

TAGS = ThinkingTags(b"<think>", b"</think>", (1, 2))
THOUGHT = ["<think>", " a", " b", " c", " d", "</think>", " the", " answer"]


def limited(asking: Asking, budget: int | None, *, opened: bool = False, **request: object) -> Told:
    """Ask with a budget; the tags' tokens are the backend's own."""
    after = "\n\n" if request.get("constraint") is None else ""
    closing = tuple(asking.backend.tokenize(f"\n</think>{after}"))
    tags = ThinkingTags(b"<think>", b"</think>", closing)
    told = Told()
    work = Work(
        request=GenerateRequest(request_id="r", sampling=Sampling(temperature=0.0), **request),  # type: ignore[arg-type]
        prompt_tokens=asking.backend.tokenize("say"),
        thinking=ThinkingLimit(budget=budget, tags=(tags,), opened=tags if opened else None),
    )
    asking.engine.submit(work, told.outputs.append)
    asking.run()
    return told


def test_a_thought_within_its_budget_is_left_alone() -> None:
    told = limited(echo(script=THOUGHT), 10)

    assert told.text == "".join(THOUGHT)


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_thought_is_closed_when_the_budget_is_spent(budget: int) -> None:
    told = limited(echo(script=THOUGHT), budget)
    thought, closing, _ = told.text.partition("\n</think>\n\n")

    assert closing
    assert thought == "".join(THOUGHT[: budget + 1])
    told.check_order()


def test_a_budget_of_nothing_closes_what_the_prompt_opened_at_once() -> None:
    told = limited(echo(script=[" the", " answer"]), 0, opened=True)

    assert told.text.startswith("\n</think>\n\n")
    assert told.reason == "stop"


def test_an_answer_without_a_thought_is_never_closed() -> None:
    told = limited(echo(script=["plain", " words", " <think>", " x", " y"]), 1)

    assert told.text == "plain words <think> x y"


def test_closing_stays_within_the_limit_of_tokens() -> None:
    told = limited(echo(script=THOUGHT, tokens="bytes"), 3, max_tokens=5)

    assert told.done.usage.completion_tokens == 5
    assert told.reason == "length"


def test_a_constraint_that_waits_for_the_closing_tag_begins_behind_it() -> None:
    constraint = Constraint(kind="regex", source="[ab]{2}", trigger="</think>", required=True)
    told = limited(echo(script=[], tokens="bytes", prefer="a"), 2, opened=True, constraint=constraint)

    assert told.text.partition("</think>")[1]
    assert told.reason == "stop"
    assert len(told.text.partition("</think>")[2].strip()) == 2


def test_an_answer_may_not_end_before_a_required_trigger() -> None:
    constraint = Constraint(kind="regex", source="ok", trigger="</think>", required=True)
    told = limited(echo(script=["x"], prefer="y"), 3, opened=True, constraint=constraint, max_tokens=40)

    assert told.text.endswith("ok")
    assert told.reason == "stop"


@pytest.mark.parametrize("again", [1, 2, 3])
def test_reasoning_tokens_are_those_of_the_thought_with_its_tags_however_many_a_step_brings(again: int) -> None:
    asking = echo(script=THOUGHT)
    told = [limited(asking, None) for _ in range(again)][-1]

    assert told.done.usage.reasoning_tokens == 6


def test_an_answer_without_a_thought_has_no_reasoning_tokens() -> None:
    assert limited(echo(script=["plain", " words"]), None).done.usage.reasoning_tokens == 0


def test_the_closing_tag_is_found_over_pieces() -> None:
    thinking = Thinking(ThinkingLimit(budget=3, tags=(TAGS,), opened=TAGS))
    for piece in (b"a</th", b"ink", b">b"):
        thinking.saw(piece)

    assert not thinking.due


def test_the_opening_tag_is_found_over_pieces_and_after_blanks() -> None:
    thinking = Thinking(ThinkingLimit(budget=1, tags=(TAGS,)))
    for piece in (b"\n", b"<th", b"ink>", b"x"):
        thinking.saw(piece)

    assert thinking.due
    assert thinking.close() == (1, 2)
    assert not thinking.due
