"""Who gets which rows of a step."""

from __future__ import annotations

from typing import Any

from localllm.runtime.engine.cost import CostModel
from localllm.runtime.engine.scheduler import Copy, Discard, Limits, Park, Remove, Restore, Scheduler, Share
from localllm.runtime.engine.sequence import Sequence
from localllm.runtime.engine.speculation import Speculator


def limits(**changes: Any) -> Limits:
    return Limits(**{"n_slots": 4, "n_sequences": 8, "n_cells": 1000, "n_batch": 64, "n_outputs": 32} | changes)


def scheduler_with(cost: dict[int, float] | None = None, **changes: Any) -> Scheduler:
    model = CostModel()
    for rows, seconds in (cost or {}).items():
        model.observe(rows, seconds)
    return Scheduler(limits(**changes), model)


def sequence_of(name: str, prompt: list[int], limit: int = 500) -> Sequence:
    return Sequence(request_id=name, index=0, tokens=list(prompt), n_prompt=len(prompt), limit=limit)


def step(scheduler: Scheduler, token: int = 7) -> list[Share]:
    """One step in which every sequence that asked for logits says `token`."""
    shares = scheduler.schedule()
    for share in shares:
        scheduler.commit(share, [token] if share.n_outputs else [])
    return shares


def names(shares: list[Share]) -> list[str]:
    return [share.sequence.request_id for share in shares]


def test_a_prompt_is_computed_in_chunks_and_then_token_by_token() -> None:
    scheduler = scheduler_with(n_batch=32)
    scheduler.add(sequence_of("a", list(range(50))))

    assert [(share.start, share.count, share.n_outputs) for share in step(scheduler)] == [(0, 32, 0)]
    assert [(share.start, share.count, share.n_outputs) for share in step(scheduler)] == [(32, 18, 1)]
    assert [(share.start, share.tokens, share.n_outputs) for share in step(scheduler)] == [(50, [7], 1)]


def test_who_came_first_is_admitted_first_and_slots_are_never_exceeded() -> None:
    scheduler = scheduler_with(n_slots=2)
    sequences = [sequence_of(name, [i] * 5) for i, name in enumerate("abc")]
    for sequence in sequences:
        scheduler.add(sequence)

    assert names(step(scheduler)) == ["a", "b"]

    scheduler.release(sequences[0])
    assert names(step(scheduler)) == ["b", "c"]


def test_a_request_for_many_answers_does_not_keep_the_others_waiting() -> None:
    scheduler = scheduler_with(n_slots=2)
    many = [Sequence(request_id="many", index=i, tokens=[1], n_prompt=1, limit=9) for i in range(5)]
    for sequence in many:
        scheduler.add(sequence)
    step(scheduler)
    other, third = sequence_of("other", [2]), sequence_of("third", [3])
    scheduler.add(other)
    scheduler.add(third)
    scheduler.release(many[0])

    assert names(step(scheduler)) == ["many", "other"]

    scheduler.release(many[1])
    assert names(step(scheduler)) == ["other", "many"]

    scheduler.release(other)
    assert names(step(scheduler)) == ["many", "third"]


def test_running_answers_get_their_row_beside_a_long_prompt_that_gets_the_rest_of_the_time() -> None:
    scheduler = scheduler_with({1: 0.004, 512: 2.0}, n_batch=512, gap_s=0.08)
    scheduler.add(sequence_of("short", [1] * 4))
    step(scheduler)
    scheduler.add(sequence_of("long", list(range(400))))
    shares = step(scheduler)

    assert names(shares) == ["short", "long"]
    assert shares[0].count == 1
    assert 16 <= shares[1].count <= 22


def test_a_short_prompt_does_not_wait_for_a_long_one_that_came_before() -> None:
    scheduler = scheduler_with(n_batch=32)
    scheduler.add(sequence_of("long", list(range(400))))
    step(scheduler)
    scheduler.add(sequence_of("short", [9] * 10))
    shares = {share.sequence.request_id: share for share in step(scheduler)}

    assert shares["short"].n_outputs == 1
    assert shares["long"].count >= 16


