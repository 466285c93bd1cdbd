"""`POST /v1/chat/completions`, `/v1/completions` and `/apply-template`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from ..errors import InternalError, LocalLLMError
from ..executors.context import read_whole
from ..executors.dispatch import dispatch
from ..executors.events import Delta, Progress, Record, Result
from ..planner.codec import load_plan
from .answer import Frames, Stream, Whole
from .body import AnyRequest, asks_for_dry_run, json_object
from .chunks import COMMENT, DONE, Chunks, TextChunks, error_frame
from .errors import json_response
from .server import Server
from .wire import Call, chat_call, respell, text_call

if TYPE_CHECKING:
    from ..executors.events import Events

NOTES_HEADER = "x-localllm-notes"
"""Tells what was repaired in a conversation that the model's template would not take as it came."""

VALIDATION_S = 15.0
"""How long the headers of a stream wait for its request to be taken or refused, where no setting says how long a stream
may be silent. A request is checked in milliseconds, so only a long line of others ahead makes it seconds; half of the
30 s after which the least patient of common proxies give up leaves room for what is between."""


def chat_routes(server: Server) -> list[HTTPRouteHandler]:
    """The endpoints of a server that ask a model."""

    @post("/v1/chat/completions", status_code=200)
    async def create_chat_completion(request: AnyRequest) -> ASGIApp:
        return _answer(server, chat_call(await json_object(request)), Chunks, dry_run=asks_for_dry_run(request))

    @post("/v1/completions", status_code=200)
    async def create_completion(request: AnyRequest) -> ASGIApp:
        return _answer(server, text_call(await json_object(request)), TextChunks, dry_run=asks_for_dry_run(request))

    @post("/apply-template", status_code=200)
    async def apply_template(request: AnyRequest) -> ASGIApp:
        call = chat_call({**await json_object(request), "stream": None, "stream_options": None})
        shown = Call(plan={**call.plan, "show_prompt": True}, spelling=call.spelling)
        return _answer(server, shown, Chunks, dry_run=asks_for_dry_run(request), form=_as_prompt)

    return [create_chat_completion, create_completion, apply_template]


def _answer(
    server: Server,
    call: Call,
    chunks: type[Chunks],
    *,
    dry_run: bool,
    form: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> ASGIApp:
    """The application that answers one call; a plan that does not load is refused here."""
    try:
        plan = load_plan(call.plan)
    except LocalLLMError as fault:
        raise respell(fault, call.spelling) from None
    events = _respelt(dispatch(plan, server.dry() if dry_run else server.ctx), call)
    if dry_run:
        return Whole(make=lambda: _whole(events, dict))
    if not call.stream:
        return Whole(make=lambda: _whole(events, form))
    headers: dict[str, str] = {}
    slow = asyncio.Event()
    return Stream(
        frames=_frames(events, call, chunks, headers, slow),
        media_type="text/event-stream; charset=utf-8",
        fault=error_frame,
        log=server.log_fault,
        keep_alive_s=server.keep_alive_s,
        comment=COMMENT,
        more_headers=headers,
        hold_s=server.keep_alive_s or VALIDATION_S,
        slow=slow,
    )


async def _respelt(events: Events, call: Call) -> Events:
    """The same events; a refusal speaks of the client's fields."""
    try:
        async with aclosing(events) as running:  # type: ignore[type-var]
            async for event in running:
                yield event
    except LocalLLMError as fault:
        raise respell(fault, call.spelling) from None


async def _whole(events: Events, form: Callable[[dict[str, Any]], dict[str, Any]]) -> ASGIApp:
    read_whole.set(True)
    data = (await result_of(events)).data
    return json_response(form(data), headers=_notes_header(data))


def _notes_header(data: dict[str, Any]) -> dict[str, str]:
    notes = data.get("notes")
    return {NOTES_HEADER: "; ".join(notes).encode("ascii", "replace").decode()} if notes else {}


def _as_prompt(data: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp's name for the text, and what we tell besides."""
    return {"prompt": data["text"], **{name: value for name, value in data.items() if name != "text"}}


async def result_of(events: Events) -> Result:
    """Run to the end and give the result."""
    async with aclosing(events) as running:  # type: ignore[type-var]
        async for event in running:
            if isinstance(event, Result):
                return event
    raise InternalError("the request ended without a result")


async def _frames(
    events: Events, call: Call, kind: type[Chunks], headers: dict[str, str], slow: asyncio.Event
) -> Frames:
    """The events as OpenAI's frames, `[DONE]` last; `slow` is set once a model is being loaded for it."""
    chunks: Chunks | None = None
    async with aclosing(events) as running:  # type: ignore[type-var]
        async for event in running:
            if isinstance(event, Delta) and chunks is not None:
                yield chunks.delta(event)
            elif isinstance(event, Progress) and event.stage == "loading":
                slow.set()
            elif isinstance(event, Record) and chunks is None:
                headers |= _notes_header(event.data)
                chunks = kind(event.data, include_usage=call.include_usage)
            elif isinstance(event, Result) and chunks is not None:
                yield chunks.usage(_usage(event)) + DONE
                return
    raise InternalError("the request ended without a result")


def _usage(result: Result) -> dict[str, Any]:
    usage: dict[str, Any] = result.data["usage"]
    return usage
