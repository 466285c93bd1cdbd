"""Load parameters as llama.cpp's structs, and back: a loaded model reports what its structs said,
and which attention llama.cpp chose, what only its log says."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import llama_cpp

from ..load_spec import LoadSpec

MAX_OUTPUTS = 64
KV_TYPES = {
    "f32": llama_cpp.GGML_TYPE_F32,
    "f16": llama_cpp.GGML_TYPE_F16,
    "bf16": 30,
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
    "q5_1": llama_cpp.GGML_TYPE_Q5_1,
    "q5_0": llama_cpp.GGML_TYPE_Q5_0,
    "q4_1": llama_cpp.GGML_TYPE_Q4_1,
    "q4_0": llama_cpp.GGML_TYPE_Q4_0,
    "iq4_nl": llama_cpp.GGML_TYPE_IQ4_NL,
}
FLASH = {"auto": -1, "off": 0, "on": 1}
SPLIT_MODES = {
    "none": llama_cpp.LLAMA_SPLIT_MODE_NONE,
    "layer": llama_cpp.LLAMA_SPLIT_MODE_LAYER,
    "row": llama_cpp.LLAMA_SPLIT_MODE_ROW,
}
ROPE_SCALING = {
    "none": llama_cpp.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": llama_cpp.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN,
}
MMAP, MLOCK = llama_cpp.LLAMA_LOAD_MODE_MMAP, llama_cpp.LLAMA_LOAD_MODE_MLOCK
FROM_MODEL = {"rope_freq_base": 0.0, "rope_freq_scale": 0.0, "yarn_orig_ctx": 0}
"""Numbers that stand for the model's own; for the other numbers of YaRN it is any below 0."""
POSITIONS = (*FROM_MODEL, "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")


def model_params(spec: LoadSpec) -> Any:
    """`llama_model_params` of a resolved spec."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = spec.gpu_layers
    params.load_mode = MMAP * bool(spec.mmap) + MLOCK * bool(spec.mlock)
    params.split_mode, params.main_gpu = SPLIT_MODES[str(spec.split_mode)], spec.main_gpu
    if spec.tensor_split:
        shares = (ctypes.c_float * llama_cpp.llama_max_devices())(*spec.tensor_split)
        params.tensor_split = shares  # the struct keeps the array alive
    return params


def context_params(spec: LoadSpec, *, n_ctx: int, n_sequences: int, n_batch: int) -> Any:
    """`llama_context_params` of a resolved spec; the sizes are the context's, which may be a strict lane."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_seq_max = n_ctx, n_batch, n_sequences
    params.n_ubatch = min(spec.n_ubatch or n_batch, n_batch)
    # the compute buffer is sized for this many rows of logits, not for a whole batch of them
    params.n_outputs_max = min(MAX_OUTPUTS, n_batch)
    params.n_outputs_max_per_seq = 0
    params.n_threads, params.n_threads_batch = spec.n_threads, spec.n_threads_batch
    params.flash_attn_type = FLASH[str(spec.flash_attention)]
    params.type_k, params.type_v = KV_TYPES[str(spec.cache_type_k)], KV_TYPES[str(spec.cache_type_v)]
    params.kv_unified, params.no_perf = True, True
    # no older prefix is ever gone back to where attention slides, so what lies behind the window need not be kept
    params.swa_full = False
    params.offload_kqv = bool(spec.kv_offload)
    if spec.rope_scaling is not None:
        params.rope_scaling_type = ROPE_SCALING[spec.rope_scaling]
    for name in POSITIONS:
        value = getattr(spec, name)
        if value is not None:
            setattr(params, name, value)
    return params


def applied_parameters(model: Any, params: Any, context: Any, n_gpus: int, lines: Iterable[str]) -> dict[str, Any]:
    """The effective parameters by our names, read from the structs handed over, from the context, and from the log.

    None means the model's own. `tensor_split` has a share for each of `n_gpus`, and none where memory decides.
    """
    scaling = {number: name for name, number in ROPE_SCALING.items()}
    shares = tuple(round(model.tensor_split[at], 6) for at in range(n_gpus)) if model.tensor_split else ()
    return {
        "n_ctx_pool": llama_cpp.llama_n_ctx(context),
        "n_batch": llama_cpp.llama_n_batch(context),
        "n_ubatch": llama_cpp.llama_n_ubatch(context),
        "n_threads": llama_cpp.llama_n_threads(context),
        "n_threads_batch": llama_cpp.llama_n_threads_batch(context),
        "cache_type_k": _name_of(KV_TYPES, params.type_k),
        "cache_type_v": _name_of(KV_TYPES, params.type_v),
        "flash_attention": _attention(lines) or _name_of(FLASH, params.flash_attn_type),
        "mmap": bool(model.load_mode & MMAP),
        "mlock": bool(model.load_mode & MLOCK),
        "split_mode": _name_of(SPLIT_MODES, model.split_mode),
        "tensor_split": shares,
        "main_gpu": model.main_gpu,
        "kv_offload": bool(params.offload_kqv),
        "rope_scaling": scaling.get(params.rope_scaling_type),
        **{name: _own_as_none(name, getattr(params, name)) for name in POSITIONS},
    }


def _attention(lines: Iterable[str]) -> str | None:
    """Whether attention is computed the flash way, where llama.cpp decided it: only its log tells."""
    found = None
    for line in lines:
        if "Flash Attention enabled" in line or "enabling flash_attn since" in line:
            found = "on"
        elif "Flash Attention not supported" in line or "flash_attn is not compatible" in line:
            found = "off"
    return found


def left_on_cpu(asked: int, done: int) -> tuple[str, ...]:
    """A warning where fewer layers than `asked` came to lie on the GPU: llama.cpp itself takes the CPU silently."""
    if done >= asked:
        return ()
    return (f"{done} of {asked} layers run on the GPU that were meant for it: the others run on the CPU",)


def what_failed(lines: Iterable[str]) -> tuple[str, ...]:
    """Parameters that the system refused llama.cpp, which only its log tells, as warnings."""
    if any("failed to mlock" in line for line in lines):
        return ("the weights are not locked: the system's limit on locked memory (`ulimit -l`) is too low",)
    return ()


def _name_of(names: dict[str, int], number: int) -> str:
    return next(name for name, each in names.items() if each == number)


def _own_as_none(name: str, number: float) -> float | None:
    if number < 0 or FROM_MODEL.get(name) == number:
        return None
    return round(number, 6) if isinstance(number, float) else number
