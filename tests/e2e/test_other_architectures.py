"""What the small real model is not, through a whole worker: recurrent, with a sliding window, with an adapter.

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
from fixtures.bare_loop import BareAnswer, agreeing, bare_answers
from fixtures.tiny_models import write_gemma, write_llama, write_lora, write_mamba
from localllm.errors import ModelLoadFailed
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.types import Done, GenerateRequest, LoadedModel, LoadSpec, Output, Piece, Sampling

N = 12
FIRST = [1, *range(40, 130)]
"""Longer than gemma's window of 32 tokens."""
TURNS = [FIRST, [*FIRST, 300, 301, 302], FIRST, [1, *range(90, 150)], [*FIRST, 300, 301, 302, 303], FIRST[:60], FIRST]
WRITERS: dict[str, Callable[..., Path]] = {"llama": write_llama, "mamba": write_mamba, "gemma": write_gemma}

Answer = tuple[list[bytes], int]


async def answer(runtime: LocalRuntime, prompt: Sequence[int]) -> Answer:
    """The tokens of a greedy answer as text, and how many of the prompt were not computed again."""
    request = GenerateRequest(
        request_id=os.urandom(4).hex(),
        prompt=tuple(prompt),
        sampling=Sampling(temperature=0, ignore_eos=True),
        max_tokens=N,
        logprobs=0,
    )
    outputs: list[Output] = [output async for output in runtime.generate("m", request)]
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


@pytest.mark.parametrize(("name", "reuses"), [("llama", True), ("mamba", False), ("gemma", False)])
def test_only_memory_that_can_be_shared_is_reused(tmp_path: Path, name: str, reuses: bool) -> None:
    model, in_turns, _together = ask(spec_of(WRITERS[name](tmp_path / "m.gguf")), [FIRST, FIRST, [*FIRST, 300]])

    assert [cached > 0 for _texts, cached in in_turns] == [False, reuses, reuses]
    assert any("each prompt is computed whole" in warning for warning in model.warnings) is not reuses


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
