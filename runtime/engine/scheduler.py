"""Who gets which rows of the next step. Pure: no clock, no I/O; KV work is told as data and done by the engine."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

from attrs import define, field, frozen

from .cells import Cells
from .cost import CostModel
from .prefix import PrefixTree, common_length
from .sequence import Sequence
from .speculation import Speculator

LEAST_SHARED = 16
"""Fewer tokens than this are sooner computed than kept, waited for, or brought back into the pool."""
LEAST_COPIED = 4
"""Fewer tokens than this are sooner computed than taken over from cells of the pool."""
LEAST_CHUNK = 16
"""Rows of prefill a step does at least; smaller chunks would waste the weights they pull through the caches."""
FEW_FORCED = 64
"""Uncomputed tokens up to which an answer that already runs counts as running on, not as resuming."""


@frozen(kw_only=True)
class Limits:
    """What the backend can hold, and how long one step may take."""

    n_slots: int
    n_sequences: int
    n_cells: int
    n_batch: int
    n_outputs: int
    shares_prefixes: bool = True
    rewinds: bool = True
    max_queue: int = 64
    gap_s: float = 0.08
    """How long a step may take while answers run: their longest gap between two tokens."""
    quiet_s: float = 0.5
    """How long a step may take while none runs: how late a newcomer or a cancellation is seen."""
    idle_cells: int | None = None
    """Cells that idle prefixes may keep; None is three quarters of the pool.

    Where attention passes every cell of the pool, as it does on the CPU, each idle one slows each step.
    """
    parked_cells: int = 0
    """Cells' worth of idle prefixes that may lie in the machine's memory, outside the pool."""
    fixed_chunk: bool = False
    """Always the same chunk of prefill, whatever was measured: repeatable steps."""


@frozen
class Share:
    """One sequence's rows of a step: its tokens from `start`, then `draft`; the last `n_outputs` get logits."""

    sequence: Sequence
    start: int
    tokens: list[int]
    draft: list[int]
    n_outputs: int

    @property
    def count(self) -> int:
        """Rows of the step."""
        return len(self.tokens) + len(self.draft)


@frozen
class Copy:
    """Hand the first `end` cells of a sequence to an empty one."""

    source: int
    target: int
    end: int


@frozen
class Remove:
    """Drop a sequence's cells from a position on."""

    seq_id: int
    start: int


@frozen
class Park:
    """Copy a sequence's cells out of the pool, under a key."""

    seq_id: int
    key: int


@frozen
class Restore:
    """Copy parked cells into an empty sequence, and keep the first `end` of them there."""

    key: int
    target: int
    end: int


@frozen
class Discard:
    """Forget parked cells."""

    key: int


Operation = Copy | Remove | Park | Restore | Discard


