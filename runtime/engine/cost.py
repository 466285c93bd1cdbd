"""What a step costs by its number of rows, learned from the steps that were done. Pure: times are handed in."""

from __future__ import annotations

from bisect import bisect_left

from attrs import define, field

ANCHORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
_WEIGHT = 0.08
"""Of a new measurement: steps are many and noisy, and a machine's speed drifts slowly."""
_OUTLIER = 3.0
_HULL_EVERY = 8


@define
class CostModel:
    """Seconds of a step with n rows: a moving mean at some sizes, and the lower convex hull of these.

    A mean that lies above the hull is stale or was disturbed: a step of n rows costs no more than the line between a
    smaller and a larger one. So a size that looked dear once is tried again, and its mean mends.
    """

    _seconds: dict[int, float] = field(factory=dict)
    _known: list[int] = field(factory=list)
    """Sizes on the hull, ascending."""
    _seen: dict[int, int] = field(factory=dict)
    _observed: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing was measured yet."""
        return not self._known

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        anchor = ANCHORS[min(bisect_left(ANCHORS, rows), len(ANCHORS) - 1)]
        if anchor != rows:  # bring the time to the anchor along the line that is believed
            guess = self.seconds(rows)
            seconds *= self.seconds(anchor) / guess if guess else anchor / rows
        before = self._seconds.get(anchor)
        if before is None:
            self._seconds[anchor] = seconds
        else:
            # a step that lost the CPU for a while says nothing about its size
            seconds = min(seconds, before * _OUTLIER)
            self._seconds[anchor] = before + max(_WEIGHT, 1 / (self._seen[anchor] + 1)) * (seconds - before)
        self._seen[anchor] = self._seen.get(anchor, 0) + 1
        self._observed += 1
        if before is None or self._observed % _HULL_EVERY == 0:
            self._known = self._hull()

    def seconds(self, rows: int) -> float:
        """Expected seconds of a step with `rows` rows; 0 while nothing is known."""
        known = self._known
        if not known or rows <= 0:
            return 0.0
        i = bisect_left(known, rows)
        if i < len(known) and known[i] == rows:
            return self._seconds[rows]
        if i == 0:
            # fewer rows than ever measured: no cheaper than a share of it, no dearer than all of it
            return self._seconds[known[0]] * (0.3 + 0.7 * rows / known[0])
        low = known[i - 1]
        if i == len(known):
            slope = self._slope(low)
            return self._seconds[low] + slope * (rows - low)
        high = known[i]
        part = (rows - low) / (high - low)
        return self._seconds[low] + part * (self._seconds[high] - self._seconds[low])

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

    def _hull(self) -> list[int]:
        hull: list[int] = []
        for size in sorted(self._seconds):
            while len(hull) > 1 and self._rise(hull[-2], hull[-1]) >= self._rise(hull[-2], size):
                hull.pop()
            while len(hull) == 1 and self._seconds[hull[0]] >= self._seconds[size]:
                hull.pop()  # fewer rows never cost more
            hull.append(size)
        return hull

    def _rise(self, low: int, high: int) -> float:
        """Seconds a row between two measured sizes."""
        return (self._seconds[high] - self._seconds[low]) / (high - low)

    def _slope(self, last: int) -> float:
        """Seconds a row beyond the largest size measured."""
        if len(self._known) == 1:
            return 0.4 * self._seconds[last] / last
        before = self._known[-2]
        return max((self._seconds[last] - self._seconds[before]) / (last - before), 0.0)
