"""The plans of `localllm bench …`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, option

MODEL = "Model to measure; unset takes the default one"


@frozen(kw_only=True)
class BenchLatency:
    """Measure the latency of a short coding request, one at a time."""

    command: ClassVar[Literal["bench.latency"]] = "bench.latency"
    where: ClassVar[Where] = "either"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "network", "gpu")
    on_server: ClassVar[bool] = False

    model: str | None = option(None, help=MODEL, min_length=1)
    requests: int = option(16, help="Requests to measure", ge=1, le=100_000)
    warmup: int = option(2, help="Requests before those that count", ge=0, le=1000)
    max_tokens: int = option(48, help="Tokens an answer may have", ge=1, le=100_000)


@frozen(kw_only=True)
class BenchThroughput:
    """Measure tokens a second with several clients at once."""

    command: ClassVar[Literal["bench.throughput"]] = "bench.throughput"
    where: ClassVar[Where] = "either"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "network", "gpu")
    on_server: ClassVar[bool] = False

    model: str | None = option(None, help=MODEL, min_length=1)
    clients: int = option(8, help="Clients that ask at the same time", ge=1, le=256)
    requests: int = option(2, help="Requests a client sends, one after the other", ge=1, le=100_000)
    max_tokens: int = option(64, help="Tokens an answer may have", ge=1, le=100_000)
