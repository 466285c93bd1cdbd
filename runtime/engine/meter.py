"""What the engine did, in numbers that only grow, and a few that say how it stands."""

from __future__ import annotations

from typing import Any

from attrs import asdict, define


@define
class Meter:
    """Counters of one engine; seconds are the engine thread's."""

    steps_total: int = 0
    rows_total: int = 0
    decode_s_total: float = 0.0
    """In the backend."""
    sample_s_total: float = 0.0
    """From logits to text."""
    other_s_total: float = 0.0
    """Scheduling and output."""
    answers_total: int = 0
    """Sum over steps of the answers they served; over `steps_total` it is the mean batch size."""
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    completion_tokens_total: int = 0
    forced_tokens_total: int = 0
    """Tokens of answers that a constraint left no choice about."""

    def as_dict(self) -> dict[str, Any]:
        """The counters by name."""
        return asdict(self)
