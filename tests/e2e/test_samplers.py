"""The native sampler chains: which stages an option opens, in which order, what each does, and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log, log2
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from attrs import evolve
from fixtures.asking import Asking, chat
from localllm.runtime.backend import Backend, open_backend
from localllm.runtime.engine.engine import Engine
from localllm.runtime.types import LoadSpec, Sampling

pytestmark = pytest.mark.model

USUAL = ["top-k", "top-p", "min-p", "temp-ext", "dist"]
PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
"""Every stage is off."""
ALL_ON = Sampling(
    repeat_penalty=1.1, dry_multiplier=0.8, top_n_sigma=1.0, typical_p=0.9, xtc_probability=0.5, dynatemp_range=0.2
)
SHARES = (0.5, 0.3, 0.15, 0.05)
"""Probabilities of the tokens 0 to 3."""
GREATEST = 2**32 - 1


@pytest.fixture(scope="module")
def backend(model_path: Path) -> Iterator[Backend]:
    loaded = open_backend(LoadSpec(model_id="m", path=str(model_path), n_ctx=512, n_threads=1))
    yield loaded
    loaded.close()


@pytest.fixture
def asking(backend: Backend) -> Iterator[Asking]:
    for seq_id in range(backend.info.n_sequences):
        backend.remove(seq_id, 0)
    engine = Engine(backend)
    yield Asking(backend, engine)
    engine.close()


def stages(chain: Any) -> list[Any]:
    count = llama_cpp.llama_sampler_chain_n(chain)
    return [llama_cpp.llama_sampler_chain_get(chain, at) for at in range(count)]


def names(backend: Backend, sampling: Sampling) -> list[str]:
    """What the native chain of a request says that it consists of."""
    sampler: Any = backend.open_sampler(sampling, 3, [1, 2])
    found = [llama_cpp.llama_sampler_name(stage).decode() for stage in stages(sampler.chain)]
    sampler.close()
    return found


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, USUAL),
        ({"top_k": 0}, ["top-p", "min-p", "temp-ext", "dist"]),
        ({"top_k": -1}, ["top-p", "min-p", "temp-ext", "dist"]),
        ({"top_p": 1.0}, ["top-k", "min-p", "temp-ext", "dist"]),
        ({"min_p": 0.0}, ["top-k", "top-p", "temp-ext", "dist"]),
        ({"temperature": 1.0}, ["top-k", "top-p", "min-p", "dist"]),
        ({"temperature": 1.0, "dynatemp_range": 0.5}, USUAL),
        ({"repeat_penalty": 1.3}, ["penalties", *USUAL]),
        ({"presence_penalty": 0.5}, ["penalties", *USUAL]),
        ({"frequency_penalty": 0.5}, ["penalties", *USUAL]),
        ({"frequency_penalty": 0.5, "repeat_last_n": 0}, USUAL),
        ({"dry_multiplier": 0.8}, ["dry", *USUAL]),
        ({"dry_multiplier": 0.8, "dry_penalty_last_n": 0}, USUAL),
        ({"top_n_sigma": 1.0}, ["top-n-sigma", *USUAL]),
        ({"typical_p": 0.5}, ["top-k", "typical", *USUAL[1:]]),
        ({"xtc_probability": 0.5}, ["top-k", "top-p", "min-p", "xtc", "temp-ext", "dist"]),
        ({"logit_bias": ((1, 2.0),)}, ["logit-bias", *USUAL]),
        ({"mirostat": 1}, ["temp-ext", "mirostat"]),
        ({"mirostat": 2}, ["temp-ext", "mirostat-v2"]),
        (
            {"mirostat": 2, "repeat_penalty": 1.3, "dry_multiplier": 0.8, "top_n_sigma": 1.0},
            ["penalties", "dry", "temp-ext", "mirostat-v2"],
        ),
        ({"temperature": 0.0, "repeat_penalty": 1.3, "dry_multiplier": 0.8, "mirostat": 2}, None),
        ({"samplers": ("top_k", "temperature", "min-p")}, ["top-k", "temp-ext", "min-p", "dist"]),
    ],
    ids=str,
)
def test_each_option_opens_its_stage_at_its_place(
    backend: Backend, change: dict[str, Any], expected: list[str] | None
) -> None:
    assert names(backend, Sampling(**change)) == (expected or ["penalties", "dry", "greedy"])


def test_the_stages_come_in_llamas_order_or_in_the_one_that_is_asked_for(backend: Backend) -> None:
    usual = ["penalties", "dry", "top-n-sigma", "top-k", "typical", "top-p", "min-p", "xtc", "temp-ext"]
    own = ("temp", "xtc", "min_p", "top-p", "typical_p", "top_k", "top_n_sigma", "dry", "repeat_penalty")

    assert names(backend, ALL_ON) == [*usual, "dist"]
    assert names(backend, evolve(ALL_ON, samplers=own)) == [*reversed(usual), "dist"]


def left_over(backend: Backend, sampling: Sampling, prompt: Sequence[int] = ()) -> dict[int, float]:
    """The tokens that a chain leaves of the four, with what their logits became."""
    sampler: Any = backend.open_sampler(sampling, 3, list(prompt))
    *before, last = stages(sampler.chain)
    _, left = applied(before)
    assert llama_cpp.llama_sampler_name(last) == b"dist"
    sampler.close()
    return left


def applied(chain: Sequence[Any]) -> tuple[int, dict[int, float]]:
    """Which token was chosen, -1 for none, and the logits of all that are left."""
    rows = [llama_cpp.llama_token_data(token, log(share), 0.0) for token, share in enumerate(SHARES)]
    data = (llama_cpp.llama_token_data * len(rows))(*rows)
    choice = llama_cpp.llama_token_data_array(data, len(rows), -1, False)
    for stage in chain:
        llama_cpp.llama_sampler_apply(stage, choice)
    chosen = choice.data[choice.selected].id if choice.selected >= 0 else -1
    return chosen, {choice.data[at].id: choice.data[at].logit for at in range(choice.size)}


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.9}, {0, 1, 2}),
        ({"min_p": 0.5}, {0, 1}),
        ({"top_n_sigma": 1.0}, {0, 1}),
        ({"typical_p": 0.2}, {1}),
        ({"xtc_probability": 1.0}, {2, 3}),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.2}, {1, 2, 3}),
    ],
    ids=str,
)
def test_what_cuts_the_choice_leaves_the_right_tokens(
    backend: Backend, change: dict[str, Any], tokens: set[int]
) -> None:
    # what top_n_sigma cuts stays in the list, its logit minus infinity
    left = left_over(backend, evolve(PLAIN, **change))

    assert {token for token, logit in left.items() if logit > -1e30} == tokens


def test_the_temperature_divides_the_logits(backend: Backend) -> None:
    assert left_over(backend, evolve(PLAIN, temperature=2.0)) == pytest.approx(
        {token: log(share) / 2 for token, share in enumerate(SHARES)}
    )


def test_a_dynamic_temperature_goes_with_the_entropy(backend: Backend) -> None:
    entropy = -sum(share * log2(share) for share in SHARES) / log2(len(SHARES))
    temperature = 0.5 + (1.5 - 0.5) * entropy**2
    left = left_over(backend, evolve(PLAIN, dynatemp_range=0.5, dynatemp_exponent=2.0))

    assert left == pytest.approx({token: log(share) / temperature for token, share in enumerate(SHARES)}, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "lower"),
    [
        ({"presence_penalty": 0.5}, (0, 0.5, 0.5, 0)),
        ({"frequency_penalty": 0.5}, (0, 1.0, 0.5, 0)),
        ({"frequency_penalty": 0.5, "repeat_last_n": 1}, (0, 0.5, 0, 0)),
        ({"frequency_penalty": 0.5, "repeat_last_n": -1}, (0.5, 1.0, 0.5, 0)),
        ({"repeat_penalty": 2.0, "repeat_last_n": 3}, (0, -log(0.3), -log(0.15), 0)),
    ],
    ids=str,
)
def test_penalties_lower_what_was_said_within_their_reach(
    backend: Backend, change: dict[str, Any], lower: tuple[float, ...]
) -> None:
    prompt = [0] + [9] * 100 + [1, 2, 1]
    left = left_over(backend, evolve(PLAIN, **change), prompt)

    assert {token: log(SHARES[token]) - logit for token, logit in left.items()} == pytest.approx(
        dict(enumerate(lower)), abs=1e-4
    )


@pytest.mark.parametrize(
    ("change", "lower"),
    [
        ({}, 0.8 * 1.75),
        ({"dry_base": 3.0}, 0.8 * 3.0),
        ({"dry_allowed_length": 1}, 0.8 * 1.75**2),
        ({"dry_allowed_length": 4}, 0),
        ({"dry_penalty_last_n": 5}, 0),
        ({"dry_sequence_breakers": ("b",)}, 0),
    ],
    ids=str,
)
def test_what_would_go_on_repeating_costs_what_dry_says(backend: Backend, change: dict[str, Any], lower: float) -> None:
    a, b, c = (backend.tokenize(letter)[0] for letter in "abc")
    sampling = evolve(PLAIN, **{"dry_multiplier": 0.8, "dry_sequence_breakers": (), **change})
    left = left_over(backend, sampling, [a, b, c, 1, 9, 8, a, b, c])

    assert log(SHARES[1]) - left[1] == pytest.approx(lower, abs=1e-4)
    assert log(SHARES[2]) - left[2] == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(("eta", "second"), [(0.1, {0}), (1.0, {0, 1})])
def test_mirostat_keeps_to_the_surprise_it_aims_at_and_learns_at_its_rate(
    backend: Backend, eta: float, second: set[int]
) -> None:
    sampler: Any = backend.open_sampler(evolve(PLAIN, mirostat=2, mirostat_tau=0.6, mirostat_eta=eta), 3, [])
    chain = stages(sampler.chain)
    taken = [set(applied(chain)[1]) for _ in range(2)]
    sampler.close()

    assert taken == [{0}, second]


@pytest.mark.parametrize(("tau", "count"), [(0.1, 1), (20.0, 4)])
def test_the_first_mirostat_cuts_by_the_surprise_too(backend: Backend, tau: float, count: int) -> None:
    sampler: Any = backend.open_sampler(evolve(PLAIN, mirostat=1, mirostat_tau=tau), 3, [])
    _, taken = applied(stages(sampler.chain))
    sampler.close()

    assert len(taken) == count


def test_the_only_token_that_is_left_is_the_likeliest(asking: Asking) -> None:
    prompt = chat("Name a colour of the sky.")
    greedy = asking.ask(prompt, max_tokens=16, determinism="strict")
    left = asking.ask(prompt, sampling=Sampling(temperature=1.5, top_k=1), max_tokens=16, determinism="strict")
    hot = asking.ask(prompt, sampling=evolve(PLAIN, temperature=1.5), max_tokens=16, determinism="strict")

    assert left.text == greedy.text != hot.text


@pytest.mark.parametrize("seed", [0, GREATEST])
def test_the_least_and_the_greatest_seed_repeat_an_answer_too(asking: Asking, seed: int) -> None:
    prompt = chat("Invent a name for a boat.")

    def said(seed: int) -> str:
        sampling = Sampling(temperature=1.0, seed=seed)
        return asking.ask(prompt, sampling=sampling, max_tokens=20, determinism="strict").text

    assert said(seed) == said(seed)
    assert said(seed) != said(1)


def test_the_seeds_of_several_answers_may_pass_the_greatest(asking: Asking) -> None:
    told = []
    for _ in range(2):
        sampling = Sampling(temperature=1.0, seed=GREATEST - 1)
        request = {"sampling": sampling, "n": 3, "max_tokens": 20, "determinism": "strict"}
        told.append(asking.submit(chat("Invent a name for a boat."), **request))
        asking.run()
    first, second = ([one.text_of(index) for index in range(3)] for one in told)

    assert first == second
    assert len(set(first)) == 3


@pytest.mark.parametrize(
    "change", [{}, {"xtc_probability": 0.5}, {"mirostat": 1}, {"mirostat": 2}], ids=["dist", "xtc", "1", "2"]
)
def test_no_stage_draws_a_seed_of_its_own_for_the_greatest(backend: Backend, change: dict[str, Any]) -> None:
    drawn = []
    for seed in (GREATEST, GREATEST, 1):
        sampler: Any = backend.open_sampler(evolve(PLAIN, **change), seed, [])
        drawn.append([applied(stages(sampler.chain)) for _ in range(60)])
        sampler.close()

    assert drawn[0] == drawn[1] != drawn[2]
