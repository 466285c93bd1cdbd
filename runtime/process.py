"""One worker process as the event loop sees it: spawn, load, requests' streams, death, end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import cast

from ..errors import BadInput, LocalLLMError, error_from_dict
from .diagnosis import death_error, load_error
from .frames import BrokenStream, FrameDecoder, encode
from .messages import (
    AskStatus,
    Cancel,
    Failure,
    Generate,
    Load,
    Loaded,
    Loading,
    LoadRefused,
    Log,
    Message,
    Outputs,
    Shutdown,
    Status,
)
from .protocol import LoadProgress
from .types import Done, GenerateRequest, LoadSpec, Output

LogLine = Callable[[str, str, str], None]
"""Called with the model's id, a level (`debug`, `info`, `warning`, `error`) and the line, bounded in length."""

_LINES_KEPT = 60
_LINE_CHARS = 2000
_KILL_WAIT_S = 10.0
_EXIT_SETTLE_S = 0.5


class Stream:
    """What one request has brought so far; filled by the event loop, read by one consumer."""

    __slots__ = ("_items", "_waiter", "request_id", "timer")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.timer: asyncio.TimerHandle | None = None
        self._items: deque[Output | LocalLLMError] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def push(self, item: Output | LocalLLMError) -> None:
        """Add an output, or the error that ends the stream."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Output:
        """The next output; raises the error that ended the stream."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if isinstance(item, LocalLLMError):
            raise item
        return item


