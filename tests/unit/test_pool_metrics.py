from __future__ import annotations

import pytest
from localllm.runtime.metrics import Histogram, RequestMetrics
from localllm.runtime.types import Done, Finished, Piece, Started, Timings, Usage


def test_a_histogram_is_cumulative_and_its_bounds_are_inclusive() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 99.0):
        histogram.add(value)

    assert histogram.as_dict() == {"buckets": [[1.0, 2], [2.0, 3]], "count": 4, "sum": 102.0}


def test_a_request_is_measured_from_its_sending_to_its_end() -> None:
    metrics = RequestMetrics()
    meter = metrics.begin(100.0)
    meter.saw(Started(prompt_tokens=5, model_id="m"), 100.25)
    for second in (101.0, 101.5, 103.5):
        meter.saw(Piece(index=0, text="x"), second)
    meter.saw(Finished(index=0, reason="stop"), 103.5)
    usage = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2)
    meter.saw(Done(usage=usage, timings=Timings(queue_s=0.5, time_to_first_token_s=1.0)), 104.0)
    meter.end()
    told = metrics.as_dict()

    assert (told["time_to_first_token_s"]["count"], told["time_to_first_token_s"]["sum"]) == (1, 1.0)
    assert (told["inter_token_s"]["count"], told["inter_token_s"]["sum"]) == (2, 2.5)
    assert (told["queue_s"]["sum"], told["request_s"]["sum"]) == (0.5, 4.0)
    assert (told["prompt_tokens_total"], told["completion_tokens_total"], told["cached_tokens_total"]) == (5, 3, 2)
    assert (told["requests_total"], told["requests_done_total"], told["requests_failed_total"]) == (1, 1, 0)


def test_tokens_that_come_in_one_piece_share_the_time_since_the_last() -> None:
    metrics = RequestMetrics()
    meter = metrics.begin(0.0)
    for second, tokens in ((1.0, 2), (1.5, 1), (3.5, 4), (9.0, 0)):
        meter.saw(Piece(index=0, text="x", tokens=tokens), second)
    told = metrics.inter_token_s.as_dict()

    assert (told["count"], told["sum"]) == (5, 2.5)
    assert told["buckets"][-2:] == [[1.0, 5], [5.0, 5]]


def test_an_answer_that_is_read_whole_has_no_gaps() -> None:
    metrics = RequestMetrics()
    meter = metrics.begin(0.0)
    meter.saw(Piece(index=0, text="all of it", tokens=9), 3.0)
    meter.saw(Done(usage=Usage(), timings=Timings(time_to_first_token_s=0.5)), 3.0)

    assert metrics.inter_token_s.as_dict()["count"] == 0
    assert metrics.time_to_first_token_s.as_dict()["sum"] == 0.5


def test_two_answers_of_one_request_have_gaps_of_their_own() -> None:
    metrics = RequestMetrics()
    meter = metrics.begin(0.0)
    for index, second in ((0, 1.0), (1, 1.5), (0, 2.0), (1, 2.5)):
        meter.saw(Piece(index=index, text="x"), second)

    assert metrics.inter_token_s.as_dict()["sum"] == pytest.approx(2.0)


def test_a_request_that_ends_without_done_counts_as_failed() -> None:
    metrics = RequestMetrics()
    metrics.begin(0.0).end()

    assert metrics.requests_failed_total == 1
    assert metrics.requests_done_total == 0
