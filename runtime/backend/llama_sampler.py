"""Native sampler chains: one a request, in llama.cpp's own order or the one asked for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import llama_cpp
from attrs import define, field

from ...errors import BadInput
from ..types import Sampling

if TYPE_CHECKING:
    from .llama import LlamaBackend

DEFAULT_ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
SUBSTITUTE_SEED = 2**31
"""Stands for the one seed that llama.cpp reads as "draw one". Far from it, for its neighbours are those of the other
answers of the same request.
"""
ALIASES = {"typical_p": "typ_p", "typical": "typ_p", "temp": "temperature", "repeat_penalty": "penalties"}


def sampler_order(names: Sequence[str]) -> tuple[str, ...]:
    """llama.cpp's names of the samplers, in order. Raises BadInput on a name that does not exist."""
    order = tuple(ALIASES.get(name.replace("-", "_"), name.replace("-", "_")) for name in names)
    for asked, name in zip(names, order, strict=True):
        if name not in DEFAULT_ORDER:
            raise BadInput(
                f"there is no sampler `{asked}`", hint=f"the samplers are {', '.join(DEFAULT_ORDER)}", param="samplers"
            )
    return order or DEFAULT_ORDER


def check_sampling(s: Sampling, n_vocab: int) -> None:
    """Raises BadInput on a sampler that does not exist, a penalty that cannot be, or a token that there is not."""
    sampler_order(s.samplers)
    if s.repeat_penalty <= 0:
        raise BadInput("`repeat_penalty` must be greater than 0", param="repeat_penalty")
    for token, _ in s.logit_bias:
        if not 0 <= token < n_vocab:
            raise BadInput(f"there is no token `{token}`", param="logit_bias")


def native_seed(seed: int) -> int:
    """The seed for llama.cpp's samplers: an answer repeats with every seed that can be asked for."""
    return SUBSTITUTE_SEED if seed == llama_cpp.LLAMA_DEFAULT_SEED else seed


def _stages(backend: LlamaBackend, s: Sampling, seed: int) -> dict[str, Callable[[], Any]]:
    vocab, n_ctx = backend.vocab, backend.info.n_ctx

    def last_n(value: int) -> int:
        return n_ctx if value < 0 else value

    def dry() -> Any:
        breakers = [text.encode() for text in s.dry_sequence_breakers]
        array = (ctypes.c_char_p * len(breakers))(*breakers)
        return llama_cpp.llama_sampler_init_dry(
            vocab,
            s.dry_multiplier,
            s.dry_base,
            s.dry_allowed_length,
            last_n(s.dry_penalty_last_n),
            array,
            len(breakers),
        )

    return {
        "penalties": lambda: llama_cpp.llama_sampler_init_penalties(
            backend.info.n_vocab,
            last_n(s.repeat_last_n),
            s.repeat_penalty,
            s.frequency_penalty,
            s.presence_penalty,
        ),
        "dry": dry,
        "top_n_sigma": lambda: llama_cpp.llama_sampler_init_top_n_sigma(s.top_n_sigma),
        "top_k": lambda: llama_cpp.llama_sampler_init_top_k(s.top_k),
        "typ_p": lambda: llama_cpp.llama_sampler_init_typical(s.typical_p, 0),
        "top_p": lambda: llama_cpp.llama_sampler_init_top_p(s.top_p, 0),
        "min_p": lambda: llama_cpp.llama_sampler_init_min_p(s.min_p, 0),
        "xtc": lambda: llama_cpp.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 0, seed),
        "temperature": lambda: llama_cpp.llama_sampler_init_temp_ext(
            s.temperature, s.dynatemp_range, s.dynatemp_exponent
        ),
    }


def _penalizes(s: Sampling) -> bool:
    penalties = (s.repeat_penalty, s.frequency_penalty, s.presence_penalty) != (1.0, 0.0, 0.0)
    return penalties and s.repeat_last_n != 0


