"""Measure what the engine adds to a decode: its tokens a second over those of a bare loop and of llama.cpp's own bench.

The bare loop runs in this process on the same context. The bench is the program `llama-bench` on the same libraries,
see `llama_bench.py`. They take turns of a few dozen tokens, round by round, so that a drift of the machine's speed hits
them alike; a ratio is the median of the rounds' ratios.

The bench gets the engine's threads, attention, cache types, batch and layers, and starts as deep in the context. It
does less: it decodes random tokens, so it never looks for the likeliest one of the vocabulary, makes no text of it,
looks for no end and hands nothing on; and its cache has room for these tokens alone, the engine's for all its slots.
The bare loop takes the likeliest token and does nothing else. Nobody's prompt counts, and nobody guesses ahead.

Nothing else may want the threads: where one of two has to wait for a processor, the other waits for it at every step of
the model's graph, and what is measured is the scheduler.

Usage: decode.py [--model FILE] [--llama-bench FILE] [--rounds 10] [--turns 2] [--tokens 64] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import servers
from llama_bench import environment
from localllm.runtime.backend import open_backend
from localllm.runtime.backend.llama import LlamaBackend
from localllm.runtime.engine.engine import Engine, Work
from localllm.runtime.types import GenerateRequest, LoadSpec, Sampling

MUST = {"ratio": 0.97, "ratio_to_llama_bench": 0.98}
PROMPT = "<|im_start|>user\nTell me a long story about the sea.<|im_end|>\n<|im_start|>assistant\n"


def bare_rate(backend: LlamaBackend, prompt: list[int], count: int) -> float:
    """Tokens a second of a loop that does nothing but decode and take the likeliest token."""
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

    token = decode(prompt, 0)
    began = time.perf_counter()
    for i in range(count):
        token = decode([token], len(prompt) + i)
    seconds = time.perf_counter() - began
    llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), sequence, -1, -1)
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_sampler_free(chain)
    return count / seconds


def engine_rate(engine: Engine, prompt: list[int], count: int) -> float:
    """Tokens a second of the engine, emitting its output included."""
    request = GenerateRequest(
        request_id=str(time.monotonic_ns()),
        sampling=Sampling(temperature=0, ignore_eos=True),
        max_tokens=count + 1,
        cache_prompt=False,
    )
    engine.submit(Work(request=request, prompt_tokens=prompt), lambda output: None)
    assert engine.step(), "the prompt and the first token"
    began, steps, more = time.perf_counter(), 0, True
    while more:
        more, steps = engine.step(), steps + 1
    seconds = time.perf_counter() - began
    assert steps == count, f"{count} tokens took {steps} steps"
    return count / seconds


def llama_bench_rates(command: list[str]) -> list[float]:
    """Tokens a second of each repetition of one run of `llama-bench`."""
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        sys.exit(f"{done.stderr}\nerror: `{shlex.join(command)}` ended with {done.returncode}")
    (test,) = json.loads(done.stdout)
    rates: list[float] = test["samples_ts"]
    return rates


def llama_bench_command(program: Path, spec: LoadSpec, applied: dict[str, Any], sizes: dict[str, int]) -> list[str]:
    """The command that does as the engine does: same model, threads, attention, cache, batch and layers."""
    options = {
        "-m": spec.path,
        "-t": applied["n_threads"],
        "-fa": applied["flash_attention"],
        "-ctk": applied["cache_type_k"],
        "-ctv": applied["cache_type_v"],
        "-b": applied["n_batch"],
        "-ub": applied["n_ubatch"],
        "-ngl": applied["gpu_layers"],
        "-p": 0,
        **sizes,
        "-o": "json",
    }
    return [str(program), *(str(word) for pair in options.items() for word in pair)]


def measure(ways: dict[str, Callable[[], list[float]]], rounds: int) -> dict[str, list[float]]:
    """The median rate of each way in each round; who begins turns from round to round."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            found[name].append(statistics.median(ways[name]()))
        print(f"round {number + 1}: {', '.join(f'{name} {found[name][-1]:.1f}' for name in ways)}", file=sys.stderr)
    return found


def ratio(of: list[float], over: list[float]) -> float:
    """The median of the rounds' ratios."""
    return round(statistics.median(a / b for a, b in zip(of, over, strict=True)), 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--llama-bench", type=Path, default=None, help="the program to compare with")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2, help="of each in a round")
    parser.add_argument("--tokens", type=int, default=64, help="of a turn")
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args()
    path = given.model or servers.default_model()
    spec = LoadSpec(model_id="m", path=str(path), n_threads=given.threads, options={"speculation": False})
    backend = open_backend(spec)
    assert isinstance(backend, LlamaBackend)
    backend.grammar_tokenizer()  # made by a thread beside, which would take time from the first turns
    engine, prompt = Engine(backend), backend.tokenize(PROMPT)
    ways: dict[str, Callable[[], list[float]]] = {
        "bare": lambda: [bare_rate(backend, prompt, given.tokens) for _ in range(given.turns)],
        "engine": lambda: [engine_rate(engine, prompt, given.tokens) for _ in range(given.turns)],
    }
    if given.llama_bench is not None:
        sizes = {"-d": len(prompt), "-n": given.tokens, "-r": given.turns}
        command = llama_bench_command(given.llama_bench, spec, backend.info.applied, sizes)
        ways["llama_bench"] = lambda: llama_bench_rates(command)
    found = measure(ways, given.rounds)
    ratios = {"ratio": ratio(found["engine"], found["bare"])}
    if "llama_bench" in found:
        ratios["ratio_to_llama_bench"] = ratio(found["engine"], found["llama_bench"])
    rates = {f"{name}_tokens_per_s": round(statistics.median(found[name]), 1) for name in found}
    print(json.dumps({**rates, **ratios, "must": {name: MUST[name] for name in ratios}}))
    return 0 if all(ratios[name] >= MUST[name] for name in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
