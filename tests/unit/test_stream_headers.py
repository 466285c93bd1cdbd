"""When a stream's headers go out: they wait for a refusal, which then has its own status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from localllm.api.answer import FIRST_EVENT_GRACE_S, Stream
from localllm.api.chunks import COMMENT, error_frame
from localllm.errors import BadInput

LONG_S = 600.0
Source = Callable[[asyncio.Event, asyncio.Event], AsyncGenerator[bytes, None]]
"""Frames, made with the event that says that they are slow, and the one that is set when the headers are out."""


def sent(source: Source, **options: Any) -> tuple[int, bytes]:
    """Status and body of a stream of such frames, for a client that stays."""

    async def whole() -> list[Any]:
        messages: list[Any] = []
        slow, out = asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            messages.append(message)
            if message["type"] == "http.response.start":
                out.set()

        async def receive() -> Any:
            await asyncio.Event().wait()

        stream = Stream(
            frames=source(slow, out),
            media_type="text/event-stream",
            fault=error_frame,
            log=lambda _fault: None,
            slow=slow,
            **options,
        )
        scope: Any = {"type": "http", "method": "POST", "path": "/", "headers": []}
        await asyncio.wait_for(stream(scope, receive, send), 200)
        return messages

    start, *bodies = asyncio.run(whole())
    return start["status"], b"".join(body["body"] for body in bodies)


async def refused_late(_slow: asyncio.Event, _out: asyncio.Event) -> AsyncGenerator[bytes, None]:
    await asyncio.sleep(3 * FIRST_EVENT_GRACE_S)
    raise BadInput("too long")
    yield b""


async def refused_after_a_slow_beginning(slow: asyncio.Event, out: asyncio.Event) -> AsyncGenerator[bytes, None]:
    slow.set()
    await out.wait()
    raise BadInput("too long")
    yield b""


async def refused_after_the_headers(_slow: asyncio.Event, out: asyncio.Event) -> AsyncGenerator[bytes, None]:
    await out.wait()
    raise BadInput("too long")
    yield b""


async def silent_for_a_while(slow: asyncio.Event, out: asyncio.Event) -> AsyncGenerator[bytes, None]:
    slow.set()
    await out.wait()
    await asyncio.sleep(0.3)
    yield b"data: 1\n\n"


def test_a_refusal_that_takes_its_time_still_has_its_status() -> None:
    status, body = sent(refused_late, hold_s=LONG_S)

    assert status == 400
    assert b"too long" in body


def test_a_source_that_says_that_it_is_slow_is_not_waited_for() -> None:
    status, body = sent(refused_after_a_slow_beginning, hold_s=LONG_S)

    assert status == 200
    assert body.startswith(b'data: {"error"')


def test_headers_go_out_when_the_longest_wait_is_over() -> None:
    status, body = sent(refused_after_the_headers, hold_s=0.05)

    assert status == 200
    assert body.startswith(b'data: {"error"')


def test_silence_after_early_headers_is_filled_with_comments() -> None:
    status, body = sent(silent_for_a_while, hold_s=LONG_S, keep_alive_s=0.05, comment=COMMENT)

    assert status == 200
    assert body.startswith(COMMENT)
    assert body.endswith(b"data: 1\n\n")
