"""The worker process: one model, its engine, and the frames to the pool. Run as `python -m localllm.runtime.worker`.

Three threads share it. The reader takes frames off stdin and ends the process when the pool is gone; the preparer
renders and tokenizes prompts; the main thread owns the engine and is the only one that decodes. They meet in queues.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from ..errors import InternalError, LocalLLMError, ModelLoadFailed
from .frames import BrokenStream, FrameReader, encode, write_all
from .messages import (
    AskStatus,
    Cancel,
    Failure,
    FromWorker,
    Generate,
    Hello,
    Load,
    Loading,
    LoadRefused,
    Log,
    Outputs,
    Shutdown,
    Status,
)
from .types import Done, GenerateRequest, LoadSpec, Output, Started, Usage

if TYPE_CHECKING:
    from .engine.engine import Engine, Work
    from .preparer import Preparer
    from .prompt import Prompt

_PR_SET_PDEATHSIG = 1
_PROGRESS_EVERY_S = 0.05
_GARBAGE_THRESHOLD = 10_000
_FAULTS_IN_A_ROW = 3


class FrameWriter:
    """Writes whole frames to the pool from any thread; a pool that is gone ends the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        frame = encode(message)
        with self._lock:
            try:
                write_all(self._fd, frame)
            except OSError:
                end_now()


def end_now(status: int = 0) -> NoReturn:
    """End the process without waiting for a decode, a load or another thread; the system takes the memory back."""
    os._exit(status)


