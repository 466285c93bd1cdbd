"""What the small real model is not, through a whole worker: recurrent, hybrid, with a sliding window, with an adapter.

Each answer must be the bare loop's, token for token up to a tie: such memory cannot share prefixes or be rewound, and
a runtime that did so anyway would go on from a wrong state.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from fixtures.bare_loop import BareAnswer, agreeing, bare_answers
from fixtures.tiny_models import write_gemma, write_hybrid, write_llama, write_lora, write_mamba
from localllm.errors import ModelLoadFailed
from localllm.runtime.models.gguf import read_header
from localllm.runtime.models.shape import model_shape
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.types import Done, GenerateRequest, LoadedModel, LoadSpec, Output, Piece, Sampling

N = 12
FIRST = [1, *range(40, 130)]
"""Longer than gemma's window of 32 tokens."""
TURNS = [FIRST, [*FIRST, 300, 301, 302], FIRST, [1, *range(90, 150)], [*FIRST, 300, 301, 302, 303], FIRST[:60], FIRST]
WRITERS: dict[str, Callable[..., Path]] = {
    "llama": write_llama,
    "mamba": write_mamba,
    "hybrid": write_hybrid,
    "gemma": write_gemma,
}

Answer = tuple[list[bytes], int]


async def outputs_of(runtime: LocalRuntime, prompt: Sequence[int], n: int, **fields: Any) -> list[Output]:
    """A greedy answer of `n` tokens with their log-probabilities."""
    request = GenerateRequest(
        request_id=os.urandom(4).hex(),
        prompt=tuple(prompt),
        sampling=Sampling(temperature=0, ignore_eos=True, seed=1),
        max_tokens=n,
        logprobs=0,
        **fields,
    )
    return [output async for output in runtime.generate("m", request)]


async def answer(runtime: LocalRuntime, prompt: Sequence[int], n: int = N) -> Answer:
    """The tokens of a greedy answer as text, and how many of the prompt were not computed again."""
    outputs = await outputs_of(runtime, prompt, n)
    texts = [each.token for output in outputs if isinstance(output, Piece) for each in output.logprobs]
    (done,) = [output for output in outputs if isinstance(output, Done)]
    return texts, done.usage.cached_tokens


def ask(spec: LoadSpec, prompts: Sequence[Sequence[int]]) -> tuple[LoadedModel, list[Answer], list[Answer]]:
    """The model's report, and every prompt's answer: one after the other, then all at once."""

    async def scenario() -> tuple[LoadedModel, list[Answer], list[Answer]]:
        runtime = LocalRuntime()
        try:
            model = await runtime.load(spec)
            in_turns = [await answer(runtime, prompt) for prompt in prompts]
            together = await asyncio.gather(*(answer(runtime, prompt) for prompt in prompts))
            return model, in_turns, list(together)
        finally:
            await runtime.aclose()

    return asyncio.run(asyncio.wait_for(scenario(), 250))


def spec_of(path: Path, **asked: Any) -> LoadSpec:
    return LoadSpec(model_id="m", path=str(path), n_ctx=256, n_slots=4, n_threads=2, **asked)


def agreement(answers: Sequence[Answer], expected: Sequence[BareAnswer]) -> float:
    """The share of tokens that are the bare loop's."""
    agreed = [agreeing(texts, bare) for (texts, _cached), bare in zip(answers, expected, strict=True)]
    return sum(agreed) / (N * len(expected))


@pytest.mark.parametrize("name", list(WRITERS))
def test_answers_in_turns_and_together_are_the_bare_loops(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / "m.gguf")
    expected = bare_answers(path, TURNS, N)
    _model, in_turns, together = ask(spec_of(path), TURNS)

    assert len({str(bare) for bare in expected}) > 3
    assert agreement(in_turns, expected) > 0.6
    assert agreement(together, expected) > 0.6


@pytest.mark.parametrize(("name", "reuses"), [(name, name == "llama") for name in WRITERS])
def test_only_memory_that_can_be_shared_is_reused(tmp_path: Path, name: str, reuses: bool) -> None:
    model, in_turns, _together = ask(spec_of(WRITERS[name](tmp_path / "m.gguf")), [FIRST, FIRST, [*FIRST, 300]])

    assert [cached > 0 for _texts, cached in in_turns] == [False, reuses, reuses]
    assert any("each prompt is computed whole" in warning for warning in model.warnings) is not reuses


