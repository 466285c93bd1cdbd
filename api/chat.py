"""`POST /v1/chat/completions`."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from ..errors import InternalError, InvalidPlan
from ..executors.dispatch import dispatch
from ..executors.events import Delta, Record, Result
from ..planner.codec import load_plan
from .answer import Frames, Stream, Whole
from .body import AnyRequest, asks_for_dry_run, json_object
from .errors import json_response
from .server import Server
from .wire import COMMENT, DONE, ChatCall, Chunks, chat_call, error_frame, respell

if TYPE_CHECKING:
    from ..executors.events import Events


def chat_routes(server: Server) -> list[HTTPRouteHandler]:
    """The chat endpoint of a server."""

    @post("/v1/chat/completions", status_code=200)
    async def create_chat_completion(request: AnyRequest) -> ASGIApp:
        call = chat_call(await json_object(request))
        dry_run = asks_for_dry_run(request)
        try:
            plan = load_plan(call.plan)
        except InvalidPlan as fault:
            raise respell(fault, call.spelling) from None
        events = dispatch(plan, server.dry() if dry_run else server.ctx)
        if dry_run or not call.stream:
            return Whole(make=lambda: _whole(events))
        return Stream(
            frames=_frames(events, call),
            media_type="text/event-stream; charset=utf-8",
            fault=error_frame,
            log=server.log_fault,
            keep_alive_s=server.keep_alive_s,
            comment=COMMENT,
        )

    return [create_chat_completion]


async def _whole(events: Events) -> ASGIApp:
    return json_response((await result_of(events)).data)


async def result_of(events: Events) -> Result:
    """Run to the end and give the result."""
    async with aclosing(events) as running:  # type: ignore[type-var]
        async for event in running:
            if isinstance(event, Result):
                return event
    raise InternalError("the request ended without a result")


async def _frames(events: Events, call: ChatCall) -> Frames:
    """The events as OpenAI's frames, `[DONE]` last."""
    chunks: Chunks | None = None
    async with aclosing(events) as running:  # type: ignore[type-var]
        async for event in running:
            if isinstance(event, Delta) and chunks is not None:
                yield chunks.delta(event)
            elif isinstance(event, Record) and chunks is None:
                chunks = Chunks(event.data, include_usage=call.include_usage)
            elif isinstance(event, Result) and chunks is not None:
                yield chunks.usage(_usage(event)) + DONE
                return
    raise InternalError("the request ended without a result")


def _usage(result: Result) -> dict[str, Any]:
    usage: dict[str, Any] = result.data["usage"]
    return usage
