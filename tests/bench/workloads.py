"""The seven workloads that servers are compared by, over an OpenAI-compatible chat endpoint."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from attrs import field, frozen

ASSISTANT = {"role": "system", "content": "You are a helpful coding assistant."}
FOUNDING_QUESTION = "Write a Python function that returns the n-th Fibonacci number iteratively. Explain it briefly."
RULES = (
    "The project keeps its modules small and its names plain. Every function states its inputs, outputs and errors, "
    "and a reader can follow one request from the door to the engine. "
) * 24
VERBS = (
    *("sort", "reverse", "merge", "split", "count", "filter", "group", "rotate", "flatten", "parse", "encode"),
    *("hash", "shuffle", "sum", "zip", "chunk", "trim", "join", "index", "search"),
)
SIGNATURE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "function_name": {"type": "string", "maxLength": 24},
        "parameters": {
            "type": "array",
            "minItems": 3,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "parameter_name": {"type": "string", "maxLength": 12},
                    "parameter_type": {"enum": ["string", "integer", "boolean"]},
                    "is_required": {"type": "boolean"},
                },
                "required": ["parameter_name", "parameter_type", "is_required"],
                "additionalProperties": False,
            },
        },
        "return_type": {"enum": ["string", "integer", "boolean"]},
    },
    "required": ["function_name", "parameters", "return_type"],
    "additionalProperties": False,
}
SOURCE = "\n".join(
    f"def step_{number}(value):\n    total = value + {number}\n    print('step {number}', total)\n    return total\n"
    for number in range(6)
)


@frozen(kw_only=True)
class Answer:
    """One answered request: seconds, tokens, text; `stamps` are the arrival times of a stream's pieces."""

    seconds: float
    tokens: int
    text: str = ""
    stamps: tuple[float, ...] = ()


@frozen(kw_only=True)
class Sample:
    """One round of one workload; `latencies` are requests, or gaps between tokens where the workload is about gaps."""

    latencies: list[float]
    tokens: int
    wall_s: float
    side: list[float] = field(factory=list)


class Client:
    """Asks one server. Greedy and seeded, so that servers with the same model do the same work."""

    def __init__(self, url: str, model: str = "local-model") -> None:
        self.model = model
        self.http = httpx.AsyncClient(base_url=url, timeout=300, trust_env=False)

    def _body(self, messages: list[dict[str, str]], max_tokens: int, **more: Any) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "seed": 1,
            **more,
        }

    async def ask(self, messages: list[dict[str, str]], max_tokens: int, **more: Any) -> Answer:
        """Ask without streaming."""
        start = time.perf_counter()
        reply = await self.http.post("/v1/chat/completions", json=self._body(messages, max_tokens, **more))
        seconds = time.perf_counter() - start
        if reply.status_code != 200:
            raise RuntimeError(f"{reply.status_code}: {reply.text[:300]}")
        document = reply.json()
        text = document["choices"][0]["message"].get("content") or ""
        return Answer(seconds=seconds, tokens=document["usage"]["completion_tokens"], text=text)

    async def stream(self, messages: list[dict[str, str]], max_tokens: int) -> Answer:
        """Ask with streaming and note when each piece of text arrives."""
        stamps: list[float] = []
        text = ""
        start = time.perf_counter()
        body = self._body(messages, max_tokens, stream=True)
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                raise RuntimeError(f"{reply.status_code}: {(await reply.aread())[:300]!r}")
            async for line in reply.aiter_lines():
                piece = streamed_text(line)
                if piece:
                    stamps.append(time.perf_counter())
                    text += piece
        return Answer(seconds=time.perf_counter() - start, tokens=len(stamps), text=text, stamps=tuple(stamps))


def streamed_text(line: str) -> str:
    """The text in one line of a chat completion stream, if there is any."""
    if not line.startswith("data: {"):
        return ""
    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""


def question(text: str) -> list[dict[str, str]]:
    return [ASSISTANT, {"role": "user", "content": text}]