def test_a_sliding_window_keeps_no_more_than_it_sees_and_answers_the_same(tmp_path: Path) -> None:
    path = write_gemma(tmp_path / "m.gguf")
    long = [1, *range(40, 340)]
    (expected,) = bare_answers(path, [long], 100)

    async def scenario() -> tuple[LoadedModel, list[bytes]]:
        runtime = LocalRuntime()
        try:
            model = await runtime.load(evolve(spec_of(path), n_ctx=512, n_ubatch=64))
            return model, (await answer(runtime, long, 100))[0]
        finally:
            await runtime.aclose()

    model, texts = asyncio.run(asyncio.wait_for(scenario(), 250))
    (told,) = [each for each in model.memory["estimate"]["devices"] if each["name"] == "CPU"]
    whole, window = model.applied["n_ctx_pool"], 256
    assert whole > 4 * window
    assert told["kv_bytes"] * 6 * whole == sum_of_whole_cache(path, whole) * (whole + 5 * window)
    assert sum(model.memory["kv_buffers"].values()) == pytest.approx(told["kv_bytes"], rel=0.02)
    assert agreeing(texts, expected) > 60


def sum_of_whole_cache(path: Path, cells: int) -> int:
    """Bytes of a cache in which every layer keeps every cell."""
    shape = model_shape([read_header(path)])
    return sum(cells * layer.cell_bytes("f16", "f16") for layer in shape.attention)


@pytest.mark.parametrize("how", [{"cache_prompt": False}, {"determinism": "strict"}], ids=str)
def test_a_sliding_window_repeats_itself_whatever_was_asked_before(tmp_path: Path, how: dict[str, Any]) -> None:
    path, prompts = write_gemma(tmp_path / "m.gguf"), [FIRST, FIRST[:20]]

    async def scenario() -> list[list[list[Output]]]:
        runtime = LocalRuntime()
        try:
            await runtime.load(evolve(spec_of(path), n_ctx=512, n_ubatch=64))
            told = []
            for number in range(8):
                told.append([await outputs_of(runtime, prompt, N, **how) for prompt in prompts])
                others = [[1, *range(50, 60 + 31 * (number * 4 + each) % 150)] for each in range(4)]
                lengths = [1 + 37 * (number * 4 + each) % 120 for each in range(4)]
                await asyncio.gather(*(answer(runtime, *each) for each in zip(others, lengths, strict=True)))
            return told
        finally:
            await runtime.aclose()

    first, *later = asyncio.run(asyncio.wait_for(scenario(), 250))

    def logprobs(answers: list[list[Output]]) -> list[float]:
        return [each.logprob for outputs in answers for o in outputs if isinstance(o, Piece) for each in o.logprobs]

    assert len(logprobs(first)) == 2 * N
    assert [logprobs(each) == logprobs(first) for each in later] == [True] * 7


def test_an_adapter_changes_the_answer_as_in_the_bare_loop(tmp_path: Path) -> None:
    path, adapter = write_llama(tmp_path / "m.gguf"), write_lora(tmp_path / "style.gguf")
    prompts = [FIRST, FIRST[:50]]
    plain = bare_answers(path, prompts, N)
    adapted = {scale: bare_answers(path, prompts, N, [(adapter, scale)]) for scale in (1.0, 0.5)}

    assert len({str([text for text, _gap in bare[0]]) for bare in (plain, *adapted.values())}) == 3
    for scale, expected in adapted.items():
        spec = spec_of(path, adapters=(("style", scale),), adapter_paths=(str(adapter),))
        model, in_turns, together = ask(spec, prompts)

        assert agreement(in_turns, expected) > 0.5
        assert agreement(together, expected) > 0.5
        assert model.applied["adapters"] in ((("style", scale),), [["style", scale]])
        assert sum(model.memory["lora_buffers"].values()) > 0


def test_an_adapter_of_another_shape_is_refused_with_a_reason(tmp_path: Path) -> None:
    path, adapter = write_llama(tmp_path / "m.gguf", n_layers=2), write_lora(tmp_path / "style.gguf", n_layers=4)

    with pytest.raises(ModelLoadFailed, match="the adapter `style` does not go with `m`: ") as caught:
        ask(spec_of(path, adapters=(("style", 1.0),), adapter_paths=(str(adapter),)), [])
    assert "no reason" not in caught.value.message
