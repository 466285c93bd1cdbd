"""How many steps came to what, and the score of that."""

from __future__ import annotations

from typing import Any

from attrs import define


@define
class Tally:
    """How many steps came to what."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    duration_ms: float = 0.0

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped

    @property
    def score(self) -> float:
        """100 · passed / total; nothing to do is a full score."""
        return round(100 * self.passed / self.total, 4) if self.total else 100.0

    def add(self, status: str) -> None:
        """Count one step."""
        setattr(self, status, getattr(self, status) + 1)

    def as_dict(self) -> dict[str, Any]:
        """The numbers as JSON."""
        numbers = {"passed": self.passed, "failed": self.failed, "skipped": self.skipped, "total": self.total}
        return {**numbers, "score": self.score, "duration_ms": round(self.duration_ms, 3)}
