"""The loop that answers requests: schedule, decode, sample, commit, emit. One thread owns it."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from attrs import define, field, frozen

from ...errors import BadInput, DecodeFailed, Interrupted, LocalLLMError, PromptTooLong, QueueFull, TimedOut
from ..backend import Backend, Batch, Decoded, TokenSampler
from ..types import (
    Done,
    Finished,
    FinishReason,
    GenerateRequest,
    Output,
    Piece,
    SlotStatus,
    Started,
    Timings,
    TokenLogprob,
    Usage,
)
from .scheduler import Limits, Remove, Scheduler, Share
from .sequence import Sequence
from .text import TextStream

Emit = Callable[[Output | LocalLLMError], None]


@frozen(kw_only=True)
class Work:
    """A request whose prompt is tokens by now."""

    request: GenerateRequest
    prompt_tokens: list[int]
    stop: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@define(eq=False, kw_only=True)
class Answer:
    """One of a request's answers: its sequence and all that turns tokens into output."""

    run: Run
    sequence: Sequence
    sampler: TokenSampler
    text: TextStream
    shown: list[str] = field(factory=list)
    """Text of this step."""
    unshown_tokens: int = 0
    logprobs: list[TokenLogprob] = field(factory=list)
    reason: FinishReason | None = None
    ended: bool = False
    """Its `Finished` is out; several answers may get their reason in one step, before any of them is told."""
    first_at: float | None = None


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


