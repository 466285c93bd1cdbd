"""A plan for text in the runtime's terms: nothing that it says of the sampling is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import asdict, fields
from localllm.executors.request import chat_request, text_requests
from localllm.planner.chat_request import Message
from localllm.planner.plans.chat import Chat
from localllm.planner.plans.complete import Complete
from localllm.runtime.types import Sampling

HELLO = (Message(role="user", content="hello"),)
SAID: dict[str, Any] = {
    "temperature": 0.11,
    "top_k": 12,
    "top_p": 0.13,
    "min_p": 0.14,
    "typical_p": 0.15,
    "top_n_sigma": 1.6,
    "xtc_probability": 0.17,
    "xtc_threshold": 0.18,
    "dynatemp_range": 0.19,
    "dynatemp_exponent": 2.0,
    "repeat_penalty": 1.21,
    "repeat_last_n": 22,
    "presence_penalty": 0.23,
    "frequency_penalty": 0.24,
    "dry_multiplier": 0.25,
    "dry_base": 2.6,
    "dry_allowed_length": 27,
    "dry_penalty_last_n": 28,
    "dry_sequence_breakers": ("29",),
    "mirostat": 2,
    "mirostat_tau": 3.1,
    "mirostat_eta": 0.32,
    "seed": 33,
    "ignore_eos": True,
    "min_tokens": 34,
    "samplers": ("top_k", "temperature"),
}
BIAS = {"logit_bias": {"35": 3.6}}


def test_every_field_of_the_sampling_comes_from_the_plan() -> None:
    chat = chat_request(Chat(messages=HELLO, **SAID, **BIAS)).sampling
    (text,) = text_requests(Complete(prompts=("hello",), **SAID, **BIAS))

    assert asdict(chat) == {**SAID, "logit_bias": ((35, 3.6),)}
    assert text.sampling == chat
    same = [field.name for field in fields(Sampling) if getattr(chat, field.name) == field.default]
    assert same == [], "what stands at its default here could be left out unseen"


def test_a_plan_that_says_nothing_of_the_sampling_gets_the_defaults() -> None:
    sampling = chat_request(Chat(messages=HELLO)).sampling

    assert asdict(sampling) == {**asdict(Sampling()), "seed": sampling.seed}


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_every_seed_is_used_as_it_was_said(seed: int) -> None:
    chat = chat_request(Chat(messages=HELLO, seed=seed))
    first, second = text_requests(Complete(prompts=("a", "b"), n=2, seed=seed))

    assert chat.sampling.seed == first.sampling.seed == seed
    assert second.sampling.seed == (seed + 2) % 2**32


def test_without_a_seed_each_request_gets_another() -> None:
    seeds = {chat_request(Chat(messages=HELLO)).sampling.seed for _ in range(20)}

    assert None not in seeds
    assert len(seeds) > 1
