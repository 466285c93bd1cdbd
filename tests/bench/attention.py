"""Measure what a token costs by its depth in the context with each kind of attention.

A build with AVX512FP16 shows here: its flash attention takes twice as long as the plain one at 1,000 cells.

All contexts are open at once and take turns at each depth, so that a drift of the machine's speed hits them alike.

Usage: attention.py [--model FILE] [--threads 2] [--depths 32,96,256,1024] [--rounds 5]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp
import servers
from localllm.runtime.backend import open_backend
from localllm.runtime.backend.llama import LlamaBackend
from localllm.runtime.types import LoadSpec

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"flash_attention": "off"},
    "flash": {"flash_attention": "on"},
}
TOKENS = 12
"""Decoded at one depth in one turn."""


def fill(backend: LlamaBackend, tokens: list[int]) -> None:
    """Make the context hold exactly these tokens, in a sequence of its own."""
    llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(backend.context), 0, -1, -1)
    for start in range(0, len(tokens), 128):
        decode(backend, tokens[start : start + 128], start)


def decode(backend: LlamaBackend, tokens: list[int], start: int) -> None:
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, i == len(tokens) - 1
    assert llama_cpp.llama_decode(backend.context, batch) == 0
    llama_cpp.llama_batch_free(batch)


def milliseconds(backend: LlamaBackend, depth: int) -> list[float]:
    """Of each of some tokens, all at the same depth."""
    found = []
    for token in range(TOKENS):
        began = time.perf_counter()
        decode(backend, [1000 + token], depth)
        found.append((time.perf_counter() - began) * 1000)
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(backend.context), 0, depth, -1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depths", default="32,96,256,1024")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    path = str(given.model or servers.default_model())
    backends: dict[str, LlamaBackend] = {}
    for name, options in WAYS.items():
        backend = open_backend(LoadSpec(model_id="m", path=path, n_threads=given.threads, **options))
        assert isinstance(backend, LlamaBackend)
        backends[name] = backend
    drawn = random.Random(1)
    print(f"| cells before the token | {' | '.join(f'{name}, ms' for name in backends)} |")
    print(f"|---:|{'---:|' * len(backends)}")
    for depth in (int(word) for word in given.depths.split(",")):
        tokens = [drawn.randrange(1000, 40000) for _ in range(depth)]
        times: dict[str, list[float]] = {name: [] for name in backends}
        for backend in backends.values():
            fill(backend, tokens)
        for number in range(given.rounds):
            for name in list(backends) if number % 2 == 0 else list(backends)[::-1]:
                times[name] += milliseconds(backends[name], depth)
        print(f"| {depth} | {' | '.join(f'{statistics.median(found):.2f}' for found in times.values())} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
