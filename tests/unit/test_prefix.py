"""The radix tree of cached tokens, and the ledger of shared cells."""

from __future__ import annotations

from localllm.runtime.engine.cells import Cells
from localllm.runtime.engine.prefix import Match, PrefixTree, common_length


def test_the_longest_common_prefix_and_its_holder_are_found() -> None:
    tree = PrefixTree()
    tree.put(1, [1, 2, 3, 4])
    tree.put(2, [1, 2, 9])

    assert tree.longest([1, 2, 3, 7]) == Match(1, 3)
    assert tree.longest([1, 2, 9, 9]) == Match(2, 3)
    assert tree.longest([5]) is None
    assert tree.longest([]) is None


def test_what_is_dropped_is_not_found_again() -> None:
    tree = PrefixTree()
    tree.put(1, [1, 2, 3])
    tree.put(2, [1, 2, 4])
    tree.drop(1)

    assert tree.longest([1, 2, 3]) == Match(2, 2)
    assert 1 not in tree
    assert len(tree) == 1


def test_putting_a_sequence_again_replaces_what_it_held() -> None:
    tree = PrefixTree()
    tree.put(1, [1, 2])
    tree.put(1, [3, 4, 5])

    assert tree.longest([1, 2]) is None
    assert tree.length(1) == 3


def test_a_sequence_covers_those_that_are_a_prefix_of_it_or_equal() -> None:
    tree = PrefixTree()
    tree.put(1, [1, 2])
    tree.put(2, [1, 2, 3])
    tree.put(3, [1, 2, 3])
    tree.put(4, [1, 5])

    assert sorted(tree.covered(2)) == [1, 3]


def test_common_length_counts_leading_tokens() -> None:
    assert common_length([1, 2, 3], [1, 2, 4]) == 2
    assert common_length([1, 2], [1, 2, 3]) == 2
    assert common_length([], [1]) == 0
    assert common_length([0], [1]) == 0


def test_shared_cells_count_once_and_are_free_when_the_last_holder_goes() -> None:
    cells = Cells(100)
    cells.append(1, 10)
    cells.share(1, 2, 6)
    cells.append(2, 3)

    assert (cells.used, cells.length(1), cells.length(2)) == (13, 10, 9)
    assert cells.held_by([2]) == 9

    cells.cut(1, 0)
    assert cells.used == 9

    cells.cut(2, 4)
    assert (cells.used, cells.length(2)) == (4, 4)

    cells.cut(2, 0)
    assert cells.used == 0
