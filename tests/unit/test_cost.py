"""The cost model: what a step of n rows takes."""

from __future__ import annotations

import pytest
from localllm.runtime.engine.cost import CostModel


def measured(**seconds: float) -> CostModel:
    cost = CostModel()
    for rows, value in seconds.items():
        cost.observe(int(rows[1:]), value)
    return cost


def test_sizes_between_measured_ones_lie_on_a_line() -> None:
    cost = measured(n4=4.0, n8=8.0)

    assert cost.seconds(6) == 6.0
    assert cost.seconds(4) == 4.0


def test_sizes_beyond_the_measured_ones_go_on_with_the_last_slope() -> None:
    assert measured(n4=4.0, n8=6.0).seconds(16) == 10.0


def test_the_most_rows_within_a_time_are_found_between_bounds() -> None:
    cost = measured(n1=1.0, n64=64.0)

    assert cost.rows_within(20.0, least=4, most=512) == 20
    assert cost.rows_within(0.5, least=4, most=512) == 4
    assert cost.rows_within(1e9, least=4, most=512) == 512


def test_one_step_that_lost_the_processor_moves_it_little() -> None:
    cost = measured(n1=1.0)
    for _ in range(20):
        cost.observe(1, 1.0)
    cost.observe(1, 1000.0)

    assert cost.seconds(1) < 1.2


def test_it_follows_a_machine_that_becomes_slower() -> None:
    cost = measured(n1=1.0)
    for _ in range(100):
        cost.observe(1, 2.0)

    assert 1.9 < cost.seconds(1) <= 2.0


def test_a_step_that_took_no_time_says_nothing() -> None:
    cost = CostModel()
    cost.observe(1, 0.0)
    assert cost.empty

    cost.observe(1, 1.0)
    cost.observe(1, 0.0)
    assert cost.seconds(1) == 1.0


def test_nothing_measured_costs_nothing() -> None:
    assert CostModel().empty
    assert CostModel().seconds(5) == 0.0


def test_a_size_is_believed_as_dear_as_it_was_just_measured() -> None:
    cost = CostModel()
    for _ in range(2):
        for rows, seconds in ((1, 0.010), (2, 0.018), (4, 0.022)):
            cost.observe(rows, seconds)
    for _ in range(8):
        cost.observe(1, 0.010)

    assert cost.seconds(2) == pytest.approx(0.018)
    assert cost.seconds(3) == pytest.approx(0.020)


def test_a_size_that_looked_dear_long_ago_is_believed_no_dearer_than_its_neighbours_say() -> None:
    cost = CostModel.of({1: 0.010, 2: 0.090, 8: 0.045})
    for _ in range(300):
        cost.observe(1, 0.010)
        cost.observe(8, 0.045)

    assert cost.seconds(2) == pytest.approx(0.015)
    assert cost.seconds(4) == pytest.approx(0.025)


def test_a_bad_start_is_not_believed_for_ever_where_it_is_hoped_for_better() -> None:
    cost = CostModel.of({1: 0.010, 2: 0.200, 4: 0.400}, hope=0.4)
    hoped = cost.seconds(2), cost.seconds(4)
    cost.observe(4, 0.030)
    for _ in range(8):
        cost.observe(1, 0.010)

    assert hoped == (pytest.approx(0.014), pytest.approx(0.022))
    assert cost.seconds(4) == pytest.approx(0.030)


def test_more_rows_are_hoped_to_cost_what_fewer_were_just_measured_to() -> None:
    cost = CostModel.of({1: 0.010, 2: 0.200, 4: 0.400, 8: 0.800}, hope=0.7)
    for _ in range(8):
        cost.observe(1, 0.010)
        cost.observe(2, 0.014)

    assert cost.seconds(4) == pytest.approx(0.022)
    assert cost.seconds(8) == pytest.approx(0.038)


def test_a_size_hoped_to_be_free_is_believed_after_one_step_that_was_not() -> None:
    cost = CostModel.of({1: 0.0102, 2: 0.0100, 32: 0.132}, hope=0.7)
    for _ in range(8):
        cost.observe(1, 0.0102)
        cost.observe(2, 0.0100)
    hoped = cost.seconds(32)
    cost.observe(32, 0.132)

    assert hoped < 0.02
    assert cost.seconds(32) == pytest.approx(0.132)


def test_the_first_step_of_a_size_after_long_counts_half() -> None:
    cost = CostModel.of({1: 0.010, 4: 0.020}, hope=0.7)
    cost.observe(4, 0.020)
    for _ in range(300):
        cost.observe(1, 0.010)
    cost.observe(4, 0.060)

    assert cost.seconds(4) == pytest.approx(0.040)


def test_fewer_rows_are_never_believed_dearer_than_more() -> None:
    cost = CostModel()
    for rows, seconds in ((1, 0.050), (4, 0.020)):
        cost.observe(rows, seconds)

    assert cost.seconds(1) <= cost.seconds(4)
