"""How many KV cells are in use, where sequences share the cells of a common prefix. Pure.

Cells form a tree, since a sequence can only be handed the first part of another: each node is a run of cells, each
sequence ends in one node and holds all runs above it. A run is free when nobody ends in it or below.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field


@define(eq=False)
class _Run:
    start: int
    end: int
    above: _Run | None
    holders: int = 0
    """Sequences that end here, and runs that hang here."""


@define
class Cells:
    """The ledger of one pool."""

    capacity: int
    used: int = 0
    _last: dict[int, _Run] = field(factory=dict)

    @property
    def free(self) -> int:
        """Cells that nobody holds."""
        return self.capacity - self.used

    def length(self, seq_id: int) -> int:
        """Cells that a sequence holds, shared ones included."""
        return self._last[seq_id].end if seq_id in self._last else 0

    def held_by(self, seq_ids: Iterable[int]) -> int:
        """Cells that at least one of these sequences holds."""
        seen: set[int] = set()
        total = 0
        for seq_id in seq_ids:
            run = self._last.get(seq_id)
            while run is not None and id(run) not in seen:
                seen.add(id(run))
                total += run.end - run.start
                run = run.above
        return total

    def append(self, seq_id: int, count: int) -> None:
        """A sequence got new cells of its own."""
        run = self._last.get(seq_id)
        if run is None or run.holders > 1:
            start = run.end if run is not None else 0
            self._move(seq_id, _Run(start, start, run))
            run = self._last[seq_id]
        run.end += count
        self.used += count

    def share(self, source: int, target: int, end: int) -> None:
        """An empty sequence was handed the first `end` cells of another."""
        if end:
            self._move(target, self._cut_at(self._last[source], end))

    def cut(self, seq_id: int, start: int) -> None:
        """A sequence lost its cells from a position on."""
        run = self._last.get(seq_id)
        if run is not None and start < run.end:
            self._move(seq_id, self._cut_at(run, start) if start else None)

    def _cut_at(self, run: _Run, end: int) -> _Run:
        """The run on the path to `run` that ends at `end`; splits one where it must."""
        while run.start >= end:
            assert run.above is not None
            run = run.above
        if run.end > end:
            upper = _Run(run.start, end, run.above, holders=1)
            run.start, run.above = end, upper
            return upper
        return run

    def _move(self, seq_id: int, run: _Run | None) -> None:
        old = self._last.pop(seq_id, None)
        if run is not None:
            if run.end == run.start and run.above is not None:
                run.above.holders += 1
            run.holders += 1
            self._last[seq_id] = run
        while old is not None:
            old.holders -= 1
            if old.holders:
                break
            self.used -= old.end - old.start
            old = old.above