def _active(s: Sampling) -> set[str]:
    """The stages that do something; the others would only cost time."""
    on = {
        "penalties": _penalizes(s),
        "dry": s.dry_multiplier > 0 and s.dry_penalty_last_n != 0,
        "top_n_sigma": s.top_n_sigma > 0,
        "top_k": s.top_k > 0,
        "typ_p": s.typical_p < 1,
        "top_p": s.top_p < 1,
        "min_p": s.min_p > 0,
        "xtc": s.xtc_probability > 0 and s.xtc_threshold <= 0.5,
        "temperature": s.temperature != 1 or s.dynatemp_range > 0,
    }
    # at temperature 0 the likeliest token wins, and only these two can change which that is
    return {name for name, active in on.items() if active and (s.temperature > 0 or name in ("penalties", "dry"))}


def _bias(backend: LlamaBackend, s: Sampling) -> Any:
    pairs = [llama_cpp.llama_logit_bias(token, bias) for token, bias in s.logit_bias]
    array = (llama_cpp.llama_logit_bias * len(pairs))(*pairs)
    return llama_cpp.llama_sampler_init_logit_bias(backend.info.n_vocab, len(pairs), array)


@define(eq=False)
class LlamaSampler:
    """A native chain; plain greedy needs none."""

    backend: LlamaBackend
    chain: Any = field(default=None)

    def sample(self, row: int) -> int:
        if self.chain is None:
            return int(self.backend.logits(row).argmax())
        # it also accepts: the chain remembers exactly the tokens that are kept
        return int(llama_cpp.llama_sampler_sample(self.chain, self.backend.context, row))

    def accept(self, token: int) -> None:
        if self.chain is not None:
            llama_cpp.llama_sampler_accept(self.chain, token)

    def close(self) -> None:
        if self.chain is not None:
            llama_cpp.llama_sampler_free(self.chain)
            self.chain = None


def open_sampler(backend: LlamaBackend, s: Sampling, seed: int, prompt: Sequence[int]) -> LlamaSampler:
    """The chain of one answer, which already remembers the prompt where a penalty looks back at it."""
    check_sampling(s, backend.info.n_vocab)
    order, active = sampler_order(s.samplers), _active(s)
    if s.temperature <= 0 and not active and not s.logit_bias:
        return LlamaSampler(backend)
    params = llama_cpp.llama_sampler_chain_default_params()
    params.no_perf = True
    bias = _bias(backend, s) if s.logit_bias else None
    chain = llama_cpp.llama_sampler_chain_init(params)
    if bias is not None:
        llama_cpp.llama_sampler_chain_add(chain, bias)
    for stage in _chain(backend, s, native_seed(seed), order, active):
        llama_cpp.llama_sampler_chain_add(chain, stage)
    if active & {"penalties", "dry"}:
        for token in prompt[-backend.info.n_ctx :]:
            llama_cpp.llama_sampler_accept(chain, token)
    return LlamaSampler(backend, chain)


def _chain(backend: LlamaBackend, s: Sampling, seed: int, order: Sequence[str], active: set[str]) -> list[Any]:
    stages = _stages(backend, s, seed)
    if s.temperature <= 0:
        return [stages[name]() for name in order if name in active] + [llama_cpp.llama_sampler_init_greedy()]
    if not s.mirostat:
        return [stages[name]() for name in order if name in active] + [llama_cpp.llama_sampler_init_dist(seed)]
    # mirostat truncates by itself: only what looks back goes before it
    chain = [stages[name]() for name in order if name in active & {"penalties", "dry", "temperature"}]
    if s.mirostat == 1:
        last = llama_cpp.llama_sampler_init_mirostat(backend.info.n_vocab, seed, s.mirostat_tau, s.mirostat_eta, 100)
    else:
        last = llama_cpp.llama_sampler_init_mirostat_v2(seed, s.mirostat_tau, s.mirostat_eta)
    return [*chain, last]
