"""Measure what the engine adds to a decode: its tokens a second over those of a bare loop, both in one process.

The two take turns of a few dozen tokens on the same context, so that a drift of the machine's speed hits both alike.

Usage: decode.py [--model FILE] [--turns 20] [--tokens 32] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import llama_cpp
import servers
from localllm.runtime.backend import open_backend
from localllm.runtime.backend.llama import LlamaBackend
from localllm.runtime.engine.engine import Engine, Work
from localllm.runtime.types import GenerateRequest, LoadSpec, Sampling

MUST = 0.97
PROMPT = "<|im_start|>user\nTell me a long story about the sea.<|im_end|>\n<|im_start|>assistant\n"


def bare_seconds(backend: LlamaBackend, prompt: list[int], count: int) -> list[float]:
    """Seconds of each step of a loop that does nothing but decode and take the likeliest token."""
    context, sequence = backend.context, backend.info.n_sequences - 1
    chain = llama_cpp.llama_sampler_init_greedy()
    batch = llama_cpp.llama_batch_init(len(prompt), 0, 1)

    def decode(tokens: list[int], start: int) -> int:
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + i, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, i == len(tokens) - 1
        assert llama_cpp.llama_decode(context, batch) == 0
        return int(llama_cpp.llama_sampler_sample(chain, context, len(tokens) - 1))

    token, seconds = decode(prompt, 0), []
    for i in range(count):
        began = time.perf_counter()
        token = decode([token], len(prompt) + i)
        seconds.append(time.perf_counter() - began)
    llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), sequence, -1, -1)
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_sampler_free(chain)
    return seconds


def engine_seconds(engine: Engine, prompt: list[int], count: int, name: str) -> list[float]:
    """Seconds of each step of the engine, emitting its output included."""
    request = GenerateRequest(
        request_id=name,
        sampling=Sampling(temperature=0, ignore_eos=True),
        max_tokens=count + 1,
        cache_prompt=False,
    )
    engine.submit(Work(request=request, prompt_tokens=prompt), lambda output: None)
    engine.step()
    seconds, more = [], True
    while more:
        began = time.perf_counter()
        more = engine.step()
        seconds.append(time.perf_counter() - began)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args()
    path = given.model or servers.default_model()
    spec = LoadSpec(model_id="m", path=str(path), n_threads=given.threads, options={"speculation": False})
    backend = open_backend(spec)
    assert isinstance(backend, LlamaBackend)
    engine, prompt = Engine(backend), backend.tokenize(PROMPT)
    bare: list[float] = []
    whole: list[float] = []
    for turn in range(given.turns):
        bare += bare_seconds(backend, prompt, given.tokens)
        whole += engine_seconds(engine, prompt, given.tokens, str(turn))
    slow, fast = statistics.median(whole), statistics.median(bare)
    ratio = fast / slow
    figures = {
        "engine_tokens_per_s": round(1 / slow, 1),
        "bare_tokens_per_s": round(1 / fast, 1),
        "ratio": round(ratio, 4),
        "must": MUST,
    }
    print(json.dumps(figures))
    return 0 if ratio >= MUST else 1


if __name__ == "__main__":
    sys.exit(main())
