"""Mixed load on one real server for a while: plain and streamed questions, cancels, wrong requests, long prompts.

Fails on an error that was not asked for, on an answer that holds another client's word, and on memory that grows.

Usage: soak.py [--minutes 30] [--clients 8]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import servers
from attrs import define, field
from workloads import RULES, streamed_text

WORDS = (
    *("zorblat", "quimbex", "fendrivo", "malptuk", "wobnira", "jaskolu", "hurnpel", "vextimo"),
    *("drogwin", "plazuni", "kerbosh", "ynthale", "gruvnok", "oskeldi", "bimtara", "morvelt"),
)
"""Made up: a model repeats one that it is asked for, and none comes to its mind by itself."""
LEAST_HEARD = 1 / 3
"""Of the answers, cut ones among them, so many say their client's word: else nobody would hear a stranger's."""
FLAT = 1.05
SETTLING_SHARE = 1 / 6
"""Of the whole time: caches fill while this lasts, so memory is compared from here on (5 of 30 minutes)."""
WRONG: tuple[tuple[dict[str, object], int], ...] = (
    ({"temperature": -1}, 400),
    ({"messages": []}, 400),
    ({"max_tokens": 0}, 400),
    ({"model": "nope"}, 404),
    ({"messages": [{"role": "user", "content": RULES * 20}]}, 400),
)


@define
class Tally:
    """What happened so far."""

    done: Counter[str] = field(factory=Counter)
    answers: int = 0
    heard: int = 0
    """Answers that say their client's word."""
    faults: list[str] = field(factory=list)
    memory: list[tuple[float, int]] = field(factory=list)


@define
class Visitor:
    """One client with a word of its own."""

    http: httpx.AsyncClient
    word: str
    strangers: frozenset[str]
    """What the other clients ask for."""
    tally: Tally
    chance: random.Random

    def body(self, **more: object) -> dict[str, object]:
        text = f"Write one short sentence with the word {self.word}. The sentence is about a {self.word}."
        body: dict[str, object] = {
            "model": "local-model",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.chance.choice((8, 24, 48)),
            "temperature": self.chance.choice((0, 0.7)),
        }
        return body | more

    async def plain(self) -> None:
        reply = await self.http.post("/v1/chat/completions", json=self.body())
        if reply.status_code != 200:
            self.tally.faults.append(f"plain: {reply.status_code} {reply.text[:200]}")
            return
        self.check(reply.json()["choices"][0]["message"].get("content") or "")

    async def streamed(self) -> None:
        self.check(await self.read_stream(self.body(stream=True), limit=None))

    async def cancelled(self) -> None:
        self.check(await self.read_stream(self.body(stream=True, max_tokens=400), limit=self.chance.randint(1, 12)))

    async def long_prompt(self) -> None:
        text = f"{RULES}{self.chance.random()} Write one sentence about the word {self.word}."
        body = self.body(stream=True, messages=[{"role": "user", "content": text}])
        limit = 1 if self.chance.random() < 0.3 else None
        self.check(await self.read_stream(body, limit))

    async def cancelled_at_once(self) -> None:
        """The client hangs up in the queue or in the prompt, before a byte has come."""
        body = self.body(messages=[{"role": "user", "content": f"{self.chance.random()} {RULES}"}])
        try:
            await self.http.post("/v1/chat/completions", json=body, timeout=self.chance.uniform(0.01, 0.3))
        except httpx.TimeoutException:
            pass

    async def wrong(self) -> None:
        change, status = self.chance.choice(WRONG)
        reply = await self.http.post("/v1/chat/completions", json=self.body(**change))
        if reply.status_code != status or "message" not in reply.json()["error"]:
            self.tally.faults.append(f"wrong request {list(change)}: {reply.status_code} {reply.text[:200]}")

    async def status(self) -> None:
        reply = await self.http.post("/admin/plans", json={"plan": {"command": "status"}, "dry_run": False})
        if reply.status_code != 200:
            self.tally.faults.append(f"status: {reply.status_code} {reply.text[:200]}")

    async def read_stream(self, body: dict[str, object], limit: int | None) -> str:
        """The stream's text, read to the end or hung up after `limit` pieces."""
        text, pieces, last = "", 0, ""
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                self.tally.faults.append(f"stream: {reply.status_code} {(await reply.aread())[:200]!r}")
                return ""
            async for line in reply.aiter_lines():
                last = line or last
                if line.startswith('data: {"error"'):
                    self.tally.faults.append(f"in a stream: {line[:300]}")
                piece = streamed_text(line)
                text, pieces = text + piece, pieces + bool(piece)
                if limit is not None and pieces >= limit:
                    return text
        if last != "data: [DONE]":
            self.tally.faults.append(f"a stream ended without [DONE]: {last[:200]}")
        return text

    def check(self, text: str) -> None:
        said = text.lower()
        self.tally.answers += bool(said)
        self.tally.heard += self.word in said
        # beside its own word too: an answer may be mixed of two
        if strangers := [word for word in self.strangers if word in said]:
            self.tally.done["answers with a stranger's word"] += 1
            self.tally.faults.append(f"`{self.word}` got {strangers}: {text[:200]}")


