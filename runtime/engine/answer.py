"""One answer on its way from logits to shown text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from ...errors import LocalLLMError
from ..backend import Backend, TokenSampler
from ..types import FinishReason, GenerateRequest, Output, Piece, TokenLogprob
from .sequence import Sequence
from .text import TextStream
from .thinking import Thinking, ThinkingLimit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .constraint import Grammar

Emit = Callable[[Output | LocalLLMError], None]


@frozen(kw_only=True)
class Work:
    """A request whose prompt is tokens by now."""

    request: GenerateRequest
    prompt_tokens: list[int]
    stop: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    thinking: ThinkingLimit | None = None


@define(eq=False, kw_only=True)
class Run:
    """A request on its way, and where its output goes."""

    work: Work
    emit: Emit
    submitted_at: float
    deadline: float | None
    answers: list[Answer] = field(factory=list)
    admitted_at: float | None = None
    over: bool = False

    @property
    def request_id(self) -> str:
        """The id it was submitted under."""
        return self.work.request.request_id


@define(eq=False, kw_only=True)
class Answer:
    """One of a request's answers: its sequence and all that turns tokens into output."""

    run: Run
    sequence: Sequence
    sampler: TokenSampler
    text: TextStream
    grammar: Grammar | None = None
    thinking: Thinking | None = None
    reason: FinishReason | None = None
    """Why it ended, once it did."""
    first_at: float | None = None
    _shown: list[str] = field(factory=list)
    _unshown_tokens: int = 0
    _logprobs: list[TokenLogprob] = field(factory=list)

    def sample(self, backend: Backend, row: int, draft: list[int]) -> list[int]:
        """Choose tokens from consecutive rows of logits, for as long as each agrees with the draft.

        Each is drawn by the request's own chain from the model's own logits, so a draft changes how many tokens a step
        brings and not which: where the drawn token differs from the guessed one, the rows after it are not looked at.
        """
        kept: list[int] = []
        for guess in [*draft, None]:
            kept.append(self._choose(backend, row + len(kept), len(kept)))
            if self.reason is not None or kept[-1] != guess or (self.thinking is not None and self.thinking.due):
                break
        return kept

    def force(self, backend: Backend) -> list[int]:
        """Tokens that are not the model's choice: they join the answer without being sampled.

        They end a thought that has used up its budget, or are all that the constraint allows. The latter are sampled
        all the same where log-probabilities are told, which take a decode of each token.
        """
        if self.reason is not None:
            return []
        room = self.sequence.limit - len(self.sequence.tokens)
        forced: list[int] = []
        if self.thinking is not None and self.thinking.due:
            forced = list(self.thinking.close())[:room]
            for token in forced:
                self._take_forced(backend, token)
                if self.grammar is not None:
                    self.grammar.accept(token, backend.piece(token))
        if self.grammar is not None and self.run.work.request.logprobs is None:
            following = self.grammar.forced()
            allowed = following[: room - len(forced)]
            for token in allowed:
                self._take_forced(backend, token)
            forced += allowed
            if len(allowed) < len(following) and self.text.stop_text is None:
                self.reason = "length"  # the constraint is fulfilled, what is told of it is not
        if forced and self.reason is None:
            self._check_end(len(forced))
        return forced

    def take_piece(self) -> Piece | None:
        """What there is to show since the last piece."""
        if self.reason is None and self.run.work.request.whole:
            return None
        text = "".join(self._shown)
        self._shown.clear()
        if not text and not self._logprobs:
            return None
        piece = Piece(index=self.sequence.index, text=text, tokens=self._unshown_tokens, logprobs=tuple(self._logprobs))
        self._unshown_tokens, self._logprobs = 0, []
        return piece

    def finish(self, reason: FinishReason) -> None:
        """No token follows: what was held back may be shown."""
        self.reason = reason
        self._shown.append(self.text.finish())

    def _choose(self, backend: Backend, row: int, ahead: int) -> int:
        request, ends = self.run.work.request, backend.info.end_tokens
        before = backend.logits(row).copy() if request.logprobs is not None else None
        unfinished = self.grammar is not None and self.grammar.awaited
        if unfinished or request.sampling.ignore_eos or self.sequence.n_answer + ahead < request.sampling.min_tokens:
            backend.logits(row)[list(ends)] = float("-inf")
        if self.grammar is not None and self.grammar.binds:
            self.grammar.mask(backend.logits(row))
        token = self.sampler.sample(row)
        while self.grammar is not None and token not in ends and self.grammar.misses(backend.piece(token)):
            backend.logits(row)[token] = float("-inf")
            token = self.sampler.sample(row)
        if token in ends:
            self._unshown_tokens += 1
            self.reason = "stop"
            return token
        if before is not None and request.logprobs is not None:
            self._logprobs.append(token_logprob(backend, before, token, request.logprobs))
        if self.grammar is not None:
            self.grammar.accept(token, backend.piece(token))
        self._add_text(backend, token)
        self._check_end(ahead + 1)
        return token

    def _take_forced(self, backend: Backend, token: int) -> None:
        self.sampler.accept(token)
        self._add_text(backend, token)
        if self.run.work.request.logprobs is not None:
            # there was nothing to choose from
            self._logprobs.append(TokenLogprob(token=backend.piece(token), logprob=0.0))

    def _add_text(self, backend: Backend, token: int) -> None:
        piece = backend.piece(token)
        self._unshown_tokens += 1
        self._shown.append(self.text.push(piece))
        if self.thinking is not None:
            self.thinking.saw(piece)

    def _check_end(self, ahead: int) -> None:
        """Whether the tokens up to now, `ahead` of which the sequence lacks, end the answer."""
        if self.text.stop_text is not None or (self.grammar is not None and self.grammar.over):
            self.reason = "stop"
        elif len(self.sequence.tokens) + ahead >= self.sequence.limit:
            self.reason = "length"


def token_logprob(backend: Backend, logits: NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """A token's natural log-probability among raw logits, with the `n_top` likeliest beside it."""
    import numpy as np

    highest = float(logits.max())
    total = highest + float(np.log(np.exp(logits - highest, dtype=np.float64).sum()))
    top: list[int] = []
    if n_top:
        likeliest = np.argpartition(logits, -n_top)[-n_top:]
        top = likeliest[np.argsort(-logits[likeliest], kind="stable")].tolist()
    # rounding must not make a certain token's logarithm positive
    return TokenLogprob(
        token=backend.piece(token),
        logprob=min(float(logits[token]) - total, 0.0),
        top=tuple((backend.piece(other), min(float(logits[other]) - total, 0.0)) for other in top),
    )
