"""What must hold whatever the requests, the order, the sizes: on the echo backend, which shows each mistake as text."""

from __future__ import annotations

import re
from itertools import pairwise

import hypothesis.strategies as st
from fixtures.asking import Told, chat, echo
from fixtures.hanging_up import hanging_up
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from localllm.errors import Interrupted
from localllm.runtime.engine.cells import Cells
from localllm.runtime.engine.prefix import PrefixTree, common_length
from localllm.runtime.engine.text import TextStream
from localllm.runtime.types import Constraint, Done, Sampling

SEQ_IDS = st.integers(0, 3)
TOKENS = st.lists(st.integers(0, 3), max_size=12)
WORDS = st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta", "beta gamma"]), min_size=1, max_size=20).map(
    " ".join
)


def streamed(pieces: list[bytes], stops: tuple[str, ...]) -> tuple[str, str | None]:
    text, shown = TextStream(stops), ""
    for piece in pieces:
        shown += text.push(piece)
        if text.stop_text is not None:
            break
    return shown + text.finish(), text.stop_text


@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode), st.lists(st.integers(0, 60), max_size=8))
def test_any_split_of_bytes_gives_the_same_text(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(places)]

    assert streamed(pieces, ()) == (data.decode("utf-8", "replace"), None)


@given(
    st.text("abc👍", max_size=30),
    st.lists(st.text("abc👍", min_size=1, max_size=4), max_size=3).map(tuple),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_any_split_finds_the_same_stop(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    data = text.encode()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(places)]
    shown, stop = streamed(pieces, stops)

    assert (shown, stop) == streamed([data], stops)
    assert not any(other in shown for other in stops)
    assert text.startswith(shown + (stop or ""))


@given(st.lists(st.tuples(st.integers(0, 5), TOKENS | st.none()), max_size=20), TOKENS)
def test_the_prefix_tree_agrees_with_comparing_all(
    changes: list[tuple[int, list[int] | None]], wanted: list[int]
) -> None:
    tree, held = PrefixTree(), {}
    for seq_id, tokens in changes:
        if tokens:
            tree.put(seq_id, tokens)
            held[seq_id] = tokens
        else:
            tree.drop(seq_id)
            held.pop(seq_id, None)
    match = tree.longest(wanted)
    best = max((common_length(tokens, wanted) for tokens in held.values()), default=0)

    assert (match.length if match else 0) == best
    if match:
        assert common_length(held[match.seq_id], wanted) == best
    for seq_id, tokens in held.items():
        covered = {other for other, its in held.items() if other != seq_id and tokens[: len(its)] == its}
        assert set(tree.covered(seq_id)) == covered


@given(
    st.lists(
        st.tuples(st.sampled_from(["append", "share", "cut"]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 9))
    )
)
def test_the_ledger_of_cells_agrees_with_counting_them(changes: list[tuple[str, int, int, int]]) -> None:
    cells, held = Cells(10_000), {i: [] for i in range(4)}
    fresh = iter(range(10**9))
    for kind, a, b, size in changes:
        if kind == "append" and size:
            cells.append(a, size)
            held[a] += [next(fresh) for _ in range(size)]
        elif kind == "share" and a != b and not held[b]:
            end = min(size, len(held[a]))
            cells.share(a, b, end)
            held[b] = held[a][:end]
        elif kind == "cut":
            cells.cut(a, size)
            del held[a][size:]

        assert cells.used == len({cell for mine in held.values() for cell in mine})
        assert [cells.length(i) for i in held] == [len(mine) for mine in held.values()]
        assert cells.held_by([0, 1]) == len({*held[0], *held[1]})


@settings(max_examples=40)
@given(
    st.lists(st.tuples(WORDS, st.integers(1, 3), st.booleans(), st.integers(0, 6)), min_size=1, max_size=7),
    st.integers(1, 4),
    st.sampled_from([8, 32, 512]),
    st.booleans(),
)
def test_batched_or_alone_the_answers_are_the_same(
    requests: list[tuple[str, int, bool, int]], n_slots: int, n_batch: int, shares: bool
) -> None:
    asking = echo(n_slots=n_slots, n_batch=n_batch, n_ctx=256, pool=300, shares_prefixes=shares)
    tolds: list[tuple[Told, str, int]] = []
    for text, n, cache, wait in requests:
        tolds.append((asking.submit(chat(text), n=n, cache_prompt=cache), text, n))
        for _ in range(wait):
            asking.engine.step()
    asking.run()

    for told, text, n in tolds:
        told.check_order(n)
        assert [told.text_of(i) for i in range(n)] == [text] * n
        assert told.done.usage.completion_tokens == n * (len(text.split()) + 1)


class Life(RuleBasedStateMachine):
    """Requests come, are cancelled, time passes: the scheduler's promises hold after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.tolds: dict[str, tuple[Told, str]] = {}
        self.forms: dict[str, tuple[Told, int, int]] = {}
        self.cancelled: set[str] = set()

    @initialize(rewinds=st.booleans())
    def begin(self, rewinds: bool) -> None:
        self.asking = hanging_up(shares_prefixes=rewinds, n_slots=3, n_batch=16, n_ctx=120, pool=160, max_queue=4)

    @rule(text=WORDS, cache=st.booleans())
    def come(self, text: str, cache: bool) -> None:
        told = self.asking.submit(chat(text), cache_prompt=cache)
        self.tolds[f"r{self.asking.count}"] = (told, text)

    @rule(size=st.integers(1, 60), n=st.integers(1, 2), cache=st.booleans())
    def come_with_a_form(self, size: int, n: int, cache: bool) -> None:
        """Nearly all of such an answer is forced, and a step may not take it at once."""
        constraint = Constraint(kind="regex", source=f"[ab]x{{{size}}}[ab]")
        sampling = Sampling(seed=1)
        told = self.asking.submit(chat("a"), constraint=constraint, n=n, cache_prompt=cache, sampling=sampling)
        self.forms[f"r{self.asking.count}"] = (told, size, n)

    @precondition(lambda self: self.tolds or self.forms)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted([*self.tolds, *self.forms])))
        self.asking.engine.cancel(request_id)
        self.cancelled.add(request_id)

    @rule(which=st.integers(0, 2))
    def hang_up_in_a_decode(self, which: int) -> None:
        running = self.asking.engine.scheduler.running
        if not running:
            return
        request_id = running[which % len(running)].request_id
        self.asking.backend.during_decode = lambda: self.asking.engine.cancel(request_id)  # type: ignore[attr-defined]
        self.asking.engine.step()
        self.asking.backend.during_decode = None  # type: ignore[attr-defined]
        self.cancelled.add(request_id)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.asking.engine.step()

    @invariant()
    def slots_and_cells_are_never_exceeded(self) -> None:
        scheduler = self.asking.engine.scheduler
        assert len(scheduler.running) <= 3
        assert len({sequence.seq_id for sequence in scheduler.running}) == len(scheduler.running)
        assert scheduler.cells.used <= scheduler.cells.capacity

    @invariant()
    def who_waits_came_later_than_who_never_was_stopped(self) -> None:
        scheduler = self.asking.engine.scheduler
        fresh = [sequence.order for sequence in scheduler.waiting if not sequence.resumed]
        assert fresh == sorted(fresh)
        unserved = [sequence.order for sequence in scheduler.waiting if not sequence.resumed and not sequence.index]
        if unserved:
            assert all(sequence.order < unserved[0] for sequence in scheduler.running)

    def teardown(self) -> None:
        self.asking.run()
        for request_id, (told, text) in self.tolds.items():
            told.check_order()
            last = told.outputs[-1]
            if not isinstance(last, Exception):
                assert told.text == text
            elif isinstance(last, Interrupted):
                assert request_id in self.cancelled
        for request_id, (told, size, n) in self.forms.items():
            told.check_order(n)
            if isinstance(told.outputs[-1], Done):
                assert all(re.fullmatch(f"[ab]x{{{size}}}[ab]", told.text_of(i)) for i in range(n))
            elif isinstance(told.outputs[-1], Interrupted):
                assert request_id in self.cancelled
        scheduler = self.asking.engine.scheduler
        self.asking.engine._do_operations()
        assert scheduler.cells.used == self.asking.backend.cells_used  # type: ignore[attr-defined]


Life.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_requests_come_and_go = Life.TestCase