async def visit(visitor: Visitor, until: float) -> None:
    actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
        (visitor.plain, 6),
        (visitor.streamed, 6),
        (visitor.cancelled, 3),
        (visitor.cancelled_at_once, 2),
        (visitor.long_prompt, 2),
        (visitor.wrong, 3),
        (visitor.status, 1),
    ]
    choices, weights = zip(*actions, strict=True)
    while time.monotonic() < until:
        (action,) = visitor.chance.choices(choices, weights)
        try:
            await action()
        except Exception as error:
            visitor.tally.faults.append(f"{action.__name__}: {error!r}")
        visitor.tally.done[action.__name__] += 1


async def watch(server: servers.Server, tally: Tally, start: float, until: float) -> None:
    """Note the memory every few seconds and say each minute how it goes."""
    said, told = start, 0
    while time.monotonic() < until:
        now = time.monotonic()
        tally.memory.append((now - start, server.resident_bytes()))
        for fault in tally.faults[told:]:
            print(f"fault at {now - start:.0f} s: {fault}", file=sys.stderr, flush=True)
        told = len(tally.faults)
        if now - said >= 60:
            said = now
            line = f"{now - start:.0f} s: {sum(tally.done.values())} requests, {len(tally.faults)} faults"
            print(f"{line}, {tally.memory[-1][1] / 1e6:.0f} MB", file=sys.stderr, flush=True)
        await asyncio.sleep(2)


async def soak(server: servers.Server, clients: int, seconds: float) -> Tally:
    tally, start = Tally(), time.monotonic()
    until = start + seconds
    async with httpx.AsyncClient(base_url=server.url, timeout=300, trust_env=False) as http:
        words = [WORDS[number % len(WORDS)] for number in range(clients)]
        visitors = [
            Visitor(
                http=http,
                word=word,
                strangers=frozenset(words) - {word},
                tally=tally,
                chance=random.Random(number),
            )
            for number, word in enumerate(words)
        ]
        await asyncio.gather(*(visit(one, until) for one in visitors), watch(server, tally, start, until))
        reply = await http.post("/admin/plans", json={"plan": {"command": "status"}, "dry_run": False})
        models = json.loads(reply.text.splitlines()[-1])["data"]["models"]
        if left := [slot for model in models for slot in model["slots"]]:
            tally.faults.append(f"sequences are left behind: {left}")
    return tally


def growth(memory: list[tuple[float, int]], seconds: float) -> float:
    """Median memory of the last sixth of the time over that of the first sixth after settling."""
    settled = [bytes_ for at, bytes_ in memory if at >= seconds * SETTLING_SHARE]
    share = max(1, len(settled) // 5)
    return statistics.median(settled[-share:]) / statistics.median(settled[:share])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    model = given.model or servers.default_model()
    with servers.localllm(model, args=("--n-slots", "8")) as server:
        tally = asyncio.run(soak(server, given.clients, given.minutes * 60))
        if server.process.poll() is not None:
            tally.faults.append("the server ended by itself")
    if tally.heard < LEAST_HEARD * tally.answers or not tally.answers:
        tally.faults.append(f"only {tally.heard} of {tally.answers} answers say their client's word")
    grown = growth(tally.memory, given.minutes * 60)
    print(f"{tally.heard} of {tally.answers} answers say their client's word")
    print(json.dumps(dict(tally.done)))
    print(f"memory at the end over memory after settling: {grown:.3f} (must be ≤ {FLAT})")
    print(f"{len(tally.faults)} faults")
    for fault in tally.faults[:20]:
        print("  " + fault)
    return 0 if not tally.faults and grown <= FLAT else 1


if __name__ == "__main__":
    sys.exit(main())