class Engine:
    """Answers many requests at once on one backend.

    `submit` and `cancel` may be called from any thread; everything else belongs to the thread that calls `step`.
    Each request gets Started, Pieces, a Finished for each answer, Done; or one LocalLLMError as its last output.
    """

    def __init__(self, backend: Backend, *, max_queue: int = 64, clock: Callable[[], float] = time.monotonic) -> None:
        info = backend.info
        self.backend = backend
        self.scheduler = Scheduler(
            Limits(
                n_slots=info.n_slots,
                n_cells=info.n_ctx_pool,
                n_batch=info.n_batch,
                n_outputs=info.n_outputs,
                max_queue=max_queue,
            )
        )
        self._clock = clock
        self._inbox: deque[tuple[Work, Emit, float]] = deque()
        self._cancelled: set[str] = set()
        self._runs: dict[str, Run] = {}
        self._answers: dict[Sequence, Answer] = {}

    def submit(self, work: Work, emit: Emit) -> None:
        """Hand in a request; all that happens to it is told through `emit`, on the engine's thread."""
        self._inbox.append((work, emit, self._clock()))

    def cancel(self, request_id: str) -> None:
        """End a request in whichever phase it is, at the latest after the running step."""
        self._cancelled.add(request_id)

    @property
    def busy(self) -> bool:
        """Whether a step would find something to do."""
        return bool(self._inbox or self._cancelled or self._runs)

    def step(self) -> bool:
        """Do one batch. Returns False when there is nothing to do."""
        self._take_in()
        shares = self.scheduler.schedule()
        if self._decode(shares):
            self._sample(shares)
            self._emit(shares)
        return self.busy

    def status(self) -> dict[str, Any]:
        """What runs and waits: `running`, `queued`, `slots`."""
        slots = tuple(self._slot(sequence) for sequence in [*self.scheduler.running, *self.scheduler.waiting])
        return {"running": len(self.scheduler.running), "queued": len(self.scheduler.waiting), "slots": slots}

    def close(self) -> None:
        """End every request with an error and free the samplers; the backend stays open."""
        self._take_in()
        for run in list(self._runs.values()):
            self._fail(run, Interrupted("the engine was stopped"))

    def _take_in(self) -> None:
        while self._inbox:
            work, emit, at = self._inbox.popleft()
            try:
                self._accept(work, emit, at)
            except LocalLLMError as error:
                emit(error)
        now = self._clock()
        for request_id in list(self._cancelled):
            self._cancelled.discard(request_id)
            if (run := self._runs.get(request_id)) is not None:
                self._fail(run, Interrupted("the request was cancelled"))
        for run in [run for run in self._runs.values() if run.deadline is not None and now >= run.deadline]:
            limit = run.work.request.timeout_s
            self._fail(run, TimedOut(f"the request took longer than its `timeout_s` of {limit:g}", timeout_s=limit))

    def _accept(self, work: Work, emit: Emit, at: float) -> None:
        request, prompt = work.request, work.prompt_tokens
        self._check(work)
        deadline = at + request.timeout_s if request.timeout_s is not None else None
        run = Run(work=work, emit=emit, submitted_at=at, deadline=deadline)
        seed = random.getrandbits(32) if request.sampling.seed is None else request.sampling.seed
        limit = self.backend.info.n_ctx
        if request.max_tokens is not None:
            limit = min(limit, len(prompt) + request.max_tokens)
        for index in range(request.n):
            sampler = self.backend.open_sampler(request.sampling, (seed + index) % 2**32, prompt)
            sequence = Sequence(
                request_id=request.request_id,
                index=index,
                tokens=list(prompt),
                n_prompt=len(prompt),
                limit=limit,
                share=request.cache_prompt,
            )
            run.answers.append(Answer(run=run, sequence=sequence, sampler=sampler, text=TextStream(work.stop)))
        self._runs[run.request_id] = run
        emit(Started(prompt_tokens=len(prompt), model_id=self.backend.info.model_id, notes=work.notes))
        for answer in run.answers:
            self._answers[answer.sequence] = answer
            self.scheduler.add(answer.sequence)
            if limit <= len(prompt):
                self._end(answer, "length")

    def _check(self, work: Work) -> None:
        request, prompt, n_ctx = work.request, work.prompt_tokens, self.backend.info.n_ctx
        if request.request_id in self._runs:
            raise BadInput(f"request `{request.request_id}` is already running", param="request_id")
        if not prompt:
            raise BadInput("the prompt is empty", param="prompt")
        if len(prompt) >= n_ctx:
            raise PromptTooLong(
                f"the prompt has {len(prompt)} tokens, the context holds {n_ctx} with at least one for the answer",
                hint="shorten the prompt or load the model with a larger `--n-ctx`",
                param="messages" if request.messages else "prompt",
                prompt_tokens=len(prompt),
                n_ctx=n_ctx,
            )
        if self.scheduler.full:
            waiting = len(self.scheduler.waiting)
            raise QueueFull(
                f"{waiting} requests wait already, the queue holds no more", retry_after_s=1, queued=waiting
            )

    def _decode(self, shares: list[Share]) -> bool:
        self._do_operations()
        if not shares:
            return False
        batch = Batch()
        for share in shares:
            batch.extend(share.tokens, share.start, share.sequence.seq_id, share.n_outputs)
        now = self._clock()
        for share in shares:
            run = self._answers[share.sequence].run
            run.admitted_at = now if run.admitted_at is None else run.admitted_at
        ids = {share.sequence.request_id for share in shares}
        try:
            outcome = self.backend.decode(batch, lambda: not ids.isdisjoint(self._cancelled))
        except DecodeFailed as error:
            for share in shares:
                self._fail(self._answers[share.sequence].run, error)
            return False
        if outcome is Decoded.DONE:
            return True
        self.scheduler.undo(shares)
        if outcome is Decoded.NO_ROOM and not self.scheduler.make_room():
            self._fail(self._answers[shares[0].sequence].run, DecodeFailed("the KV cache is full"))
        return False

    def _do_operations(self) -> None:
        for operation in self.scheduler.operations:
            match operation:
                case Remove(seq_id, start):
                    self.backend.remove(seq_id, start)
        self.scheduler.operations.clear()

    def _sample(self, shares: list[Share]) -> None:
        row = 0
        for share in shares:
            row += share.count
            kept = [self._next_token(self._answers[share.sequence], row - 1)] if share.n_outputs else []
            self.scheduler.commit(share, kept)

    def _next_token(self, answer: Answer, row: int) -> int:
        sequence = answer.sequence
        token = answer.sampler.sample(row)
        answer.unshown_tokens += 1
        if answer.first_at is None:
            answer.first_at = self._clock()
        if self.backend.is_end(token):
            answer.reason = "stop"
            return token
        answer.shown.append(answer.text.push(self.backend.piece(token)))
        if answer.text.stop_text is not None:
            answer.reason = "stop"
        elif len(sequence.tokens) + 1 >= sequence.limit:
            answer.reason = "length"
        return token

    def _emit(self, shares: list[Share]) -> None:
        for share in shares:
            answer = self._answers.get(share.sequence)
            if answer is None or not share.n_outputs:
                continue
            if answer.reason is not None:
                self._end(answer, answer.reason)
            else:
                self._show(answer)

    def _show(self, answer: Answer) -> None:
        text = "".join(answer.shown)
        answer.shown.clear()
        if text or answer.logprobs:
            piece = Piece(
                index=answer.sequence.index, text=text, tokens=answer.unshown_tokens, logprobs=tuple(answer.logprobs)
            )
            answer.unshown_tokens, answer.logprobs = 0, []
            answer.run.emit(piece)

    def _end(self, answer: Answer, reason: FinishReason) -> None:
        answer.reason = reason
        answer.shown.append(answer.text.finish())
        self._show(answer)
        answer.run.emit(Finished(index=answer.sequence.index, reason=reason, stop_text=answer.text.stop_text))
        self._drop(answer)
        answer.ended = True
        if all(other.ended for other in answer.run.answers):
            self._complete(answer.run)

    def _complete(self, run: Run) -> None:
        self._runs.pop(run.request_id, None)
        run.over = True
        sequences = [answer.sequence for answer in run.answers]
        usage = Usage(
            prompt_tokens=sequences[0].n_prompt,
            completion_tokens=sum(len(sequence.tokens) - sequence.n_prompt for sequence in sequences),
            cached_tokens=sequences[0].cached,
        )
        run.emit(Done(usage=usage, timings=self._timings(run)))

    def _timings(self, run: Run) -> Timings:
        now = self._clock()
        admitted = run.admitted_at if run.admitted_at is not None else now
        firsts = [answer.first_at for answer in run.answers if answer.first_at is not None]
        first = min(firsts, default=now)
        return Timings(
            queue_s=admitted - run.submitted_at,
            prefill_s=first - admitted,
            decode_s=now - first,
            time_to_first_token_s=first - run.submitted_at,
        )

    def _fail(self, run: Run, error: LocalLLMError) -> None:
        if run.over:
            return
        run.over = True
        self._runs.pop(run.request_id, None)
        for answer in run.answers:
            self._drop(answer)
        run.emit(error)

    def _drop(self, answer: Answer) -> None:
        if self._answers.pop(answer.sequence, None) is not None:
            self.scheduler.release(answer.sequence)
            answer.sampler.close()

    def _slot(self, sequence: Sequence) -> SlotStatus:
        return SlotStatus(
            request_id=sequence.request_id,
            state="queued" if sequence.seq_id < 0 else "decode" if sequence.decoding else "prefill",
            prompt_tokens=sequence.n_prompt,
            completion_tokens=len(sequence.tokens) - sequence.n_prompt,
        )