def one_after_the_other(answers: list[Answer]) -> Sample:
    times = [answer.seconds for answer in answers]
    return Sample(latencies=times, tokens=sum(answer.tokens for answer in answers), wall_s=sum(times))


async def repeated(client: Client, _: int) -> Sample:
    """W1: the same short coding question, again and again."""
    return one_after_the_other([await client.ask(question(FOUNDING_QUESTION), 48) for _ in range(8)])


async def eight_clients(client: Client, number: int) -> Sample:
    """W2: eight clients at once, two questions each, all different."""

    async def one(which: int) -> list[Answer]:
        texts = [
            f"Write a Python function number {number}-{which * 10 + turn} that sorts a list of {which * 10 + turn} "
            "words. Explain it briefly."
            for turn in range(2)
        ]
        return [await client.ask(question(text), 64) for text in texts]

    start = time.perf_counter()
    groups = await asyncio.gather(*(one(which) for which in range(8)))
    wall_s = time.perf_counter() - start
    answers = [answer for group in groups for answer in group]
    return Sample(
        latencies=[answer.seconds for answer in answers], tokens=sum(a.tokens for a in answers), wall_s=wall_s
    )


async def shared_prefix(client: Client, number: int) -> Sample:
    """W3: eight questions at once under one long system prompt that nobody has seen before."""
    system = {"role": "system", "content": f"Session {number} {random.random()}. {RULES}"}
    start = time.perf_counter()
    answers = await asyncio.gather(
        *(client.ask([system, {"role": "user", "content": f"Question {i}: name one rule."}], 16) for i in range(8))
    )
    wall_s = time.perf_counter() - start
    return Sample(
        latencies=[answer.seconds for answer in answers], tokens=sum(a.tokens for a in answers), wall_s=wall_s
    )


async def disturbed_stream(client: Client, _: int) -> Sample:
    """W4: the gaps in a stream while two long new prompts arrive; `side` is what those take."""
    side: list[float] = []

    async def disturb() -> None:
        for _ in range(2):
            await asyncio.sleep(0.4)
            long_prompt = [{"role": "user", "content": f"{random.random()} {RULES}Say ok."}]
            side.append((await client.ask(long_prompt, 4)).seconds)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(disturb())
        answer = await client.stream(question(FOUNDING_QUESTION), 160)
    gaps = [after - before for before, after in zip(answer.stamps, answer.stamps[1:], strict=False)]
    return Sample(latencies=gaps, tokens=answer.tokens, wall_s=answer.seconds, side=side)


async def json_schema(client: Client, _: int) -> Sample:
    """W5: answers that must match a JSON Schema."""
    wanted = {
        "type": "json_schema",
        "json_schema": {"name": "signature", "schema": SIGNATURE_SCHEMA, "strict": True},
    }
    answers = []
    for which in range(3):
        text = f"Describe the function replace_all{which}(text, old, count) as JSON."
        answers.append(await client.ask([{"role": "user", "content": text}], 256, response_format=wanted))
        json.loads(answers[-1].text)
    return one_after_the_other(answers)


async def code_edit(client: Client, _: int) -> Sample:
    """W6: an answer that repeats most of its prompt."""
    text = f"Repeat this code exactly, but rename total to result.\n```python\n{SOURCE}```"
    return one_after_the_other([await client.ask([{"role": "user", "content": text}], 160) for _ in range(2)])


async def never_repeated(client: Client, number: int) -> Sample:
    """W7: short coding questions, each asked once."""
    answers = []
    for which in range(8):
        first, second = random.Random(f"{number}-{which}").sample(VERBS, 2)
        text = f"In Python, how do I {first} and then {second} {which + 2} lists? Case {number}{which}."
        answers.append(await client.ask(question(text), 48))
    return one_after_the_other(answers)


Workload = Callable[[Client, int], Awaitable[Sample]]
WORKLOADS: dict[str, Workload] = {
    "W1": repeated,
    "W2": eight_clients,
    "W3": shared_prefix,
    "W4": disturbed_stream,
    "W5": json_schema,
    "W6": code_edit,
    "W7": never_repeated,
}


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie, interpolated."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
