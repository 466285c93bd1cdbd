"""`localllm complete` and the completions endpoint: texts in, their continuations out."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ..errors import InternalError
from ..planner.report import Facts
from .asking import asked, asking_facts
from .events import Record, Result
from .preview import previewed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..planner.plans.complete import Complete
    from ..runtime.types import GenerateRequest, Output
    from .context import Context
    from .events import Events


def preview_complete(plan: Complete, ctx: Context) -> Facts:
    """Which file the name means here. Raises BadInput for fields that contradict each other."""
    from .request import text_requests

    text_requests(plan)
    return asking_facts(plan, ctx)[0]


@previewed(preview_complete)
async def complete(plan: Complete, ctx: Context) -> Events:
    """Continue each prompt: an envelope record, deltas, and the whole `text_completion` as the result.

    The choices of the first prompt come first. Where a prompt fails, all fail.
    """
    from .request import text_requests

    requests = text_requests(plan)
    async with aclosing(asked(plan, ctx, lambda model_id: _answer(requests, ctx, model_id))) as events:  # type: ignore[type-var]
        async for event in events:
            yield event


async def _answer(requests: list[GenerateRequest], ctx: Context, model_id: str) -> Events:
    from ..runtime.types import Done, Finished, Piece
    from .answer import Continuation, timings_of, usage_of

    n = requests[0].n
    choices = [Continuation(index=index) for index in range(len(requests) * n)]
    envelope: dict[str, Any] = {"id": f"cmpl-{requests[0].request_id}", "created": int(time.time()), "model": model_id}
    envelope["seed"] = requests[0].sampling.seed
    started, ended = 0, list[Done]()
    async with aclosing(_merged(requests, ctx, model_id)) as outputs:
        async for at, output in outputs:
            if isinstance(output, Piece):
                yield choices[at * n + output.index].piece(output)
            elif isinstance(output, Finished):
                yield choices[at * n + output.index].finished("stop" if output.reason == "stop" else "length")
            elif isinstance(output, Done):
                ended.append(output)
            else:
                started += 1
                if started == 1:
                    yield Record(data=envelope)
    if len(ended) < len(requests):
        raise InternalError("the answer ended without its last word")
    whole = {"id": envelope["id"], "object": "text_completion", **envelope}
    result: dict[str, Any] = {
        **whole,
        "choices": [choice.choice() for choice in choices],
        "usage": usage_of(*(done.usage for done in ended)),
        "timings": timings_of(ended[-1].timings),
    }
    yield Result(data=result)


async def _merged(
    requests: list[GenerateRequest], ctx: Context, model_id: str
) -> AsyncGenerator[tuple[int, Output], None]:
    """The outputs of all requests as they come, each with its request's place; the first fault ends all."""
    import asyncio  # a dry run does without it

    arrived: asyncio.Queue[tuple[int, Output | Exception | None]] = asyncio.Queue()

    async def take(at: int, request: GenerateRequest) -> None:
        try:
            async with aclosing(ctx.runtime.generate(model_id, request)) as outputs:  # type: ignore[type-var]
                async for output in outputs:
                    arrived.put_nowait((at, output))
            arrived.put_nowait((at, None))
        except Exception as fault:
            arrived.put_nowait((at, fault))

    tasks = [asyncio.create_task(take(at, request)) for at, request in enumerate(requests)]
    try:
        running = len(tasks)
        while running:
            at, output = await arrived.get()
            if output is None:
                running -= 1
            elif isinstance(output, Exception):
                raise output
            else:
                yield at, output
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
