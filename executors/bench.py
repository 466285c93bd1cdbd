"""`localllm bench …`: how fast answers come, measured the way a client sees it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen

from ..errors import LocalLLMError, RuntimeFailed
from ..planner.report import Facts
from .events import Progress, Result
from .loading import DEFAULT_NAME
from .preview import previewed

if TYPE_CHECKING:
    from ..planner.plans.bench import BenchLatency, BenchThroughput
    from .context import Context
    from .events import Events

SYSTEM = "You are a helpful coding assistant."
LATENCY_QUESTION = "Write a Python function that returns the n-th Fibonacci number iteratively. Explain it briefly."
ANSWER_TIMEOUT_S = 600.0

Ask = Callable[[str, int], Coroutine[Any, Any, "Sample"]]
"""Asks one question (`question, max_tokens`) and waits for the whole answer."""


@frozen(kw_only=True)
class Sample:
    """One measured request."""

    latency_ms: float
    prompt_tokens: int
    completion_tokens: int
    error: str | None = None


def preview_bench(plan: BenchLatency | BenchThroughput, ctx: Context) -> Facts:
    """Nothing is measured in a dry run; which side answers is not asked."""
    from .chat import preview_chat

    facts = preview_chat(_chat_plan(plan, "", plan.max_tokens), ctx)
    unknown = [item for item in facts.unknown if not item.startswith("the ")]
    return Facts(where="either", resolved=facts.resolved, unknown=(*unknown, "every figure"), warnings=facts.warnings)


@previewed(preview_bench)
async def latency(plan: BenchLatency, ctx: Context) -> Events:
    """One short, greedy coding request after the other, not streamed; the percentiles are over those that answered."""
    async with _asker(plan, ctx) as (ask, where):
        samples: list[Sample] = []
        for number in range(plan.warmup + plan.requests):
            counts = number >= plan.warmup
            stage = "measuring" if counts else "warming up"
            yield Progress(stage=stage, current=number, total=plan.warmup + plan.requests, unit="requests")
            sample = await ask(LATENCY_QUESTION, plan.max_tokens)
            if counts:
                samples.append(sample)
    good = [sample for sample in samples if sample.error is None]
    data = {**_latencies(good), "completion_tps_mean": _mean([_rate(sample) for sample in good])}
    yield _result(data, samples, plan, where)


@previewed(preview_bench)
async def throughput(plan: BenchThroughput, ctx: Context) -> Events:
    """Clients that ask at the same time, each a question of its own; tokens a second over the whole run."""
    import asyncio

    async with _asker(plan, ctx) as (ask, where):
        yield Progress(stage="warming up")
        await ask(LATENCY_QUESTION, 1)
        total = plan.clients * plan.requests
        yield Progress(stage="measuring", current=0, total=total, unit="requests")
        started = time.perf_counter()
        per_client = await asyncio.gather(*(_client(ask, number, plan) for number in range(plan.clients)))
        wall_s = time.perf_counter() - started
    samples = [sample for rows in per_client for sample in rows]
    good = [sample for sample in samples if sample.error is None]
    tokens = sum(sample.completion_tokens for sample in good)
    data = {
        "completion_tps": round(tokens / wall_s, 3),
        "requests_per_s": round(len(good) / wall_s, 3),
        "wall_s": round(wall_s, 3),
        "clients": plan.clients,
        **_latencies(good),
    }
    yield _result(data, samples, plan, where)


async def _client(ask: Ask, number: int, plan: BenchThroughput) -> list[Sample]:
    rows = []
    for turn in range(plan.requests):
        count = number * 10 + turn + 2
        question = f"Write a Python function that sorts a list of {count} words. Explain it briefly."
        rows.append(await ask(question, plan.max_tokens))
    return rows


@asynccontextmanager
async def _asker(plan: BenchLatency | BenchThroughput, ctx: Context) -> AsyncIterator[tuple[Ask, str]]:
    """How to ask, and where: over HTTP where a server answers, else a worker of this process."""
    from .asking import server_answers

    if not ctx.on_server and await server_answers(ctx):
        from .client import connect

        async with connect(ctx, timeout_s=ANSWER_TIMEOUT_S) as http:

            async def ask_server(question: str, max_tokens: int) -> Sample:
                from .client import ask_completion

                body = {**_body(question, max_tokens), "model": plan.model or DEFAULT_NAME}
                return await _measured(ask_completion(http, body, ctx))

            yield ask_server, "server"
        return

    ctx.runtime  # noqa: B018  made now, so that the context below shares it and its end is ours
    # where to ask is decided once, before the first request
    here = evolve(ctx, on_server=True)

    async def ask_here(question: str, max_tokens: int) -> Sample:
        return await _measured(_complete_here(_chat_plan(plan, question, max_tokens), here))

    yield ask_here, "embedded"


def _body(question: str, max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "seed": 1}


def _chat_plan(plan: BenchLatency | BenchThroughput, question: str, max_tokens: int) -> Any:
    from ..planner.chat_request import Message
    from ..planner.plans.chat import Chat

    body = _body(question, max_tokens)
    body["messages"] = tuple(Message(**message) for message in body["messages"])
    return Chat(model=plan.model or DEFAULT_NAME, **body)


async def _complete_here(plan: Any, ctx: Context) -> dict[str, Any]:
    from .chat import chat

    async with aclosing(chat(plan, ctx)) as events:  # type: ignore[type-var]
        async for event in events:
            if isinstance(event, Result):
                return event.data
    raise RuntimeFailed("the answer ended without a result")


async def _measured(answer: Coroutine[Any, Any, dict[str, Any]]) -> Sample:
    """Time one request. A fault that other requests may not have is a sample; one that all would have is raised."""
    started = time.perf_counter()
    try:
        usage = (await answer)["usage"]
    except LocalLLMError as error:
        if error.exit_code in (2, 3, 4, 7):
            raise
        return Sample(latency_ms=_ms_since(started), prompt_tokens=0, completion_tokens=0, error=error.message)
    return Sample(
        latency_ms=_ms_since(started),
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
    )


def _result(data: dict[str, Any], samples: list[Sample], plan: BenchLatency | BenchThroughput, where: str) -> Result:
    failed = sum(sample.error is not None for sample in samples)
    return Result(
        ok=failed == 0,
        data={
            **data,
            "success_count": len(samples) - failed,
            "failed_count": failed,
            "model": plan.model or DEFAULT_NAME,
            "where": where,
            "max_tokens": plan.max_tokens,
            "raw": [asdict(sample) for sample in samples],
        },
    )


def _latencies(samples: list[Sample]) -> dict[str, float | None]:
    values = sorted(sample.latency_ms for sample in samples)
    return {
        "p95_ms": percentile(values, 0.95),
        "p50_ms": percentile(values, 0.5),
        "mean_ms": _mean(values),
        "min_ms": values[0] if values else None,
        "max_ms": values[-1] if values else None,
    }


def percentile(ordered: list[float], share: float) -> float | None:
    """The value below which that share lies, between neighbours by straight line; None for no values."""
    if not ordered:
        return None
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return round(ordered[low] + (ordered[high] - ordered[low]) * (place - low), 3)


def _mean(values: list[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def _rate(sample: Sample) -> float:
    return sample.completion_tokens / sample.latency_ms * 1000


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
