"""Who gets which rows of the next step. Pure: no clock, no I/O; KV work is told as data and done by the engine."""

from __future__ import annotations

from collections import deque

from attrs import define, field, frozen

from .sequence import Sequence


@frozen(kw_only=True)
class Limits:
    """What the backend can hold and how much one step may do."""

    n_slots: int
    n_cells: int
    n_batch: int
    n_outputs: int
    max_queue: int = 64


@frozen
class Share:
    """One sequence's rows of a step: `count` tokens from `start`, the last `n_outputs` of them with logits."""

    sequence: Sequence
    start: int
    count: int
    n_outputs: int

    @property
    def tokens(self) -> list[int]:
        """The tokens to compute: the sequence's own, then its draft."""
        own = self.sequence.tokens[self.start : self.start + self.count]
        return own + self.sequence.draft[: self.count - len(own)]


@frozen
class Remove:
    """Drop a sequence's cells from a position on."""

    seq_id: int
    start: int


@define
class Scheduler:
    """The waiting line and the running sequences. First come, first admitted; a step serves all who run."""

    limits: Limits
    waiting: deque[Sequence] = field(factory=deque)
    running: list[Sequence] = field(factory=list)
    operations: list[Remove] = field(factory=list)
    """KV work that must be done before the next decode, in order."""
    _arrivals: int = 0

    @property
    def full(self) -> bool:
        """Whether the waiting line takes no more."""
        return len(self.waiting) >= self.limits.max_queue

    @property
    def idle(self) -> bool:
        """Whether there is nothing to schedule."""
        return not (self.waiting or self.running)

    @property
    def cells_used(self) -> int:
        """KV cells that running sequences hold."""
        return sum(sequence.computed for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the line."""
        self._arrivals += 1
        sequence.order = self._arrivals
        self.waiting.append(sequence)

    def schedule(self) -> list[Share]:
        """The shares of the next step, and the `operations` to do first."""
        self._admit()
        shares, rows = [], 0
        for sequence in self.running:
            if sequence.decoding:
                shares.append(Share(sequence, sequence.computed, 1, 1))
                rows += 1
        budget = self.limits.n_batch - rows
        for sequence in self.running:
            if not sequence.decoding and budget > 0:
                count = min(sequence.uncomputed, budget)
                last = count == sequence.uncomputed
                shares.append(Share(sequence, sequence.computed, count, int(last)))
                budget -= count
        return self._that_fit(shares)

    def commit(self, share: Share, kept: list[int]) -> None:
        """Note what a step computed and which tokens were sampled from it."""
        sequence = share.sequence
        sequence.computed = share.start + share.count
        sequence.tokens.extend(kept)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended or was cancelled, in whichever phase it is."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.operations.append(Remove(sequence.seq_id, 0))
            sequence.seq_id = -1
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def make_room(self) -> bool:
        """After a decode found no cells: stop the sequence that came last; it resumes when there is room."""
        if len(self.running) < 2:
            return False
        self._preempt(max(self.running, key=lambda sequence: sequence.order))
        return True

    def undo(self, shares: list[Share]) -> None:
        """After a decode that did not count: drop what it may have written."""
        for share in shares:
            if share.sequence.seq_id >= 0:
                self.operations.append(Remove(share.sequence.seq_id, share.start))

    def _admit(self) -> None:
        taken = {sequence.seq_id for sequence in self.running}
        free = [seq_id for seq_id in range(self.limits.n_slots) if seq_id not in taken]
        room = self.limits.n_cells - sum(len(sequence.tokens) for sequence in self.running)
        while self.waiting and free and len(self.waiting[0].tokens) <= room:
            sequence = self.waiting.popleft()
            sequence.seq_id, sequence.admitted = free.pop(0), True
            self.running.append(sequence)
            room -= len(sequence.tokens)

    def _that_fit(self, shares: list[Share]) -> list[Share]:
        while sum(share.count for share in shares) > self.limits.n_cells - self.cells_used and self.make_room():
            shares = [share for share in shares if share.sequence.seq_id >= 0]
        return shares

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.operations.append(Remove(sequence.seq_id, 0))
        sequence.seq_id, sequence.computed, sequence.draft = -1, 0, []
        self.waiting.appendleft(sequence)
