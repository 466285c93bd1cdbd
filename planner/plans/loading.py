"""How a model is loaded; `models load` says it of one model, `serve` of the one it starts with."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from ..fields import option

MEMORY = "Context and memory"
OFFLOADING = "GPU"
POSITIONS = "Positions (RoPE)"

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
GpuLayers = int | Literal["auto", "all"]


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class Loading:
    """The load parameters; one that is unset is taken from the profile, or chosen for the model and the machine."""

    profile: str | None = option(None, help="Named set of load parameters, e.g. `turbo4b`; unset means `auto`")
    chat_template: str | None = option(None, help="Jinja chat template that replaces the model's own")
    pin: bool = option(False, help="Never evict this model")
    adapters: tuple[str, ...] = option(
        (),
        help="LoRA adapter to apply, with how strongly: `NAME` or `NAME=0.5` (may be given several times)",
        flag="adapter",
        max_length=16,
        item_min_length=1,
    )

    n_ctx: int | None = option(
        None,
        help="Context length of one request in tokens; unset takes 8192 or the model's own if smaller",
        ge=8,
        le=2**31 - 1,
        group=MEMORY,
    )
    n_slots: int | None = option(None, help="How many requests run in one batch", ge=1, le=256, group=MEMORY)
    n_batch: int | None = option(None, help="Tokens a decode call takes at most", ge=1, le=65536, group=MEMORY)
    n_ubatch: int | None = option(
        None, help="Tokens computed at once within a decode call", ge=1, le=65536, group=MEMORY
    )
    cache_type_k: CacheType | None = option(
        None, help="Type of the KV cache's keys; unset takes the profile's or `f16`", group=MEMORY
    )
    cache_type_v: CacheType | None = option(
        None, help="Type of the KV cache's values; unset takes the profile's or `f16`", group=MEMORY
    )
    flash_attention: Literal["auto", "on", "off"] | None = option(
        None, help="Flash attention; unset takes the profile's or `auto`", group=MEMORY
    )
    mmap: bool | None = option(None, help="Map the file instead of reading it; unset maps it", group=MEMORY)
    mlock: bool | None = option(None, help="Keep the weights in physical memory; unset does not", group=MEMORY)
    n_threads: int | None = option(
        None, help="CPU threads for decoding; unset takes what the cgroup allows", ge=1, le=1024, group=MEMORY
    )
    n_threads_batch: int | None = option(
        None, help="CPU threads for prompts; unset takes `n_threads`", ge=1, le=1024, group=MEMORY
    )

    gpu_layers: GpuLayers | None = option(
        None,
        help="Layers to put on the GPU: a number, `auto` (as many as fit) or `all`; unset is the profile's or `auto`",
        ge=0,
        le=9999,
        group=OFFLOADING,
    )
    split_mode: Literal["none", "layer", "row"] | None = option(
        None,
        help="How several GPUs share a model: not at all, by layers, or by rows; unset is `layer`",
        group=OFFLOADING,
    )
    tensor_split: tuple[float, ...] = option(
        (),
        help="Each GPU's share of the model, such as `3,1`; unset goes by free memory",
        max_length=16,
        item_ge=0,
        group=OFFLOADING,
        example=[3, 1],
    )
    main_gpu: int | None = option(
        None, help="Number of the GPU that takes all with `split_mode none`; unset is 0", ge=0, le=15, group=OFFLOADING
    )
    kv_offload: bool | None = option(
        None, help="Keep the KV cache on the GPU, with its layers; unset keeps it there", group=OFFLOADING
    )

    rope_scaling: Literal["none", "linear", "yarn"] | None = option(
        None, help="How positions beyond the trained context are scaled; unset is the model's own", group=POSITIONS
    )
    rope_freq_base: float | None = option(
        None, help="Base frequency; unset is the model's own", gt=0, le=1e12, group=POSITIONS
    )
    rope_freq_scale: float | None = option(
        None,
        help="Factor of the frequencies, 0.5 for twice the context; unset is the model's own",
        gt=0,
        le=1000,
        group=POSITIONS,
    )
    yarn_orig_ctx: int | None = option(
        None,
        help="Context length the model was trained for; unset is the model's own",
        ge=1,
        le=2**31 - 1,
        group=POSITIONS,
    )
    yarn_ext_factor: float | None = option(
        None,
        help="How much is extrapolated rather than interpolated; unset is the model's own",
        ge=0,
        le=1000,
        group=POSITIONS,
    )
    yarn_attn_factor: float | None = option(
        None, help="Factor of the attention's magnitude; unset is the model's own", ge=0, le=1000, group=POSITIONS
    )
    yarn_beta_fast: float | None = option(
        None,
        help="Rotations above which a dimension is extrapolated; unset is the model's own",
        ge=0,
        le=100_000,
        group=POSITIONS,
    )
    yarn_beta_slow: float | None = option(
        None,
        help="Rotations below which a dimension is interpolated; unset is the model's own",
        ge=0,
        le=100_000,
        group=POSITIONS,
    )