class WorkerProcess(asyncio.SubprocessProtocol):
    """A worker process and the requests in flight on it. All methods belong to the loop that spawned it."""

    def __init__(self, model_id: str, on_log: LogLine | None) -> None:
        self.model_id = model_id
        self.on_death: Callable[[LocalLLMError], None] | None = None
        self.pid = 0
        self.died = False
        """It ended without being asked to."""
        self._on_log = on_log
        self._decoder = FrameDecoder()
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._partial_line = b""
        self._streams: dict[str, Stream] = {}
        self.last_status = Status(0)
        """The last report the worker gave, however late it came."""
        self._question: asyncio.Future[None] | None = None
        self._load: asyncio.Future[Loaded] | None = None
        self._on_progress: LoadProgress | None = None
        self._stall_s = 0.0
        self._stall_timer: asyncio.TimerHandle | None = None
        self._cause: str | None = None
        self._stopping: LocalLLMError | None = None
        self._gone = asyncio.Event()

    @classmethod
    async def spawn(cls, model_id: str, on_log: LogLine | None = None) -> WorkerProcess:
        """Start a worker; it waits for `load`."""
        loop = asyncio.get_running_loop()
        worker = cls(model_id, on_log)
        # A session of its own: Ctrl-C in the terminal reaches the parent alone, which drains and then ends its workers.
        transport, _ = await loop.subprocess_exec(
            lambda: worker, *_command(), env=_environment(), start_new_session=True
        )
        worker.pid = transport.get_pid()
        return worker

    # -- the parent's side ---------------------------------------------------------------------------------------

    async def load(self, spec: LoadSpec, on_progress: LoadProgress, stall_s: float) -> Loaded:
        """Load the model. Raises the worker's own error, or ModelLoadFailed or OutOfMemory where it died."""
        if self._gone.is_set():
            raise load_error(self.model_id, self._transport.get_returncode(), list(self._lines), self._cause)
        self._load = asyncio.get_running_loop().create_future()
        self._on_progress, self._stall_s = on_progress, stall_s
        self._watch_stall()
        self._send(Load(spec))
        try:
            loaded = await self._load
        finally:
            self._load = None
            self._unwatch_stall()
        if self._gone.is_set():  # its last breath: nobody would ever hear of its death
            raise load_error(self.model_id, self._transport.get_returncode(), list(self._lines), self._cause)
        return loaded

    def open(self, request: GenerateRequest) -> Stream:
        """Send the request. Raises BadInput where no frame can hold it, WorkerDied where nobody would read it."""
        if self._gone.is_set():
            raise death_error(self.model_id, self._transport.get_returncode(), list(self._lines), self._cause)
        if request.request_id in self._streams:
            raise BadInput(f"request id `{request.request_id}` is in use", param="request_id")
        stream = Stream(request.request_id)
        try:
            frame = encode(Generate(request))
        except ValueError as error:
            raise BadInput(str(error), param="messages") from error
        self._streams[request.request_id] = stream
        self._write(frame)
        return stream

    def runs(self, request_id: str) -> bool:
        """Whether the request is in flight."""
        return request_id in self._streams

    def close(self, stream: Stream) -> None:
        """The consumer is done with the stream; a request that still runs is cancelled."""
        if stream.timer is not None:
            stream.timer.cancel()
        if self._streams.pop(stream.request_id, None) is not None:
            self._send(Cancel(stream.request_id))

    async def status(self, timeout_s: float) -> Status:
        """The worker's own report; after `timeout_s` the last one there was, and the new one is taken when it comes."""
        if self._question is None and not self._gone.is_set():
            self._question = asyncio.get_running_loop().create_future()
            self._send(AskStatus(self.last_status.number + 1))
        if self._question is not None:
            await asyncio.wait([self._question], timeout=timeout_s)
        return self.last_status

    async def stop(self, error: LocalLLMError, grace_s: float) -> None:
        """End the process and return when it is gone; requests in flight end with `error`."""
        self._stopping = error
        if self._load is not None and not self._load.done():
            self._load.set_exception(error)
        self._fail_streams(error)
        if not self._gone.is_set():
            self._send(Shutdown())
            try:
                await asyncio.wait_for(self._gone.wait(), grace_s)
            except TimeoutError:
                self._kill()
                await asyncio.wait_for(self._gone.wait(), _KILL_WAIT_S)

    def _send(self, message: Message) -> None:
        self._write(encode(message))

    def _write(self, frame: bytes) -> None:
        pipe = cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))
        if pipe is not None and not pipe.is_closing():
            pipe.write(frame)

    def _kill(self, cause: str | None = None) -> None:
        self._cause = self._cause or cause
        try:
            self._transport.kill()
        except ProcessLookupError:
            pass

    def _watch_stall(self) -> None:
        self._unwatch_stall()
        cause = f"no progress for {self._stall_s:g} s"
        self._stall_timer = asyncio.get_running_loop().call_later(self._stall_s, self._kill, cause)

    def _unwatch_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    # -- the child's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._take_stderr(data)
            return
        try:
            for message in self._decoder.feed(data):
                self._take(message)
        except BrokenStream as error:
            self._kill(f"sent no valid frame ({error})")

    def process_exited(self) -> None:
        # The pipes usually close right after; a stray heir of them must not keep the dead worker's requests waiting.
        asyncio.get_running_loop().call_later(_EXIT_SETTLE_S, self._finish)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def _take(self, message: Message) -> None:
        if type(message) is Outputs:
            self._take_outputs(message)
        elif isinstance(message, Loading):
            self._watch_stall()
            if self._on_progress is not None and self._load is not None:
                self._on_progress(message.stage, message.fraction)
        elif isinstance(message, Loaded):
            if self._load is not None and not self._load.done():
                self._load.set_result(message)
        elif isinstance(message, LoadRefused):
            if self._load is not None and not self._load.done():
                self._load.set_exception(error_from_dict(message.error))
        elif isinstance(message, Status):
            self.last_status = message
            self._end_question()
        elif isinstance(message, Log):
            self._log(message.level, message.text)

    def _take_outputs(self, outputs: Outputs) -> None:
        streams = self._streams
        for request_id, item in outputs.items:
            stream = streams.get(request_id)
            if stream is None:
                continue  # cancelled meanwhile
            kind = type(item)
            if kind is Done or kind is Failure:
                del streams[request_id]
            stream.push(error_from_dict(item.error) if isinstance(item, Failure) else item)

    def _take_stderr(self, data: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if len(self._partial_line) > _LINE_CHARS:
            lines.append(self._partial_line)
            self._partial_line = b""
        for line in lines:
            self._take_line(line)

    def _take_line(self, raw: bytes) -> None:
        self._log("info", raw.decode("utf-8", "replace"))

    def _log(self, level: str, text: str) -> None:
        for line in text.splitlines():
            bounded = line.rstrip()[:_LINE_CHARS]
            if bounded:
                self._lines.append(bounded)
                if self._on_log is not None:
                    self._on_log(self.model_id, level, bounded)

    def _finish(self) -> None:
        """The process is gone: once, whichever callback comes first."""
        if self._gone.is_set():
            return
        self._gone.set()
        self._unwatch_stall()
        self._take_line(self._partial_line)
        returncode = self._transport.get_returncode()
        self._transport.close()
        lines = list(self._lines)
        if self._load is not None and not self._load.done():
            self._load.set_exception(load_error(self.model_id, returncode, lines, self._cause))
        error = self._stopping or death_error(self.model_id, returncode, lines, self._cause)
        self.died = self._stopping is None
        self._fail_streams(error)
        self._end_question()
        if self.died and self.on_death is not None:
            self.on_death(error)

    def _end_question(self) -> None:
        if self._question is not None and not self._question.done():
            self._question.set_result(None)
        self._question = None

    def _fail_streams(self, error: LocalLLMError) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.push(error)


def _command() -> list[str]:
    return [sys.executable, "-m", "localllm.runtime.worker"]


def _environment() -> dict[str, str]:
    """The parent's, without llama.cpp's wait for a debugger at an abort, with UTF-8 on stderr."""
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1", "PYTHONUTF8": "1"}
    home = str(Path(__file__).resolve().parents[2])
    if home in sys.path:  # not installed, found beside the parent's script: the child must look there too
        environment["PYTHONPATH"] = os.pathsep.join([home, *filter(None, [environment.get("PYTHONPATH")])])
    return environment
