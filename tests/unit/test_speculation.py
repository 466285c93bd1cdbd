"""Guessing from what was said before, and betting only where it pays."""

from __future__ import annotations

from localllm.runtime.engine.cost import CostModel
from localllm.runtime.engine.recall import LONGEST_SUFFIX, Guess, Index, Memory
from localllm.runtime.engine.sequence import Sequence
from localllm.runtime.engine.speculation import Speculator

FLAT = {1: 1.0, 32: 1.1}
"""Rows cost nearly nothing, as on a GPU."""
STEEP = {1: 1.0, 2: 2.0, 32: 32.0}
"""A row more costs as much as a step."""


def followed(index: Index, suffix: list[int]) -> list[int]:
    """All that a guess at what follows the suffix brings."""
    guess = Guess.of(suffix, [index], 31)
    assert guess is not None
    guess.reaches(31)
    return guess.tokens


def sequence_of(tokens: list[int], limit: int = 1000, manner: str | None = None) -> Sequence:
    return Sequence(request_id="r", index=0, tokens=tokens, n_prompt=len(tokens), limit=limit, manner=manner)


def answer(speculator: Speculator, sequence: Sequence, truth: list[int], most: int = 31) -> int:
    """Let a sequence say `truth`; returns the steps that took."""
    steps, at = 0, 0
    while at < len(truth):
        speculator.propose([sequence], most)
        kept = []
        for i, guess in enumerate([*sequence.draft, None]):
            kept.append(truth[at + i])
            if at + i + 1 == len(truth) or kept[-1] != guess:
                break
        speculator.learn(sequence, kept)
        sequence.tokens.extend(kept)
        at += len(kept)
        steps += 1
    speculator.forget(sequence, remember=True)
    return steps


def test_the_longest_suffix_predicts() -> None:
    index = Index()
    index.extend([1, 2, 3, 4, 5, 9, 2, 3, 4, 6])

    assert index.find([5, 9, 2, 3, 4]) == [(5, 9), (3, 4)]
    assert followed(index, [5, 9, 2, 3, 4]) == [6]
    assert followed(index, [1, 2, 3, 4]) == [5, 9, 2, 3, 4, 6]
    assert index.find([7, 7, 7]) == []
    assert Guess.of([7, 7, 7], [index], 31) is None


def test_in_text_that_goes_round_in_circles_the_longest_suffix_agrees_as_far_as_there_is_text() -> None:
    index = Index()
    index.extend([1, 2, 3, 4] * 40)

    assert index.find(index.tokens[-LONGEST_SUFFIX:])[0] == (LONGEST_SUFFIX, 156)
    assert index.find([9, 9, *index.tokens[-10:]])[0] == (10, 156)


def test_a_guess_knows_how_many_places_went_on_like_it_and_whether_one_did_not() -> None:
    index = Index()
    for ending in ([5, 6, 7], [5, 6, 8], [5, 6, 7], [5, 6]):
        index.extend([1, 2, 3, *ending])
    guess = Guess.of([1, 2, 3], [index], 31)

    assert guess is not None
    assert guess.reaches(3)
    assert guess.tokens == [5, 6, 7]
    assert guess.agreement == [3, 3, 0]


def test_an_answer_said_before_comes_in_a_few_steps() -> None:
    speculator = Speculator(CostModel.of(FLAT))
    prompt, truth = list(range(20)), list(range(100, 148))

    assert answer(speculator, sequence_of(list(prompt)), truth) == 48
    assert answer(speculator, sequence_of(list(prompt)), truth) <= 3
    assert speculator.accepted > 40


def test_the_same_prompt_is_guessed_to_get_the_same_answer_at_once_where_nothing_is_left_to_chance() -> None:
    speculator = Speculator(CostModel.of(FLAT))
    prompt, truth = list(range(20)), list(range(100, 148))
    answer(speculator, sequence_of(list(prompt), manner="greedy"), truth)
    for i in range(12):  # whatever else was answered to prompts that end alike
        answer(speculator, sequence_of([1000 + i, *prompt[1:]]), [500 + i, 3, 4])
    again, by_chance, otherwise = (sequence_of(list(prompt), manner=manner) for manner in ("greedy", None, "form"))
    speculator.propose([again, by_chance, otherwise], 93)

    assert again.draft == truth[: len(again.draft)]
    assert len(again.draft) == 31
    assert by_chance.draft[:1] != truth[:1]
    assert otherwise.draft[:1] != truth[:1]