def test_a_prefix_left_behind_is_handed_on() -> None:
    scheduler = scheduler_with()
    first = sequence_of("a", list(range(40)))
    scheduler.add(first)
    step(scheduler)
    scheduler.release(first)
    second = sequence_of("b", [*range(30), 99, 98])
    scheduler.add(second)
    (share,) = scheduler.schedule()

    assert Copy(0, second.seq_id, 30) in scheduler.operations
    assert (share.start, share.count, second.cached) == (30, 2, 30)


def test_a_few_tokens_are_taken_over_from_the_pool_but_not_brought_back_into_it() -> None:
    few = [*range(6), 99, 98]
    near = scheduler_with()
    run_and_release(near, "a", list(range(40)))
    near.add(sequence_of("b", few))
    assert [share.start for share in near.schedule()] == [6]

    far = scheduler_with(idle_cells=0, parked_cells=200)
    run_and_release(far, "a", list(range(40)))
    far.add(sequence_of("b", few))
    assert [share.start for share in far.schedule()] == [0]


def test_an_equal_prompt_still_computes_its_last_token() -> None:
    scheduler = scheduler_with()
    for _ in range(2):
        sequence = sequence_of("a", list(range(40)))
        scheduler.add(sequence)
        (share,) = step(scheduler)
        scheduler.release(sequence)

    assert (share.start, share.count) == (39, 1)


def test_requests_that_arrive_together_compute_their_common_prefix_once() -> None:
    scheduler = scheduler_with(n_batch=64, n_slots=4)
    sequences = [sequence_of(name, [*range(100), 200 + i]) for i, name in enumerate("abcd")]
    for sequence in sequences:
        scheduler.add(sequence)
    computed = 0
    for _ in range(4):
        computed += sum(share.count for share in step(scheduler))

    assert all(sequence.n_answer for sequence in sequences)
    assert computed <= 104 + 4 * 3
    assert [sequence.cached for sequence in sequences] == [0, 100, 100, 100]
    assert scheduler.cells.used < 120


def test_followers_go_on_alone_when_their_leader_is_cancelled() -> None:
    scheduler = scheduler_with(n_batch=32)
    leader, follower = sequence_of("a", list(range(100))), sequence_of("b", [*range(90), 1])
    scheduler.add(leader)
    scheduler.add(follower)
    step(scheduler)
    scheduler.release(leader)
    shares = step(scheduler)

    assert names(shares) == ["b"]
    assert shares[0].start == 32


def test_who_wants_no_cache_neither_takes_nor_leaves_a_prefix() -> None:
    scheduler = scheduler_with()
    for share_it in (False, True, False):
        sequence = sequence_of("a", list(range(40)))
        sequence.share = share_it
        scheduler.add(sequence)
        (share,) = step(scheduler)
        assert share.count == 40
        scheduler.release(sequence)


def test_a_model_that_cannot_share_computes_every_prompt() -> None:
    scheduler = scheduler_with(shares_prefixes=False)
    for _ in range(2):
        sequence = sequence_of("a", list(range(40)))
        scheduler.add(sequence)
        (share,) = step(scheduler)
        scheduler.release(sequence)

    assert share.count == 40
    assert not any(isinstance(operation, Copy) for operation in scheduler.operations)


def test_idle_prefixes_give_way_to_running_requests() -> None:
    scheduler = scheduler_with(n_cells=100, n_batch=100, idle_cells=int(1000 * 1.0))
    for base in (0, 1000):
        sequence = sequence_of("old", list(range(base, base + 40)))
        scheduler.add(sequence)
        step(scheduler)
        scheduler.release(sequence)
    scheduler.add(sequence_of("new", list(range(2000, 2060))))
    (share,) = step(scheduler)

    assert share.count == 60
    assert scheduler.evictions == 1
    assert scheduler.cells.used <= 100


