"""What the pool counts about a model's requests, in the form Prometheus wants: counters and cumulative histograms."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from attrs import define, field

from .types import Done, Output, Piece

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@define
class Histogram:
    """Counts by upper bound, with their sum; memory does not grow."""

    bounds: tuple[float, ...] = _SECONDS
    _counts: list[int] = field(init=False)
    _sum: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float, times: int = 1) -> None:
        """Count one value, `times` times; a bound is inclusive."""
        self._counts[bisect_left(self.bounds, value)] += times
        self._sum += value * times

    def as_dict(self) -> dict[str, Any]:
        """`buckets` as `[upper bound, values up to it]` without the infinite one, `count` and `sum`."""
        total = 0
        buckets: list[list[float]] = []
        for bound, count in zip(self.bounds, self._counts, strict=False):
            total += count
            buckets.append([bound, total])
        return {"buckets": buckets, "count": total + self._counts[-1], "sum": self._sum}


@define
class RequestMetrics:
    """One model's requests since it was first loaded; a restart of its worker does not reset them."""

    requests_total: int = 0
    requests_done_total: int = 0
    requests_failed_total: int = 0
    """Ended by an error or cancelled by their caller."""
    prompt_tokens_total: int = 0
    completion_tokens_total: int = 0
    cached_tokens_total: int = 0
    worker_deaths_total: int = 0
    time_to_first_token_s: Histogram = field(factory=Histogram)
    inter_token_s: Histogram = field(factory=lambda: Histogram(_GAPS))
    """Time between two tokens of one answer, as the pool got them: those of one piece share the time since the last.

    An answer that is read whole comes in one piece, and so adds nothing.
    """
    queue_s: Histogram = field(factory=Histogram)
    request_s: Histogram = field(factory=Histogram)

    def begin(self, now: float) -> RequestMeter:
        """A request was sent to the worker."""
        self.requests_total += 1
        return RequestMeter(self, now)

    def as_dict(self) -> dict[str, Any]:
        """The counters under their names, the histograms as `Histogram.as_dict`."""
        return {
            name: value.as_dict() if isinstance(value := getattr(self, name), Histogram) else value for name in _NAMES
        }


@define
class RequestMeter:
    """Follows one request; `end` must be called exactly once."""

    _metrics: RequestMetrics
    _began: float
    _last: dict[int, float] = field(factory=dict, init=False)
    _done: bool = field(default=False, init=False)

    def saw(self, output: Output, now: float) -> None:
        """The request brought an output."""
        metrics = self._metrics
        if type(output) is Piece:
            before, tokens = self._last.get(output.index), output.tokens
            if before is not None and tokens:  # a piece without any is text that was held back
                metrics.inter_token_s.add((now - before) / tokens, tokens)
            self._last[output.index] = now
        elif type(output) is Done:
            self._done = True
            usage = output.usage
            metrics.prompt_tokens_total += usage.prompt_tokens
            metrics.completion_tokens_total += usage.completion_tokens
            metrics.cached_tokens_total += usage.cached_tokens
            metrics.queue_s.add(output.timings.queue_s)
            # the engine's word: an answer that is read whole shows its first token late
            metrics.time_to_first_token_s.add(output.timings.time_to_first_token_s)
            metrics.request_s.add(now - self._began)

    def end(self) -> None:
        """Nothing more comes; without a `Done` before, the request counts as failed."""
        if self._done:
            self._metrics.requests_done_total += 1
        else:
            self._metrics.requests_failed_total += 1


_NAMES = tuple(name for name in RequestMetrics.__annotations__)