class Worker:
    """One model's engine and everything in flight on it; `run` is the main thread's, `read` the reader's."""

    def __init__(self, writer: FrameWriter) -> None:
        self._writer = writer
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loads: queue.SimpleQueue[LoadSpec] = queue.SimpleQueue()
        self._preparer: Preparer | None = None
        self._engine: Engine | None = None
        self._pending: list[tuple[str, Output | Failure]] = []
        self._live: dict[str, Started | None] = {}
        """Requests at the engine, each with the `Started` that its client is still to get."""
        self._questions: list[int] = []
        """Numbers of the status reports to give after the coming step, which sees the cancels that came before them."""
        self._faults = 0
        self._fault: LocalLLMError | None = None
        """Why the engine is being emptied, while it is."""

    # -- the reader's side ---------------------------------------------------------------------------------------

    def read(self, fd: int) -> None:
        """Take frames until the pool says so or is gone; then end the process, whatever else it does."""
        reader = FrameReader(fd)
        try:
            while messages := reader.read():
                for message in messages:
                    self._take(message)
        except (BrokenStream, OSError) as error:
            print(f"the pool's frames broke: {error}", file=sys.stderr, flush=True)
            end_now(1)
        except BaseException:
            traceback.print_exc()
            end_now(1)
        end_now()

    def _take(self, message: object) -> None:
        if isinstance(message, Generate):
            self._prepare(message.request)
        elif isinstance(message, Cancel):
            self._cancel(message.request_id)
        elif isinstance(message, AskStatus):
            self._inbox.put(lambda: self._questions.append(message.number))
        elif isinstance(message, Load):
            self._loads.put(message.spec)
        elif isinstance(message, Shutdown):
            end_now()

    def _prepare(self, request: GenerateRequest) -> None:
        if self._preparer is None:
            self._refuse(request.request_id, ModelLoadFailed("the model is not loaded"))
        else:
            self._preparer.add(request)

    def _cancel(self, request_id: str) -> None:
        """At once, also in a long decode, and once more between two steps: the request may just be on its way in."""
        if self._preparer is not None and not self._preparer.cancel(request_id):
            self._cancel_live(request_id)
            self._inbox.put(lambda: self._cancel_live(request_id))

    def _cancel_live(self, request_id: str) -> None:
        if request_id in self._live and self._engine is not None:
            self._engine.cancel(request_id)

    def _refuse(self, request_id: str, error: LocalLLMError) -> None:
        self._writer.send(Outputs(((request_id, Failure(error.as_dict())),)))

    def _show_prompt(self, request_id: str, prompt: Prompt) -> None:
        """All that a request for the prompt alone gets."""
        count = len(prompt.tokens)
        started = Started(
            prompt_tokens=count,
            model_id="",
            notes=prompt.notes,
            prompt={"text": prompt.text, "tokens": prompt.tokens},
        )
        done = Done(usage=Usage(prompt_tokens=count))
        self._writer.send(Outputs(((request_id, started), (request_id, done))))

    # -- the engine's side ---------------------------------------------------------------------------------------

    def run(self) -> NoReturn:
        """Load the model, then answer until the process ends."""
        spec = self._loads.get()
        try:
            self._load(spec)
            gc.freeze()  # what is loaded stays: no running answer shall wait for a look at it
            gc.set_threshold(_GARBAGE_THRESHOLD)
        except LocalLLMError as error:
            self._writer.send(LoadRefused(error.as_dict()))
        except Exception as error:
            traceback.print_exc()
            self._writer.send(LoadRefused(InternalError(f"loading `{spec.model_id}` failed: {error}").as_dict()))
        while True:
            self._turn()

    def _load(self, spec: LoadSpec) -> None:
        from .assembly import assemble
        from .preparer import Preparer

        loaded = assemble(spec, self._progress(), self._log)
        self._engine = loaded.engine
        self._preparer = Preparer(
            loaded.prompts, loaded.engine.make_ready, self._submit, self._refuse, self._show_prompt
        )
        self._writer.send(loaded.report)

    def _progress(self) -> Callable[[str, float], None]:
        told_stage, told_at = "", 0.0

        def tell(stage: str, fraction: float) -> None:
            nonlocal told_stage, told_at
            now = time.monotonic()
            if stage != told_stage or fraction >= 1.0 or now - told_at >= _PROGRESS_EVERY_S:
                told_stage, told_at = stage, now
                self._writer.send(Loading(stage, fraction))

        return tell

    def _log(self, level: str, line: str) -> None:
        if level != "debug" and line.strip():
            self._writer.send(Log(level, line))

    def _submit(self, work: Work, prompt: Prompt) -> None:
        """The preparer's way to the engine; the empty message wakes the main thread where it waits.

        What the engine would refuse has been refused, so nobody has to wait for a running decode to know that his
        request was taken. Only the strict lane may still fail to open.
        """
        assert self._engine is not None
        request_id = work.request.request_id
        started = Started(
            prompt_tokens=len(work.prompt_tokens),
            model_id=self._engine.backend.info.model_id,
            notes=work.notes,
            reasoning_open=prompt.reasoning_open,
            reply=prompt.reply,
        )
        strict = work.request.determinism == "strict"
        self._live[request_id] = started if strict else None
        if not strict:
            self._writer.send(Outputs(((request_id, started),)))
        self._engine.submit(work, lambda output: self._emit(request_id, output))
        self._inbox.put(_nothing)

    def _turn(self) -> None:
        """What waits in the inbox, one engine step, one frame with all it brought; a wait where nothing is left."""
        busy = self._guarded(self._step)
        self._flush()
        if not busy:
            self._guarded(self._inbox.get())

    def _step(self) -> bool:
        while not self._inbox.empty():
            self._inbox.get()()
        busy = self._engine is not None and self._engine.step()
        while self._questions:
            self._tell_status(self._questions.pop())
        if busy:
            self._faults = 0
        return busy

    def _guarded(self, action: Callable[[], bool | None]) -> bool:
        """Do it; a fault costs the requests in flight one error each, and the loop goes on."""
        try:
            return bool(action())
        except LocalLLMError as error:
            self._fail_all(error)
        except Exception as error:
            self._writer.send(Log("error", traceback.format_exc()))
            self._fail_all(InternalError(f"the engine failed: {error}", hint="`localllm logs` has the traceback"))
        return True

    def _emit(self, request_id: str, output: Output | LocalLLMError) -> None:
        if request_id not in self._live:
            return  # it has had its last word
        if isinstance(output, LocalLLMError):
            if output.__cause__ is not None and isinstance(output, InternalError):
                self._writer.send(Log("error", "".join(traceback.format_exception(output.__cause__))))
            del self._live[request_id]
            self._pending.append((request_id, Failure((self._fault or output).as_dict())))
            return
        if type(output) is Started:
            if (started := self._live[request_id]) is not None:
                self._writer.send(Outputs(((request_id, started),)))  # now, not after its first step
            return
        if type(output) is Done:
            del self._live[request_id]
        self._pending.append((request_id, output))

    def _flush(self) -> None:
        if self._pending:
            self._writer.send(Outputs(tuple(self._pending)))
            self._pending.clear()

    def _fail_all(self, error: LocalLLMError) -> None:
        """One error for each request in flight; an engine that fails again and again is given up with its process."""
        self._faults += 1
        in_flight = list(self._live)
        self._fault = error
        try:
            if self._engine is not None:
                self._engine.close()
        except Exception:
            traceback.print_exc()
            self._faults = _FAULTS_IN_A_ROW
        for request_id in in_flight:  # those that the engine had lost, or never really had
            self._emit(request_id, error)
        self._fault = None
        self._flush()
        if self._faults >= _FAULTS_IN_A_ROW:
            print("the engine failed too often; the worker ends", file=sys.stderr, flush=True)
            end_now(1)

    def _tell_status(self, number: int) -> None:
        told = {} if self._engine is None else self._engine.status()
        self._writer.send(Status(number, tuple(told.get("slots", ())), dict(told.get("metrics", {}))))


def _nothing() -> None:
    """Wakes a thread that waits for messages."""


def take_stdout() -> int:
    """A descriptor of our own for frames; descriptor 1 becomes stderr, so that no native print can get between them."""
    frames = os.dup(1)
    os.dup2(2, 1)
    return frames


def end_with_parent() -> None:
    """Ask Linux to kill this process with its parent; the end of stdin says the same elsewhere, a moment later."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> NoReturn:
    """The process: frames on what was stdout, everything else on stderr."""
    frames = take_stdout()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    writer = FrameWriter(frames)
    worker = Worker(writer)
    threading.Thread(target=worker.read, args=(0,), name="reader", daemon=True).start()
    writer.send(Hello(os.getpid()))
    worker.run()


if __name__ == "__main__":
    main()