def test_the_last_one_is_stopped_when_the_cells_run_out_and_resumes_with_its_answer() -> None:
    scheduler = scheduler_with(n_cells=64, n_batch=64)
    first, second = sequence_of("a", [1] * 10, limit=60), sequence_of("b", [2] * 10, limit=60)
    scheduler.add(first)
    scheduler.add(second)
    while not scheduler.preemptions:
        step(scheduler)

    assert second.seq_id == -1
    assert second.n_answer > 0

    said = list(second.tokens)
    scheduler.release(first)
    step(scheduler)
    assert second.seq_id >= 0
    assert second.tokens[: len(said)] == said
    assert len(second.tokens) == len(said) + 1


def test_the_rejected_end_of_a_draft_is_cut_off() -> None:
    scheduler = scheduler_with()
    sequence = sequence_of("a", [1, 2, 3])
    scheduler.add(sequence)
    (share,) = scheduler.schedule()
    scheduler.commit(Share(sequence, 0, share.tokens, [4, 5, 6], 4), [4, 9])

    assert sequence.tokens == [1, 2, 3, 4, 9]
    assert sequence.computed == 4
    assert Remove(sequence.seq_id, 4) in scheduler.operations


def test_the_waiting_line_is_bounded() -> None:
    scheduler = scheduler_with(max_queue=2)
    for name in "ab":
        assert not scheduler.full
        scheduler.add(sequence_of(name, [1]))

    assert scheduler.full


def run_and_release(scheduler: Scheduler, name: str, prompt: list[int]) -> Sequence:
    sequence = sequence_of(name, prompt)
    scheduler.add(sequence)
    step(scheduler)
    scheduler.release(sequence)
    return sequence


def test_an_idle_prefix_beyond_the_pool_s_share_is_parked_and_comes_back() -> None:
    scheduler = scheduler_with(idle_cells=50, parked_cells=200)
    first, other = list(range(40)), list(range(500, 540))
    run_and_release(scheduler, "a", first)
    run_and_release(scheduler, "b", other)

    (park,) = [operation for operation in scheduler.operations if isinstance(operation, Park)]
    assert scheduler.idle_cells == 40
    assert scheduler.parked_cells == 40

    scheduler.operations.clear()
    again = sequence_of("c", [*first, 99])
    scheduler.add(again)
    (share,) = scheduler.schedule()

    assert scheduler.operations == [Restore(park.key, again.seq_id, 40)]
    assert (share.start, share.tokens, again.cached) == (40, [99], 40)
    assert scheduler.cells.used == 80


def test_cells_that_do_not_come_back_are_computed() -> None:
    scheduler = scheduler_with(idle_cells=0, parked_cells=200)
    run_and_release(scheduler, "a", list(range(40)))
    scheduler.operations.clear()
    again = sequence_of("b", [*range(40), 99])
    scheduler.add(again)
    scheduler.schedule()
    (restore,) = [operation for operation in scheduler.operations if isinstance(operation, Restore)]
    scheduler.operations.clear()
    scheduler.not_restored(restore)
    (share,) = scheduler.schedule()

    assert (share.start, share.count, again.cached) == (0, 41, 0)
    assert scheduler.parked_cells == 0
    assert Discard(restore.key) in scheduler.operations


def test_cells_that_do_not_come_back_take_the_guesses_that_went_with_them() -> None:
    speculator = Speculator(CostModel.of({1: 1.0, 64: 1.01}))
    scheduler = Scheduler(limits(idle_cells=0, parked_cells=200), CostModel.of({1: 1.0, 64: 1.01}), speculator)
    prompt = list(range(60))
    for i in range(2):
        sequence = sequence_of(f"r{i}", prompt)
        sequence.manner = "greedy"
        scheduler.add(sequence)
        for token in range(100, 140):
            for share in scheduler.schedule():
                scheduler.commit(share, [token] if share.n_outputs else [])
            scheduler.operations.clear()
        scheduler.release(sequence)
        scheduler.operations.clear()
    again = sequence_of("again", prompt)
    again.manner = "greedy"
    scheduler.add(again)
    (guessed,) = scheduler.schedule()
    (restore,) = [operation for operation in scheduler.operations if isinstance(operation, Restore)]
    scheduler.not_restored(restore)
    (share,) = scheduler.schedule()

    assert guessed.draft
    assert (share.start, share.count, share.draft) == (0, 60, [])


