"""What is drawn has the distribution of the model's logits, two answers at once, guessed ahead or not.

The expected one is computed by hand from the logits of single decodes. Seeds are fixed, so a run repeats itself; a
right engine misses the bound with one set of seeds in some millions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from fixtures.asking import Asking
from fixtures.tiny_models import write_llama
from localllm.runtime.backend import Backend, Batch, open_backend
from localllm.runtime.engine.cost import CostModel
from localllm.runtime.engine.engine import Engine
from localllm.runtime.types import LoadSpec, Sampling

PROMPTS = ([1, 290, 291, 295, 300, 291, 310, 320, 300, 291], [1, 350, 340, 330, 320, 310, 300, 340, 330, 290, 281])
SAID = (291, 300, 330, 340)
"""Tokens that answers are made of, so that they come again, and what looks back at them has something to see."""
PLAIN = Sampling(temperature=1.0, top_k=4, top_p=1.0, min_p=0.0, logit_bias=tuple((token, 12.0) for token in SAID))
PENALIZED = evolve(PLAIN, repeat_penalty=1.03, presence_penalty=0.2, frequency_penalty=0.5)
N, DEPTH = 1500, 3
Tokens = tuple[int, ...]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    path = write_llama(tmp_path_factory.mktemp("model") / "m.gguf")
    spec = LoadSpec(model_id="m", path=str(path), n_ctx=64, n_slots=2, n_threads=1, gpu_layers=0)
    loaded = open_backend(spec)
    yield loaded
    loaded.close()


def probabilities(backend: Backend, tokens: list[int], sampling: Sampling) -> dict[int, float]:
    """Of each token that may follow."""
    backend.remove(0, 0)
    batch = Batch()
    batch.extend(tokens, 0, 0, 1)
    backend.decode(batch)
    logits = backend.logits(len(tokens) - 1).astype(np.float64)
    backend.remove(0, 0)
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    for token, count in Counter(tokens).items():
        repeated = logits[token] * sampling.repeat_penalty ** (-1 if logits[token] > 0 else 1)
        logits[token] = repeated - count * sampling.frequency_penalty - sampling.presence_penalty
    likeliest = np.argsort(-logits)[: sampling.top_k]
    weights = np.exp((logits[likeliest] - logits[likeliest[0]]) / sampling.temperature)
    return dict(zip(likeliest.tolist(), (weights / weights.sum()).tolist(), strict=True))


def expected(backend: Backend, prompt: list[int], sampling: Sampling) -> dict[Tokens, float]:
    """The chance of each beginning of an answer."""
    found: dict[Tokens, float] = {(): 1.0}
    for _ in range(DEPTH):
        found = {
            (*said, token): chance * more
            for said, chance in found.items()
            for token, more in probabilities(backend, [*prompt, *said], sampling).items()
        }
    return found


def drawn(backend: Backend, sampling: Sampling, *, guesses: bool) -> tuple[list[list[Tokens]], dict[str, Any]]:
    """How N answers to each prompt began, each pair of them computed together, and the engine's metrics."""
    engine = Engine(backend, clock=lambda: 0.0)  # which leaves steps as cheap as they are said to be
    assert engine.scheduler.speculator is not None
    if guesses:
        engine.scheduler.speculator.cost = CostModel.of({1: 0.001, 64: 0.00101})
    else:
        engine.scheduler.speculator = None
    said: dict[str, Tokens] = {}
    drop = engine._drop

    def noting(answer: Any) -> None:
        said[answer.sequence.request_id] = tuple(answer.sequence.tokens[answer.sequence.n_prompt :][:DEPTH])
        drop(answer)

    engine._drop = noting  # type: ignore[method-assign]
    asking = Asking(backend, engine)
    for number in range(N):
        for which, prompt in enumerate(PROMPTS):
            seeded = evolve(sampling, seed=104729 * (2 * number + which) % 2**32)
            asking.submit(prompt, request_id=f"{which}.{number}", sampling=seeded, max_tokens=DEPTH + 1)
        asking.run()
    told = engine.metrics()
    engine.close()
    for sequence in range(backend.info.n_sequences):
        backend.remove(sequence, 0)
    return [[said[f"{which}.{number}"] for number in range(N)] for which in range(len(PROMPTS))], told


def distance(counts: Counter[Tokens], chances: dict[Tokens, float]) -> tuple[float, int]:
    """Pearson's chi-square over its bound, and its freedom; all that is expected less than five times is one kind."""
    kinds = [(counts[tokens], chance * N) for tokens, chance in chances.items() if chance * N >= 5]
    kinds.append((N - sum(count for count, _ in kinds), max(N - sum(mean for _, mean in kinds), 1.0)))
    square = sum((count - mean) ** 2 / mean for count, mean in kinds)
    free = len(kinds) - 1
    # Wilson and Hilferty: the cube root of a chi-square over its freedom is nearly normal; five deviations
    return square / (free * (1 - 2 / (9 * free) + 5 * (2 / (9 * free)) ** 0.5) ** 3), free


@pytest.mark.parametrize("guesses", [True, False], ids=["guessed", "plain"])
@pytest.mark.parametrize("sampling", [PLAIN, PENALIZED], ids=["free", "penalized"])
def test_answers_are_drawn_by_their_chances(backend: Backend, sampling: Sampling, guesses: bool) -> None:
    chances = [expected(backend, prompt, sampling) for prompt in PROMPTS]
    answers, told = drawn(backend, sampling, guesses=guesses)

    for said, chance in zip(answers, chances, strict=True):
        over, free = distance(Counter(said), chance)
        assert free > 10
        assert over < 1
    if guesses:
        assert told["drafted_tokens_total"] > N
        assert N / 2 < told["accepted_tokens_total"] < 0.9 * told["drafted_tokens_total"]


@pytest.mark.parametrize("mirostat", [1, 2])
def test_a_sampler_that_goes_by_what_it_drew_draws_the_same_where_answers_are_guessed_ahead(
    backend: Backend, mirostat: int
) -> None:
    sampling = evolve(PLAIN, mirostat=mirostat, mirostat_tau=3.0, mirostat_eta=0.5)
    guessed, told = drawn(backend, sampling, guesses=True)
    plain, _told = drawn(backend, sampling, guesses=False)

    assert told["accepted_tokens_total"] > N / 2
    for one, other in zip(guessed, plain, strict=True):
        assert len(set(one)) > 10
        # a few may differ by the rounding of batches of other shapes
        assert sum(a == b for a, b in zip(one, other, strict=True)) > 0.99 * N