@define
class Scheduler:
    """The waiting line, the running sequences, and the prefixes that ended ones left behind.

    First come, first admitted, but a request with fewer answers running comes before one with more. A step serves every
    answer that runs one row at least, and gives prefill what is left of its time.
    """

    limits: Limits
    cost: CostModel = field(factory=CostModel)
    speculator: Speculator | None = None
    waiting: deque[Sequence] = field(factory=deque)
    running: list[Sequence] = field(factory=list)
    operations: list[Operation] = field(factory=list)
    """KV work that must be done before the next decode, in order."""
    cells: Cells = field(init=False)
    evictions: int = 0
    preemptions: int = 0
    _tree: PrefixTree = field(factory=PrefixTree)
    _idle: OrderedDict[int, None] = field(factory=OrderedDict)
    """Sequences kept for their prefixes, the least recently used first."""
    _parked: OrderedDict[int, int] = field(factory=OrderedDict)
    """How many cells lie outside the pool by key, the least recently used first; keys are below 0, unlike sequences."""
    _keys: int = 0
    _free: list[int] = field(init=False)
    _leaders: dict[Sequence, tuple[Sequence, int]] = field(factory=dict)
    """Who waits for whom to have computed how many tokens that both begin with."""
    _arrivals: int = 0

    def __attrs_post_init__(self) -> None:
        self.cells = Cells(self.limits.n_cells)
        self._free = list(range(self.limits.n_sequences))

    @property
    def full(self) -> bool:
        """Whether the waiting line takes no more."""
        return len(self.waiting) >= self.limits.max_queue

    @property
    def idle_cells(self) -> int:
        """Cells that no running sequence needs."""
        return self.cells.used - self.cells.held_by(sequence.seq_id for sequence in self.running)

    @property
    def parked_cells(self) -> int:
        """Cells' worth of prefixes that lie outside the pool."""
        return sum(self._parked.values())

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the line."""
        self._arrivals += 1
        sequence.order = self._arrivals
        self.waiting.append(sequence)

    def schedule(self) -> list[Share]:
        """The shares of the next step, and the `operations` to do first."""
        self._admit()
        ready = [sequence for sequence in self.running if not self._follows(sequence)]
        answering = [sequence for sequence in ready if self._answers(sequence)]
        prompts = [sequence for sequence in ready if not self._answers(sequence)]
        self._draft(answering, prompts)
        shares = self._run_on(answering, beside_prompts=bool(prompts))
        shares += self._prefill(prompts, shares)
        return self._within_cells(shares)

    def commit(self, share: Share, kept: list[int]) -> None:
        """Note what a step computed, and which tokens were sampled from it: of the draft those that agree, one more."""
        sequence = share.sequence
        agreed = common_length(share.draft, kept)
        sequence.computed = share.start + len(share.tokens) + agreed
        self.cells.append(sequence.seq_id, share.count)
        if agreed < len(share.draft):
            self._remove(sequence.seq_id, sequence.computed)
        if self.speculator is not None and share.n_outputs:
            self.speculator.learn(sequence, kept)
        if sequence.share and self._tree.length(sequence.seq_id) < sequence.n_prompt:
            self._tree.put(sequence.seq_id, sequence.tokens[: min(sequence.computed, sequence.n_prompt)])
        sequence.tokens.extend(kept)
        sequence.draft = []

    def observe(self, shares: list[Share], seconds: float) -> None:
        """A step took so long. A row of prefill is cheaper than one that brings logits, as a guess does."""
        rows, outputs = sum(share.count for share in shares), sum(share.n_outputs for share in shares)
        self.cost.observe(rows, seconds)
        if self.speculator is not None and rows == outputs:
            self.speculator.cost.observe(rows, seconds)

    def release(self, sequence: Sequence) -> None:
        """Let go of a sequence that ended or was cancelled, in whichever phase it is; its prefix may stay."""
        if self.speculator is not None:
            self.speculator.forget(sequence, remember=sequence.share)
        self._leaders.pop(sequence, None)
        if sequence in self.running:
            self._stop(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def make_room(self) -> bool:
        """After a decode found no cells: drop an idle prefix, or stop the sequence that came last for a while."""
        if self._evict():
            return True
        if len(self.running) < 2:
            return False
        sequence = max(self.running, key=lambda sequence: sequence.order)
        self.preemptions += 1
        self._leaders.pop(sequence, None)
        self._stop(sequence)
        sequence.computed, sequence.draft, sequence.resumed = 0, [], True
        self.waiting.appendleft(sequence)
        self._evict()
        return True

    def undo(self, shares: list[Share]) -> None:
        """After a decode that did not count: drop what it may have written."""
        for share in shares:
            sequence = share.sequence
            sequence.draft = []
            if sequence.seq_id >= 0:
                if not self.limits.rewinds:
                    sequence.computed = 0
                self._remove(sequence.seq_id, sequence.computed)

    # -- admission -----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.limits.n_slots:
            sequence = self._next_in_line()
            if not self._has_room(sequence):
                return
            self.waiting.remove(sequence)
            if sequence.repeatable and not self.running:
                self._clear_pool()
            sequence.seq_id = self._take_id()
            self.running.append(sequence)
            self._find_prefix(sequence)

    def _next_in_line(self) -> Sequence:
        """Whoever was stopped for a while; else of the requests with the fewest answers running the first."""
        if self.waiting[0].resumed:
            return self.waiting[0]
        running = Counter(sequence.request_id for sequence in self.running)
        return min(self.waiting, key=lambda sequence: running[sequence.request_id])

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether it fits beside those that run, were every other idle prefix dropped; alone everybody fits."""
        if not self.running:
            return True
        match = self._match(sequence)
        source, shared = match if match is not None else (-1, 0)
        if source in self._parked:
            shared -= self._parked[source]  # all of it comes back, and what is too much is cut off then
        held = self.cells.held_by([source, *(other.seq_id for other in self.running)])
        promised = sum(other.uncomputed + LEAST_CHUNK for other in self.running)
        return held + promised + sequence.uncomputed - shared + LEAST_CHUNK <= self.limits.n_cells

    def _take_id(self) -> int:
        if not self._free:
            self._evict()
        return self._free.pop(0)

    def _match(self, sequence: Sequence) -> tuple[int, int] | None:
        """Whose cells the sequence could begin with, and how many; the last token is always computed anew."""
        if not (sequence.share and self.limits.shares_prefixes):
            return None
        match = self._tree.longest(sequence.tokens[:-1])
        if match is None or match.length < (LEAST_SHARED if match.seq_id in self._parked else LEAST_COPIED):
            return None
        return match.seq_id, match.length

    def _find_prefix(self, sequence: Sequence) -> None:
        """Take over what is computed already, or wait for a running prompt that begins with more of the same."""
        match = self._match(sequence)
        have = match[1] if match else 0
        leader, common = self._best_leader(sequence)
        if leader is not None and common >= max(have, leader.computed) + LEAST_SHARED:
            self._leaders[sequence] = (leader, common)
        elif match is not None:
            self._take_over(sequence, *match)

    def _best_leader(self, sequence: Sequence) -> tuple[Sequence | None, int]:
        """The running prompt that begins with most of the same, of those that are not computed yet."""
        best: tuple[Sequence | None, int] = (None, 0)
        if sequence.share and self.limits.shares_prefixes:
            for other in self.running:
                if other is not sequence and other.share and other.computed < other.n_prompt:
                    common = common_length(sequence.tokens[:-1], other.tokens[: other.n_prompt])
                    best = (other, common) if common > best[1] else best
        return best

    def _take_over(self, sequence: Sequence, source: int, length: int) -> None:
        if source in self._parked:
            self.operations.append(Restore(source, sequence.seq_id, length))
            self.cells.append(sequence.seq_id, length)
            self._parked.move_to_end(source)
        else:
            self.operations.append(Copy(source, sequence.seq_id, length))
            self.cells.share(source, sequence.seq_id, length)
        sequence.computed = length
        if not sequence.resumed:
            sequence.cached = min(length, sequence.n_prompt)  # forced tokens of the answer may be there too
        if source in self._idle:
            self._idle.move_to_end(source)

    def _follows(self, sequence: Sequence) -> bool:
        """Whether it still waits for a leader; takes over the prefix once that is there."""
        if sequence not in self._leaders:
            return False
        leader, common = self._leaders[sequence]
        if leader.seq_id >= 0 and leader in self.running and leader.computed < common:
            return True
        del self._leaders[sequence]
        self._find_prefix(sequence)
        return sequence in self._leaders

    # -- the step ------------------------------------------------------------------------------------------------

    @staticmethod
    def _answers(sequence: Sequence) -> bool:
        """Whether its answer runs on with this step, rather than its prompt being computed."""
        return sequence.uncomputed == 1 or (sequence.n_answer > 0 and sequence.uncomputed <= FEW_FORCED)

    def _draft(self, answering: list[Sequence], prompts: list[Sequence]) -> None:
        if self.speculator is None or not self.limits.rewinds:
            return
        able = [sequence for sequence in answering if sequence.uncomputed == 1]
        room = min(self.limits.n_outputs, self.limits.n_batch) - len(answering)
        room = min(room, self.cells.free + self.idle_cells - len(answering))
        # beside prompts a row more is a row less for them, and guesses are worth less than that
        self.speculator.propose(able, 0 if prompts else max(room, 0))

    def _share(self, sequence: Sequence, count: int) -> Share:
        start = sequence.computed
        tokens = sequence.tokens[start : start + count]
        complete = start + count == len(sequence.tokens)
        draft = list(sequence.draft) if complete else []
        return Share(sequence, start, tokens, draft, 1 + len(draft) if complete else 0)

    def _run_on(self, answering: list[Sequence], *, beside_prompts: bool) -> list[Share]:
        """Each answer's rows, as far as they go; whom a step has no row left for comes first in the next one."""
        rows, outputs = self.limits.n_batch, self.limits.n_outputs
        if beside_prompts:  # answers alone never fill a step that prompts wait for
            rows, outputs = rows - min(LEAST_CHUNK, rows // 2), max(outputs - 1, 1)
        shares: list[Share] = []
        passed_over: list[Sequence] = []
        for sequence in answering:
            share = self._share(sequence, min(sequence.uncomputed, rows))
            if share.count > rows or share.n_outputs > outputs:
                sequence.draft = []
                share = self._share(sequence, min(sequence.uncomputed, rows))
            if not share.count or share.n_outputs > outputs:
                passed_over.append(sequence)
                continue
            shares.append(share)
            rows, outputs = rows - share.count, outputs - share.n_outputs
        if passed_over:
            self.running = passed_over + [sequence for sequence in self.running if sequence not in passed_over]
        return shares

    def _prefill(self, prompts: list[Sequence], others: list[Share]) -> list[Share]:
        """Chunks of prompts: half the rows to who came first, so that all get on; the rest to who needs least."""
        if not prompts:
            return []
        busy = sum(share.count for share in others)
        repeatable = all(sequence.repeatable for sequence in prompts)
        rows = self._budget(busy, fixed=self.limits.fixed_chunk or (repeatable and not busy)) - busy
        outputs = self.limits.n_outputs - sum(share.n_outputs for share in others)
        first = min(prompts, key=lambda sequence: sequence.order)
        counts = dict.fromkeys(prompts, 0)
        counts[first] = min(first.uncomputed, (rows + 1) // 2)
        rows -= counts[first]
        for sequence in sorted(prompts, key=lambda sequence: sequence.uncomputed):
            more = min(sequence.uncomputed - counts[sequence], rows)
            counts[sequence] += more
            rows -= more
        chunks = [self._share(sequence, count) for sequence, count in counts.items() if count]
        last = [chunk for chunk in chunks if chunk.n_outputs][max(outputs, 0) :]
        return [chunk for chunk in chunks if chunk not in last]

    def _budget(self, busy: int, *, fixed: bool) -> int:
        """Rows of a step in which `busy` rows belong to running answers."""
        limits = self.limits
        if fixed:
            return limits.n_batch
        if not busy:
            return self.cost.rows_within(limits.quiet_s, least=min(64, limits.n_batch), most=limits.n_batch)
        gap = max(limits.gap_s, 3 * self.cost.seconds(busy))
        return self.cost.rows_within(gap, least=min(busy + LEAST_CHUNK, limits.n_batch), most=limits.n_batch)

    def _within_cells(self, shares: list[Share]) -> list[Share]:
        while sum(share.count for share in shares) > self.cells.free and self.make_room():
            shares = [share for share in shares if share.sequence.seq_id >= 0]
        return shares

    # -- cells ---------------------------------------------------------------------------------------------------

    def _stop(self, sequence: Sequence) -> None:
        """Take a sequence off the running ones; keep its cells as an idle prefix where that may be of use."""
        self.running.remove(sequence)
        seq_id, sequence.seq_id = sequence.seq_id, -1
        keep = sequence.share and self.limits.shares_prefixes and sequence.computed >= LEAST_SHARED
        if not keep:
            self._forget(seq_id)
            return
        self._tree.put(seq_id, sequence.tokens[: sequence.computed])
        self._idle[seq_id] = None
        for other in self._tree.covered(seq_id):
            if other in self._idle:
                self._forget(other)
            elif other in self._parked:
                self._discard(other)
        most = self.limits.idle_cells if self.limits.idle_cells is not None else self.limits.n_cells * 3 // 4
        while self.idle_cells > most and self._park():
            pass

    def _park(self) -> bool:
        """Move the idle prefix that was not used for longest out of the pool, or drop it where that is not worth it.

        The only one stays where it is too large to be parked: a long conversation is dear to compute again.
        """
        if not self._idle:
            return False
        seq_id = next(iter(self._idle))
        size = self._tree.length(seq_id)
        if size > self.limits.parked_cells > 0 and len(self._idle) == 1:
            return False
        if size <= self.limits.parked_cells and not self._tree.held_elsewhere(seq_id, LEAST_SHARED):
            self._keys -= 1
            self.operations.append(Park(seq_id, self._keys))
            self._tree.put(self._keys, self._tree.tokens(seq_id))
            self._parked[self._keys] = size
            while self.parked_cells > self.limits.parked_cells:
                self._discard(next(iter(self._parked)))
        return self._evict()

    def not_restored(self, operation: Restore) -> None:
        """A sequence could not be given its parked cells: it computes its tokens after all."""
        self._discard(operation.key)
        for sequence in self.running:
            if sequence.seq_id == operation.target:
                sequence.computed = sequence.cached = 0
                sequence.draft = []
                self._remove(sequence.seq_id, 0)

    def _discard(self, key: int) -> None:
        del self._parked[key]
        self._tree.drop(key)
        self.operations.append(Discard(key))

    def _clear_pool(self) -> None:
        """Leave no idle prefix in the pool: which cells a sequence gets decides how sums over them round."""
        while self._idle:
            if not self._park():
                self._evict()

    def _evict(self) -> bool:
        """Drop the idle prefix that was not used for longest."""
        if not self._idle:
            return False
        self.evictions += 1
        self._forget(next(iter(self._idle)))
        return True

    def _forget(self, seq_id: int) -> None:
        self._idle.pop(seq_id, None)
        self._tree.drop(seq_id)
        self._remove(seq_id, 0)
        self._free.append(seq_id)

    def _remove(self, seq_id: int, start: int) -> None:
        self.operations.append(Remove(seq_id, start))
        self.cells.cut(seq_id, start)
