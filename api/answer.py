"""An answer that takes time, as an ASGI application: it watches the client, and one task does all of the work.

Every accepted request ends in exactly one way: a whole answer, an error body, or (once headers are out) an error
frame that ends the stream. A client that leaves cancels the task, which closes the executor's generator and so
frees the engine's sequence, in every phase.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from ..errors import LocalLLMError
from .errors import as_error, error_response

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Scope, Send

FIRST_EVENT_GRACE_S = 0.4
"""How long an answer that takes its time may be silent before its headers go out: a fault within it is a clean 4xx or
5xx, and a client that waits for headers waits little longer than half a second."""

Frames = AsyncGenerator[bytes, None]
WriteFault = Callable[[LocalLLMError], bytes]


@frozen(kw_only=True)
class Stream:
    """A streamed answer: `frames` are whole lines or blocks, each sent at once.

    The headers go out with the first frame. Where that takes longer they go out before it, so that the client does not
    give up: `FIRST_EVENT_GRACE_S` after `slow` is set, and after `hold_s` at the latest.

    `fault` writes the frame that ends a stream whose headers are out; `comment`, where the format has one, is sent
    after each `keep_alive_s` of silence.
    """

    frames: Frames
    media_type: str
    fault: WriteFault
    log: Callable[[Exception], None]
    keep_alive_s: float = 15.0
    comment: bytes | None = None
    more_headers: Mapping[str, str] = field(factory=dict)
    """Read when the headers go out: what the frames' source has put there by then goes with them."""
    hold_s: float = FIRST_EVENT_GRACE_S
    slow: asyncio.Event = field(factory=asyncio.Event)
    """Set by the frames' source once it waits for what takes long by its nature, such as a load."""
    detailed: bool = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; errors before its headers become an error body."""
        await run_while_connected(_Delivery(self, scope, receive, send).run, receive)


class _Delivery:
    """One run of a stream. The pump writes frames; a second task only flushes headers and fills silences."""

    def __init__(self, stream: Stream, scope: Scope, receive: Receive, send: Send) -> None:
        self.stream = stream
        self.asgi = (scope, receive, send)
        self.send = send
        self.headers_out = False
        self.opening = asyncio.Lock()
        self.sent_at = 0.0

    async def run(self) -> None:
        silence = asyncio.create_task(self._fill_silence())
        try:
            async with contextlib.aclosing(self.stream.frames) as frames:
                async for frame in frames:
                    await self._write(frame)
        except Exception as fault:
            error = as_error(fault)
            if error is not fault:
                self.stream.log(fault)
            await _cancel(silence)
            if not self.headers_out:
                await error_response(error, detailed=self.stream.detailed)(*self.asgi)
                return
            await self._write(self.stream.fault(error))
        finally:
            await _cancel(silence)
        await self._open()
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _open(self) -> None:
        """Send the headers, once; the lock, because both tasks may come here."""
        if self.headers_out:
            return
        async with self.opening:
            if not self.headers_out:
                await self.send({"type": "http.response.start", "status": 200, "headers": self._headers()})
                self.headers_out = True
                self.sent_at = asyncio.get_running_loop().time()

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", self.stream.media_type.encode()),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *((name.encode(), value.encode()) for name, value in self.stream.more_headers.items()),
        ]

    async def _write(self, frame: bytes) -> None:
        await self._open()
        self.sent_at = asyncio.get_running_loop().time()
        await self.send({"type": "http.response.body", "body": frame, "more_body": True})

    async def _fill_silence(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.stream.hold_s):
                await self.stream.slow.wait()
                await asyncio.sleep(FIRST_EVENT_GRACE_S)
        await self._open()
        comment, interval = self.stream.comment, self.stream.keep_alive_s
        if comment is None or interval <= 0:
            return
        loop = asyncio.get_running_loop()
        # frames are whole blocks, so a comment between two of them can't split one
        while True:
            silent = loop.time() - self.sent_at
            if silent >= interval:
                await self._write(comment)
                silent = 0.0
            await asyncio.sleep(interval - silent)


@frozen(kw_only=True)
class Whole:
    """An answer that is one body: `make` gives the response when it is done, or raises."""

    make: Callable[[], Coroutine[Any, Any, ASGIApp]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Make the response while the client is there, then send it."""

        async def deliver() -> None:
            response = await self.make()
            await response(scope, receive, send)

        await run_while_connected(deliver, receive)


async def run_while_connected(work: Callable[[], Coroutine[Any, Any, None]], receive: Receive) -> None:
    """Run `work` in a task of its own, and cancel it as soon as the client is gone.

    One task from start to end: an async generator that crosses tasks can't be cancelled cleanly.
    """
    task = asyncio.create_task(work())
    watch = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # also when the server itself gives up on the request
        left = not task.done()
        await _cancel(watch)
        await _cancel(task)
    if not left:
        task.result()


async def _gone(receive: Receive) -> None:
    """Return when the client has closed the connection; what is left of its body is thrown away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel and wait until it has ended, so that nothing it holds outlives the request."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        # read, or asyncio reports it as forgotten
        task.exception()
