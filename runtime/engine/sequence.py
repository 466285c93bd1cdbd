"""One answer in the making: its tokens, and how many of them the KV cache holds."""

from __future__ import annotations

from collections.abc import Hashable

from attrs import define, field


@define(eq=False, kw_only=True)
class Sequence:
    """Tokens of a prompt and its answer so far.

    `computed` tokens are in the KV cache, and never more than `len(tokens)`. What is not computed is what the next
    step computes: a whole prompt, a chunk of it, or the one token sampled last. A preempted sequence starts again
    with `computed` 0 and keeps its tokens.
    """

    request_id: str
    index: int
    tokens: list[int]
    n_prompt: int
    limit: int
    """`tokens` never grows beyond it."""
    share: bool = True
    """Whether it may reuse and leave behind cached prefixes."""
    repeatable: bool = False
    """Whether its steps must not depend on what was said before: where it begins alone, the pool is empty then, its
    chunks are fixed, and nothing is guessed."""
    manner: Hashable = None
    """What decides the answer beside the prompt; None where chance does, so that it may differ the next time."""
    seq_id: int = -1
    """The backend's sequence while it runs, else -1."""
    computed: int = 0
    cached: int = 0
    """Prompt tokens that came from the cache and were not computed for it."""
    draft: list[int] = field(factory=list)
    """Guessed continuation that the running step verifies."""
    order: int = 0
    """Place in the line of arrival."""
    resumed: bool = False
    """Whether it was stopped for want of cells and runs a second time."""

    @property
    def n_answer(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def uncomputed(self) -> int:
        """Tokens that the cache lacks."""
        return len(self.tokens) - self.computed