def test_what_is_parked_is_bounded_and_nothing_is_parked_twice() -> None:
    scheduler = scheduler_with(idle_cells=0, parked_cells=100)
    for _ in range(2):
        run_and_release(scheduler, "a", list(range(40)))

    assert scheduler.parked_cells == 40

    for start in (100, 200, 300):
        run_and_release(scheduler, "b", list(range(start, start + 40)))

    assert scheduler.parked_cells == 80
    assert sum(isinstance(operation, Discard) for operation in scheduler.operations) >= 2


def test_one_conversation_too_long_to_be_parked_stays_in_the_pool() -> None:
    scheduler = scheduler_with(idle_cells=10, parked_cells=20)
    run_and_release(scheduler, "a", list(range(40)))

    assert scheduler.idle_cells == 40
    assert scheduler.parked_cells == 0


def test_more_answers_than_a_step_has_room_for_take_turns() -> None:
    scheduler = scheduler_with(n_batch=4, n_outputs=2)
    sequences = [sequence_of(name, [i]) for i, name in enumerate("abcd")]
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in range(20):
        step(scheduler)

    lengths = [sequence.n_answer for sequence in sequences]
    assert sum(lengths) == 20 * 2
    assert max(lengths) - min(lengths) <= 1


def test_a_prompt_gets_on_beside_as_many_answers_as_a_step_can_serve() -> None:
    scheduler = scheduler_with(n_batch=4, n_outputs=2)
    for name in "abc":
        scheduler.add(sequence_of(name, [1]))
    step(scheduler), step(scheduler)
    late = sequence_of("late", list(range(30)))
    scheduler.add(late)
    for _ in range(30):
        step(scheduler)

    assert late.n_answer > 0


def test_what_an_answer_was_forced_to_say_is_computed_in_pieces_where_a_step_takes_less() -> None:
    scheduler = scheduler_with(n_batch=8)
    sequence = sequence_of("a", [1, 2])
    scheduler.add(sequence)
    step(scheduler)
    sequence.tokens.extend(range(20, 40))

    assert [(share.count, share.n_outputs) for _ in range(3) for share in step(scheduler)] == [(8, 0), (8, 0), (5, 1)]


def test_a_repeatable_sequence_that_begins_alone_finds_an_empty_pool_and_fixed_chunks() -> None:
    scheduler = scheduler_with({1: 0.01, 64: 10.0})
    old = sequence_of("old", list(range(40)))
    scheduler.add(old)
    step(scheduler)
    scheduler.release(old)
    again = Sequence(
        request_id="again", index=0, tokens=list(range(150)), n_prompt=150, limit=200, share=False, repeatable=True
    )
    scheduler.add(again)

    assert [share.count for _ in range(3) for share in step(scheduler)] == [64, 64, 22]
    assert scheduler.cells.used == 150


def test_a_repeatable_sequence_that_comes_beside_others_leaves_them_alone() -> None:
    scheduler = scheduler_with()
    kept, runs = sequence_of("kept", list(range(40))), sequence_of("runs", [9] * 5)
    for sequence in (kept, runs):
        scheduler.add(sequence)
    step(scheduler)
    scheduler.release(kept)
    beside = Sequence(request_id="b", index=0, tokens=[5] * 8, n_prompt=8, limit=50, share=False, repeatable=True)
    scheduler.add(beside)
    step(scheduler)

    assert scheduler.idle_cells == 40
