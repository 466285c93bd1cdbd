"""What a step costs by its number of rows, learned from the steps that were done. Pure: times are handed in."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Self

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Mapping

ANCHORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
_WEIGHT = 0.08
"""Of a new measurement: steps are many and noisy, and a machine's speed drifts slowly."""
_STALE_WEIGHT = 0.5
"""Of the first one after long, where more than one was there before."""
_OUTLIER = 3.0
_LEARN_EVERY = 8
_FRESH = 256
"""Steps for which a mean is believed as it stands; after that it may be stale."""


@define
class CostModel:
    """Seconds of a step with n rows: a moving mean at some sizes, and lines between them.

    A mean that was not renewed for long is believed only where it lies on the lower convex hull of all: above, it may
    be of a moment when the machine was busy. So a size that looked dear once is tried again, and its mean mends; and
    one that is dear in truth, as a second row is that makes products of matrices out of those with a vector, is tried
    no more often than that.
    """

    hope: float | None = None
    """What another row costs at most, as a share of the smallest step, where no recent mean says what rows cost.

    It is for whom chooses sizes by what they cost: without it, sizes that all looked dear at the start stay so.
    """
    _seconds: dict[int, float] = field(factory=dict)
    _known: list[int] = field(factory=list)
    """Sizes whose means are believed, ascending."""
    _costs: list[float] = field(factory=list)
    """What they are believed to take, ascending as well: fewer rows never cost more."""
    _seen: dict[int, int] = field(factory=dict)
    _last: dict[int, int] = field(factory=dict)
    """Which observation renewed a mean last."""
    _observed: int = 0

    @classmethod
    def of(cls, seconds: Mapping[int, float], hope: float | None = None) -> Self:
        """What is believed after one step of each of these sizes."""
        model = cls(hope)
        for rows, value in seconds.items():
            model.observe(rows, value)
        return model

    @property
    def empty(self) -> bool:
        """Whether nothing was measured yet."""
        return not self._known

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if seconds <= 0:
            return  # the clock is too coarse to tell
        anchor = ANCHORS[min(bisect_left(ANCHORS, rows), len(ANCHORS) - 1)]
        if anchor != rows:  # bring the time to the anchor along the line that is believed
            guess = self.seconds(rows)
            seconds *= self.seconds(anchor) / guess if guess else anchor / rows
        before = self._seconds.get(anchor)
        stale = before is None or not self._is_fresh(anchor)
        if before is None:
            self._seconds[anchor] = seconds
        else:
            # a step that lost the CPU for a while says nothing about its size
            seconds = min(seconds, before * _OUTLIER)
            seen = self._seen[anchor]
            again = stale and self.hope is not None  # and what was believed may be of another time
            weight = max(_STALE_WEIGHT, 1 / seen) if again else max(_WEIGHT, 1 / (seen + 1))
            self._seconds[anchor] = before + weight * (seconds - before)
        self._seen[anchor] = self._seen.get(anchor, 0) + 1
        self._observed += 1
        self._last[anchor] = self._observed
        if stale or self._observed % _LEARN_EVERY == 0:
            self._learn()

    def seconds(self, rows: int) -> float:
        """Expected seconds of a step with `rows` rows; 0 while nothing is known."""
        known, costs = self._known, self._costs
        if not known or rows <= 0:
            return 0.0
        i = bisect_left(known, rows)
        if i < len(known) and known[i] == rows:
            return costs[i]
        if i == 0:
            # fewer rows than ever measured: no cheaper than a share of it, no dearer than all of it
            return costs[0] * (0.3 + 0.7 * rows / known[0])
        if i == len(known):
            return costs[-1] + self._last_slope() * (rows - known[-1])
        part = (rows - known[i - 1]) / (known[i] - known[i - 1])
        return costs[i - 1] + part * (costs[i] - costs[i - 1])

    def rows_within(self, seconds: float, *, least: int, most: int) -> int:
        """The most rows whose step is expected to take no longer than `seconds`, within bounds."""
        if self.empty:
            return max(least, min(most, 32))
        low, high = least, max(least, most)
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds(middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low

    def _learn(self) -> None:
        means = {size: self._bounded(size) for size in sorted(self._seconds)}
        self._known = sorted({size for size in means if self._is_fresh(size)}.union(_hull(means)))
        least_above = accumulate((means[size] for size in reversed(self._known)), min)
        self._costs = list(least_above)[::-1]

    def _is_fresh(self, size: int) -> bool:
        return self._seen[size] > 1 and self._observed - self._last[size] < _FRESH

    def _bounded(self, size: int) -> float:
        """A mean, or where it is stale and hoped to be less: as if rows went on costing what fewer of them cost."""
        least = min(self._seconds)
        if self.hope is None or size == least or self._is_fresh(size):
            return self._seconds[size]
        base = max((each for each in self._seconds if least < each < size and self._is_fresh(each)), default=least)
        start, first = self._seconds[base], self._seconds[least]
        slope = self.hope * first if base == least else max((start - first) / (base - least), 0.0)
        return min(self._seconds[size], start + slope * (size - base))

    def _last_slope(self) -> float:
        """Seconds a row beyond the largest size measured."""
        if len(self._known) == 1:
            return 0.4 * self._costs[0] / self._known[0]
        return (self._costs[-1] - self._costs[-2]) / (self._known[-1] - self._known[-2])


def _hull(means: Mapping[int, float]) -> list[int]:
    """The sizes on the lower convex hull; `means` ascends by size."""
    hull: list[int] = []

    def rise(low: int, high: int) -> float:
        return (means[high] - means[low]) / (high - low)

    for size in means:
        while len(hull) > 1 and rise(hull[-2], hull[-1]) >= rise(hull[-2], size):
            hull.pop()
        while len(hull) == 1 and means[hull[0]] >= means[size]:
            hull.pop()  # fewer rows never cost more
        hull.append(size)
    return hull
