"""The loop that answers requests: schedule, decode, sample, commit, emit. One thread owns it."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from attrs import evolve

from ...errors import (
    BadInput,
    DecodeFailed,
    InternalError,
    Interrupted,
    LocalLLMError,
    PromptTooLong,
    QueueFull,
    TimedOut,
)
from ..backend import Backend, Batch, Decoded
from ..types import Done, Finished, FinishReason, GenerateRequest, SlotStatus, Started, Timings, Usage
from .answer import Answer, Emit, Run, Work
from .cost import CostModel
from .meter import Meter
from .scheduler import Copy, Discard, Limits, Park, Remove, Restore, Scheduler, Share
from .sequence import Sequence
from .speculation import ROW_HOPE, Speculator
from .text import TextStream
from .thinking import Thinking

if TYPE_CHECKING:
    from .constraint import Grammars

__all__ = ["Emit", "Engine", "Work"]


class Engine:
    """Answers many requests at once on one backend.

    `submit` and `cancel` may be called from any thread; everything else belongs to the thread that calls `step`.
    Each request gets Started, Pieces, a Finished for each answer, Done; or one LocalLLMError as its last output.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        max_queue: int = 64,
        strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`strict` makes an engine for a lane: every step of a request has the same shape each time it is run."""
        info = backend.info
        self.backend = backend
        self.meter = Meter()
        speculates = info.speculation and info.rewinds and not strict
        self.scheduler = Scheduler(
            Limits(
                n_slots=info.n_slots,
                n_sequences=info.n_sequences,
                n_cells=info.n_ctx_pool,
                n_batch=info.n_batch,
                n_outputs=info.n_outputs,
                shares_prefixes=info.shares_prefixes and not strict,
                idle_cells=info.idle_cells,
                parked_cells=info.parked_cells,
                rewinds=info.rewinds,
                max_queue=max_queue,
                fixed_chunk=strict,
            ),
            CostModel.of(info.step_seconds),
            Speculator(CostModel.of(info.step_seconds, ROW_HOPE)) if speculates else None,
        )
        self._max_queue = max_queue
        self._clock = clock
        self._strict = strict
        self._lane: Engine | None = None
        self._grammars: Grammars | None = None
        self._grammars_lock = threading.Lock()
        self._inbox: deque[tuple[Work, Emit, float]] = deque()
        self._cancelled: set[str] = set()
        self._runs: dict[str, Run] = {}
        self._answers: dict[Sequence, Answer] = {}
        self._parked: dict[int, Any] = {}
        """Cells that the scheduler moved out of the pool, by its key."""

    def submit(self, work: Work, emit: Emit) -> None:
        """Hand in a request; all that happens to it is told through `emit`, on the engine's thread."""
        self._inbox.append((work, emit, self._clock()))

    def make_ready(self, work: Work) -> None:
        """Do on the caller's thread what no running answer shall wait for: compile the constraint, check the request.

        Raises what the engine would refuse the request with, though it may be in a long decode now.
        """
        self._check_prompt(work)
        self.backend.check_sampling(work.request.sampling)
        if work.request.constraint is not None:
            try:
                self._grammars_here().compile(work.request.constraint)
            except Exception as fault:
                if isinstance(fault, LocalLLMError):
                    raise
                # a bug: told when the constraint is opened, with its traceback

    def cancel(self, request_id: str) -> None:
        """End a request in whichever phase it is, at the latest after the running step."""
        self._cancelled.add(request_id)
        if self._lane is not None:
            self._lane.cancel(request_id)

    @property
    def busy(self) -> bool:
        """Whether a step would find something to do."""
        return bool(self._inbox or self._runs) or (self._lane is not None and self._lane.busy)

    def step(self) -> bool:
        """Do one batch, and one of the strict lane. Returns False when there is nothing left to do."""
        began = self._clock()
        self._take_in()
        shares = self.scheduler.schedule()
        if self._decode(shares):
            self._sample(shares)
            self._emit(shares)
            self.meter.other_s_total += self._clock() - began
        if self._lane is not None:
            if self._lane.busy:
                self._lane.step()
            else:
                self._lane._cancelled.clear()  # others' requests
        if not self._runs and not self._inbox:
            self._do_operations()  # while nobody waits: parking cells takes milliseconds
        return self.busy

    def status(self) -> dict[str, Any]:
        """What runs and waits: `running`, `queued`, `slots`, and `metrics`."""
        scheduler = self.scheduler
        slots = [self._slot(sequence) for sequence in [*scheduler.running, *scheduler.waiting]]
        running, queued = len(scheduler.running), len(scheduler.waiting)
        if self._lane is not None:
            lane = self._lane.status()
            slots += lane["slots"]
            running, queued = running + lane["running"], queued + lane["queued"]
        return {"running": running, "queued": queued, "slots": tuple(slots), "metrics": self.metrics()}

    def metrics(self) -> dict[str, Any]:
        """Counters and states by name, see `Meter`."""
        scheduler, speculator = self.scheduler, self.scheduler.speculator
        told = {
            **self.meter.as_dict(),
            "drafted_tokens_total": speculator.drafted if speculator is not None else 0,
            "accepted_tokens_total": speculator.accepted if speculator is not None else 0,
            "evictions_total": scheduler.evictions,
            "preemptions_total": scheduler.preemptions,
            "running": len(scheduler.running),
            "queued": len(scheduler.waiting),
            "kv_cells": scheduler.cells.capacity,
            "kv_cells_used": scheduler.cells.used,
            "kv_cells_idle": scheduler.idle_cells,
            "kv_cells_parked": scheduler.parked_cells,
        }
        if self._lane is not None:  # it counts for the same model; its cells are no part of the pool
            lane = self._lane.metrics()
            told |= {name: told[name] + lane[name] for name in told if not name.startswith("kv_")}
        return told

    def close(self) -> None:
        """End every request with an error and free the samplers; the backend stays open."""
        while self._inbox:
            self._inbox.popleft()[1](Interrupted("the engine was stopped"))
        for run in list(self._runs.values()):
            self._fail(run, Interrupted("the engine was stopped"))
        if self._lane is not None:
            self._lane.close()
            self._lane.backend.close()
            self._lane = None

    # -- requests come in ----------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        while self._inbox:
            work, emit, at = self._inbox.popleft()
            try:
                if work.request.determinism == "strict" and not self._strict:
                    self._strict_lane().submit(work, emit)
                else:
                    self._accept(work, emit, at)
            except LocalLLMError as error:
                self._refuse(work, emit, error)
            except Exception as fault:
                self._refuse(work, emit, _bug(fault))
        for request_id in list(self._cancelled):
            self._cancelled.discard(request_id)
            if (run := self._runs.get(request_id)) is not None:
                self._fail(run, Interrupted("the request was cancelled"))
            elif self._lane is not None:
                self._lane.cancel(request_id)  # it came in just now: when it was cancelled there may have been no lane
        now = self._clock()
        for run in [run for run in self._runs.values() if run.deadline is not None and now >= run.deadline]:
            limit = run.work.request.timeout_s
            self._fail(run, TimedOut(f"the request took longer than its `timeout_s` of {limit:g}", timeout_s=limit))

    def _refuse(self, work: Work, emit: Emit, error: LocalLLMError) -> None:
        """End the request that failed on its way in, however far it got, and no other."""
        run = self._runs.get(work.request.request_id)
        if run is not None and run.work is work:
            self._fail(run, error)
        else:
            emit(error)

    def _strict_lane(self) -> Engine:
        if self._lane is None:
            self._lane = Engine(self.backend.open_lane(), max_queue=self._max_queue, strict=True, clock=self._clock)
            self._lane._grammars = self._grammars_here()
        return self._lane

    def _accept(self, work: Work, emit: Emit, at: float) -> None:
        request, prompt = work.request, work.prompt_tokens
        self._check(work)
        deadline = at + request.timeout_s if request.timeout_s is not None else None
        run = Run(work=work, emit=emit, submitted_at=at, deadline=deadline)
        seed = random.getrandbits(32) if request.sampling.seed is None else request.sampling.seed
        limit = self.backend.info.n_ctx
        if request.max_tokens is not None:
            limit = min(limit, len(prompt) + request.max_tokens)
        try:
            for index in range(request.n):
                run.answers.append(self._answer(run, index, (seed + index) % 2**32, limit))
        except Exception:
            for answer in run.answers:
                answer.sampler.close()
            raise
        self._runs[run.request_id] = run
        emit(Started(prompt_tokens=len(prompt), model_id=self.backend.info.model_id, notes=work.notes))
        for answer in run.answers:
            self._answers[answer.sequence] = answer
            self.scheduler.add(answer.sequence)
        for answer in run.answers:
            if limit <= len(prompt):
                answer.reason = "length"
            else:
                self._force(answer)
            if answer.reason is not None:
                self._end(answer, answer.reason)

    def _answer(self, run: Run, index: int, seed: int, limit: int) -> Answer:
        request, prompt = run.work.request, run.work.prompt_tokens
        grammar = self._grammars_here().open(request.constraint) if request.constraint is not None else None
        sequence = Sequence(
            request_id=request.request_id,
            index=index,
            tokens=list(prompt),
            n_prompt=len(prompt),
            limit=limit,
            share=request.cache_prompt and not self._strict,
            repeatable=not request.cache_prompt and request.sampling.seed is not None,
            manner=_manner(request),
        )
        sampler = self.backend.open_sampler(request.sampling, seed, prompt)
        thinking = Thinking(run.work.thinking) if run.work.thinking is not None else None
        text = TextStream(run.work.stop)
        return Answer(run=run, sequence=sequence, sampler=sampler, text=text, grammar=grammar, thinking=thinking)

    def _grammars_here(self) -> Grammars:
        with self._grammars_lock:
            if self._grammars is None:
                from .constraint import Grammars

                self._grammars = Grammars(self.backend.grammar_tokenizer, self.backend.info.n_vocab)
            return self._grammars

    def _check(self, work: Work) -> None:
        request_id = work.request.request_id
        if request_id in self._runs:
            raise BadInput(f"request `{request_id}` is already running", param="request_id")
        self._check_prompt(work)
        if self.scheduler.full:
            queued = len(self.scheduler.waiting)
            raise QueueFull(f"{queued} requests wait already, the queue holds no more", retry_after_s=1, queued=queued)

    def _check_prompt(self, work: Work) -> None:
        request, prompt, n_ctx = work.request, work.prompt_tokens, self.backend.info.n_ctx
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
        n_vocab = self.backend.info.n_vocab
        if min(prompt) < 0 or max(prompt) >= n_vocab:
            raise BadInput(f"the prompt has tokens outside the vocabulary of {n_vocab}", param="prompt")

    # -- one step ------------------------------------------------------------------------------------------------

    def _decode(self, shares: list[Share]) -> bool:
        if not self._do_operations() or not shares:
            return False
        batch, now = Batch(), self._clock()
        for share in shares:
            batch.extend(share.tokens + share.draft, share.start, share.sequence.seq_id, share.n_outputs)
            run = self._answers[share.sequence].run
            run.admitted_at = now if run.admitted_at is None else run.admitted_at
        ids = {share.sequence.request_id for share in shares}
        try:
            outcome = self.backend.decode(batch, lambda: not ids.isdisjoint(self._cancelled))
        except DecodeFailed as error:
            for share in shares:
                self._fail(self._answers[share.sequence].run, error)
            return False
        if outcome is not Decoded.DONE:
            self._recover(shares, outcome)
            return False
        seconds = self._clock() - now
        self.scheduler.observe(shares, seconds)
        meter = self.meter
        meter.steps_total, meter.rows_total = meter.steps_total + 1, meter.rows_total + len(batch)
        meter.decode_s_total += seconds
        meter.other_s_total -= seconds
        return True

    def _recover(self, shares: list[Share], outcome: Decoded) -> None:
        self.scheduler.undo(shares)
        if outcome is Decoded.NO_ROOM and not self.scheduler.make_room():
            self._fail(self._answers[shares[0].sequence].run, DecodeFailed("the KV cache is full"))

    def _do_operations(self) -> bool:
        """Bring the cells to where the step wants them. False where parked ones did not fit: schedule anew then."""
        lost: list[Restore] = []
        for operation in self.scheduler.operations:
            match operation:
                case Copy(source, target, end):
                    self.backend.copy(source, target, end)
                case Remove(seq_id, start):
                    self.backend.remove(seq_id, start)
                case Park(seq_id, key):
                    self._parked[key] = self.backend.save(seq_id)
                case Restore(key, target, end):
                    if self.backend.restore(self._parked[key], target):
                        self.backend.remove(target, end)
                    else:
                        lost.append(operation)
                case Discard(key):
                    del self._parked[key]
        self.scheduler.operations.clear()
        for each in lost:
            self.scheduler.not_restored(each)
        return not lost

    def _sample(self, shares: list[Share]) -> None:
        began, row = self._clock(), 0
        failed: list[tuple[Run, LocalLLMError]] = []
        for share in shares:
            row += share.count
            answer = self._answers[share.sequence]
            kept: list[int] = []
            if share.n_outputs:
                try:
                    kept = answer.sample(self.backend, row - share.n_outputs, share.draft)
                except LocalLLMError as error:
                    failed.append((answer.run, error))
                answer.first_at = answer.first_at if answer.first_at is not None else self._clock()
                self.meter.answers_total += 1
            self.scheduler.commit(share, kept)
            try:
                self._force(answer)
            except LocalLLMError as error:
                failed.append((answer.run, error))
        for run, fault in failed:
            self._fail(run, fault)
        seconds = self._clock() - began
        self.meter.sample_s_total += seconds
        self.meter.other_s_total -= seconds

    def _force(self, answer: Answer) -> None:
        forced = answer.force(self.backend)
        answer.sequence.tokens.extend(forced)
        self.meter.forced_tokens_total += len(forced)

    # -- output goes out -----------------------------------------------------------------------------------------

    def _emit(self, shares: list[Share]) -> None:
        for share in shares:
            if share.n_outputs:
                answer = self._answers.get(share.sequence)
                if answer is None:
                    continue
                if answer.reason is not None:
                    self._end(answer, answer.reason)
                else:
                    self._show(answer)

    def _show(self, answer: Answer) -> None:
        if (piece := answer.take_piece()) is not None:
            answer.run.emit(piece)

    def _end(self, answer: Answer, reason: FinishReason) -> None:
        answer.finish(reason)
        self._show(answer)
        answer.run.emit(Finished(index=answer.sequence.index, reason=reason, stop_text=answer.text.stop_text))
        self._drop(answer)
        if not any(other.sequence in self._answers for other in answer.run.answers):  # each has been told
            self._complete(answer.run)

    def _complete(self, run: Run) -> None:
        self._runs.pop(run.request_id, None)
        run.over = True
        sequences = [answer.sequence for answer in run.answers]
        usage = Usage(
            prompt_tokens=sequences[0].n_prompt,
            completion_tokens=sum(sequence.n_answer for sequence in sequences),
            cached_tokens=sequences[0].cached,
            reasoning_tokens=sum(answer.thinking.tokens for answer in run.answers if answer.thinking is not None),
        )
        self.meter.prompt_tokens_total += usage.prompt_tokens
        self.meter.cached_tokens_total += usage.cached_tokens
        self.meter.completion_tokens_total += usage.completion_tokens
        run.emit(Done(usage=usage, timings=self._timings(run)))

    def _timings(self, run: Run) -> Timings:
        now = self._clock()
        admitted = run.admitted_at if run.admitted_at is not None else now
        first = min((answer.first_at for answer in run.answers if answer.first_at is not None), default=now)
        return Timings(
            queue_s=admitted - run.submitted_at,
            prefill_s=first - admitted,
            decode_s=now - first,
            time_to_first_token_s=first - run.submitted_at,
        )

    def _fail(self, run: Run, error: LocalLLMError) -> None:
        if not run.over:
            run.over = True
            self._runs.pop(run.request_id, None)
            for answer in run.answers:
                self._drop(answer)
            run.emit(error)

    def _drop(self, answer: Answer) -> None:
        if self._answers.pop(answer.sequence, None) is not None:
            self.scheduler.release(answer.sequence)
            answer.sampler.close()

    @staticmethod
    def _slot(sequence: Sequence) -> SlotStatus:
        return SlotStatus(
            request_id=sequence.request_id,
            state="queued" if sequence.seq_id < 0 else "decode" if sequence.n_answer else "prefill",
            prompt_tokens=sequence.n_prompt,
            completion_tokens=sequence.n_answer,
        )


def _manner(request: GenerateRequest) -> Hashable:
    if request.sampling.temperature > 0:
        return None
    return evolve(request.sampling, seed=None), repr(request.constraint)


def _bug(fault: Exception) -> InternalError:
    """The error of a fault that nobody foresaw; its traceback is for the log."""
    error = InternalError(f"the request could not be taken: {fault}", hint="`localllm logs` has the traceback")
    error.__cause__ = fault
    return error
