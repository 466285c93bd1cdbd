"""Which sequence's KV cells begin with given tokens: a radix tree over runs of tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen


@frozen
class Match:
    """`length` tokens are held by sequence `seq_id`."""

    seq_id: int
    length: int


@define(eq=False)
class _Node:
    run: tuple[int, ...]
    above: _Node | None
    below: dict[int, _Node] = field(factory=dict)
    """By the first token of their runs."""
    seq_ids: dict[int, None] = field(factory=dict)
    """Every sequence whose tokens pass through or end here, the latest one last."""


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences have in common."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit  # a[:low] == b[:low], a[:high] != b[:high]: comparing slices beats comparing items
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


@define
class PrefixTree:
    """Tokens of many sequences, merged where they begin alike."""

    _root: _Node = field(factory=lambda: _Node((), None))
    _ends: dict[int, _Node] = field(factory=dict)
    _lengths: dict[int, int] = field(factory=dict)

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._ends

    def length(self, seq_id: int) -> int:
        """How many tokens a sequence was put in with; 0 where it is unknown."""
        return self._lengths.get(seq_id, 0)

    def put(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Say that a sequence holds these tokens, instead of what was said before."""
        self.drop(seq_id)
        node, at, tokens = self._root, 0, tuple(tokens)
        while at < len(tokens):
            child = node.below.get(tokens[at])
            if child is None:
                child = _Node(tokens[at:], node)
                node.below[tokens[at]] = child
            else:
                child = self._split(child, common_length(child.run, tokens[at : at + len(child.run)]))
            child.seq_ids[seq_id] = None
            at += len(child.run)
            node = child
        self._ends[seq_id] = node
        self._lengths[seq_id] = len(tokens)

    def drop(self, seq_id: int) -> None:
        """Forget a sequence."""
        node: _Node | None = self._ends.pop(seq_id, None)
        self._lengths.pop(seq_id, None)
        while node is not None and node.above is not None:
            del node.seq_ids[seq_id]
            if not node.seq_ids:
                del node.above.below[node.run[0]]
            node = node.above

    def tokens(self, seq_id: int) -> list[int]:
        """What a sequence was put in with."""
        runs: list[tuple[int, ...]] = []
        node: _Node | None = self._ends.get(seq_id)
        while node is not None:
            runs.append(node.run)
            node = node.above
        return [token for run in reversed(runs) for token in run]

    def longest(self, tokens: Sequence[int]) -> Match | None:
        """The sequence that begins with most of these tokens; of those that tie the latest, ids from 0 on first."""
        node, at = self._root, 0
        best: _Node | None = None
        while at < len(tokens) and (child := node.below.get(tokens[at])) is not None:
            shared = common_length(child.run, tuple(tokens[at : at + len(child.run)]))
            at, node, best = at + shared, child, child
            if shared < len(child.run):
                break
        if best is None:
            return None
        return Match(next((i for i in reversed(best.seq_ids) if i >= 0), next(reversed(best.seq_ids))), at)

    def held_elsewhere(self, seq_id: int, but: int) -> bool:
        """Whether other sequences hold all of this one's tokens but for fewer than `but` at the end."""
        node, missing = self._ends.get(seq_id), 0
        while node is not None and node.above is not None and len(node.seq_ids) == 1:
            missing += len(node.run)
            node = node.above
        return missing < but

    def covered(self, seq_id: int) -> list[int]:
        """Other sequences that hold nothing which this one does not hold too; an equal one counts."""
        out: list[int] = []
        node: _Node | None = self._ends.get(seq_id)
        while node is not None and node.above is not None:
            out.extend(other for other in node.seq_ids if other != seq_id and self._ends[other] is node)
            node = node.above
        return out

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a node's run in two; returns the upper part."""
        if at == len(node.run):
            return node
        assert node.above is not None
        upper = _Node(node.run[:at], node.above, {node.run[at]: node}, dict(node.seq_ids))
        node.above.below[upper.run[0]] = upper
        node.run, node.above = node.run[at:], upper
        return upper