def test_the_answer_to_a_prompt_is_neither_replaced_by_chance_nor_by_its_own_beginning() -> None:
    speculator = Speculator(CostModel.of(FLAT))
    prompt, truth = list(range(20)), list(range(100, 120))
    answer(speculator, sequence_of(list(prompt), manner="greedy"), truth)
    answer(speculator, sequence_of(list(prompt)), [7, 8, 9])
    answer(speculator, sequence_of(list(prompt), manner="greedy"), truth[:2])
    cancelled = sequence_of(list(prompt), manner="greedy")
    speculator.propose([cancelled], 31)
    speculator.forget(cancelled, remember=True)
    again = sequence_of(list(prompt), manner="greedy")
    speculator.propose([again], 31)

    assert again.draft == truth

    answer(speculator, sequence_of(list(prompt), manner="greedy"), [100, 5, 6])  # after a change of the model's mind
    speculator.propose([again], 31)
    later = sequence_of(list(prompt), manner="greedy")
    speculator.propose([later], 31)

    assert later.draft == [100, 5, 6]


def test_a_guess_ends_where_the_earlier_answer_ended() -> None:
    speculator = Speculator(CostModel.of(FLAT))
    for prompt, truth in ((list(range(20)), list(range(100, 105))), (list(range(50, 70)), list(range(200, 220)))):
        answer(speculator, sequence_of(prompt, manner="greedy"), truth)
    again = sequence_of(list(range(20)), manner="greedy")
    speculator.propose([again], 31)

    assert again.draft == list(range(100, 105))


def test_an_answer_that_turns_out_differently_is_not_followed_further() -> None:
    speculator = Speculator(CostModel.of(FLAT))
    answer(speculator, sequence_of(list(range(20)), manner="greedy"), list(range(100, 148)))
    again = sequence_of(list(range(20)), manner="greedy")
    speculator.propose([again], 31)
    speculator.learn(again, [100, 101, 999])
    again.tokens.extend([100, 101, 999])
    speculator.propose([again], 31)

    assert again.draft == []


def test_nothing_is_drafted_where_a_row_costs_as_much_as_a_step() -> None:
    speculator = Speculator(CostModel.of(STEEP))
    prompt, truth = list(range(20)), list(range(100, 148))
    answer(speculator, sequence_of(list(prompt)), truth)
    answer(speculator, sequence_of(list(prompt)), truth)

    assert speculator.drafted == 0


def test_bad_guesses_stop_being_tried_and_good_ones_are_taken_up_again() -> None:
    speculator = Speculator(CostModel.of({1: 1.0, 4: 1.8, 32: 6.0}))
    prompt = list(range(20))
    for i in range(30):  # the same prompt, and never the same answer: each match of the prompt misleads
        answer(speculator, sequence_of(list(prompt)), [1000 + 50 * i + k for k in range(6)])
    misled = speculator.drafted
    for i in range(30):
        answer(speculator, sequence_of(list(prompt)), [9000 + 50 * i + k for k in range(6)])
    still = speculator.drafted - misled
    for _ in range(12):
        answer(speculator, sequence_of(list(prompt)), list(range(5000, 5030)))
    steps = answer(speculator, sequence_of(list(prompt)), list(range(5000, 5030)))

    assert still <= misled
    assert steps <= 12


def test_a_draft_never_reaches_beyond_the_limit() -> None:
    speculator = Speculator(CostModel.of(FLAT))
    answer(speculator, sequence_of(list(range(20))), list(range(100, 148)))
    sequence = sequence_of(list(range(20)), limit=24)
    speculator.propose([sequence], 31)

    assert 0 < len(sequence.draft) <= 3


def test_several_sequences_share_the_rows_there_are() -> None:
    speculator = Speculator(CostModel.of(FLAT))
    answer(speculator, sequence_of(list(range(20))), list(range(100, 148)))
    sequences = [sequence_of(list(range(20))) for _ in range(4)]
    speculator.propose(sequences, 10)

    assert sum(len(sequence.draft) for sequence in sequences) == 10
    assert all(sequence.draft for sequence in sequences)


def test_the_memory_of_earlier_answers_is_bounded() -> None:
    memory = Memory(capacity=100)
    for i in range(50):
        sequence = sequence_of(list(range(i * 10, i * 10 + 10)), manner="greedy")
        sequence.tokens.extend(range(i * 10 + 10, i * 10 + 30))
        memory.add(sequence)

    assert len(memory.young.tokens) + len(memory.old.tokens) <= 210
    assert len(memory.young.answers) + len(memory.old.answers) <= 6


def test_one_answer_s_unlucky_guesses_cost_it_little_whatever_is_believed_of_them() -> None:
    cost = CostModel.of({1: 1.0, 2: 1.4, 8: 3.8, 32: 14.0})
    speculator = Speculator(cost)
    for _ in range(60):  # short runs that went on alike, so that bets on them look good
        answer(speculator, sequence_of([1, 2, 3]), [4, 5, 6, 7, 8, 9])
    sequence, spent, plain = sequence_of([50, 51]), 0.0, 0
    for i in range(40):  # now none of them goes on as before
        sequence.tokens.extend([1000 + i, 1, 2, 3])
        speculator.propose([sequence], 31)
        spent += cost.seconds(1 + len(sequence.draft))
        plain += 1
        speculator.learn(sequence, [2000 + i])
        sequence.tokens.append(2000 + i)

    assert 0 < spent - plain <= 2
