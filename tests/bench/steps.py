"""Measure what a step of the model costs: by its depth in the context with each kind of attention, and by its rows.

A build with AVX512FP16 shows in the first table: its flash attention takes twice as long as the plain one at 1,000
cells. In the second all rows bring logits, as those of a guess do; what each adds bounds what guessing can win.

All contexts are open at once and take turns, so that a drift of the machine's speed hits them alike.

Usage: steps.py [--model FILE] [--threads 2] [--depths 32,96,256,1024] [--rows 1,2,4,8,16,32] [--rounds 5]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

import llama_cpp
import servers
from localllm.runtime.backend import Batch, open_backend
from localllm.runtime.backend.llama import LlamaBackend
from localllm.runtime.types import LoadSpec

WAYS = {"plain": "off", "flash": "on"}
REPEATED = 12
"""Steps of one kind in one turn."""
SHALLOW = 64
"""Cells before the rows of the second table."""


def fill(backend: LlamaBackend, tokens: list[int]) -> None:
    """Make the context hold exactly these tokens, in a sequence of its own."""
    llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(backend.context), 0, -1, -1)
    for start in range(0, len(tokens), 128):
        decode(backend, tokens[start : start + 128], start, 1)


def decode(backend: LlamaBackend, tokens: list[int], start: int, n_outputs: int) -> None:
    batch = Batch()
    batch.extend(tokens, start, 0, n_outputs)
    backend.decode(batch)


def milliseconds(backend: LlamaBackend, depth: int, rows: int) -> list[float]:
    """Of each of some steps of so many rows, all at the same depth."""
    found = []
    for number in range(REPEATED):
        began = time.perf_counter()
        decode(backend, [1000 + number + row for row in range(rows)], depth, rows)
        found.append((time.perf_counter() - began) * 1000)
        backend.remove(0, depth)
    return found


def compare(backends: dict[str, LlamaBackend], depth: int, rows: int, rounds: int) -> str:
    """A line of a table: the median milliseconds of each way."""
    drawn = random.Random(1)
    tokens = [drawn.randrange(1000, 40000) for _ in range(depth)]
    times: dict[str, list[float]] = {name: [] for name in backends}
    for backend in backends.values():
        fill(backend, tokens)
    for number in range(rounds):
        for name in list(backends) if number % 2 == 0 else list(backends)[::-1]:
            times[name] += milliseconds(backends[name], depth, rows)
    return " | ".join(f"{statistics.median(found):.2f}" for found in times.values())


def head(what: str, backends: dict[str, LlamaBackend]) -> str:
    return f"\n| {what} | {' | '.join(f'{name}, ms' for name in backends)} |\n|---:|{'---:|' * len(backends)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depths", default="32,96,256,1024")
    parser.add_argument("--rows", default="1,2,4,8,16,32")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    path = str(given.model or servers.default_model())
    backends: dict[str, LlamaBackend] = {}
    for name, attention in WAYS.items():
        spec = LoadSpec(model_id="m", path=path, n_threads=given.threads, flash_attention=attention)
        backend = open_backend(spec)
        assert isinstance(backend, LlamaBackend)
        backends[name] = backend
    print(head("cells before the token", backends))
    for depth in map(int, given.depths.split(",")):
        print(f"| {depth} | {compare(backends, depth, 1, given.rounds)} |", flush=True)
    print(head("rows of the step", backends))
    for rows in map(int, given.rows.split(",")):
        print(f"| {rows} | {compare(backends, SHALLOW, rows, given.rounds)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
