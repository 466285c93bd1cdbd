"""How to load a model, as a value; apart from `types`, so that a dry run makes none of the classes of answers."""

from __future__ import annotations

from typing import Any, Literal

from attrs import field, frozen

BackendName = Literal["llama", "echo"]


@frozen(kw_only=True, unsafe_hash=False, repr=False)  # unused methods would only slow the start
class LoadSpec:
    """How to load one model; None means "the runtime decides" and the decision is told in `LoadedModel.applied`."""

    model_id: str
    path: str
    """The file, or the first part of a split set; empty for the echo backend."""
    backend: BackendName = "llama"
    profile: str | None = None
    n_ctx: int | None = None
    """Tokens one request may use, prompt and answer together."""
    n_slots: int | None = None
    n_batch: int | None = None
    n_ubatch: int | None = None
    n_threads: int | None = None
    n_threads_batch: int | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    flash_attention: Literal["auto", "on", "off"] | None = None
    mmap: bool | None = None
    mlock: bool | None = None
    gpu_layers: int | Literal["auto", "all"] | None = None
    split_mode: Literal["none", "layer", "row"] | None = None
    tensor_split: tuple[float, ...] = ()
    main_gpu: int | None = None
    kv_offload: bool | None = None
    rope_scaling: Literal["none", "linear", "yarn"] | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_fast: float | None = None
    yarn_beta_slow: float | None = None
    adapters: tuple[tuple[str, float], ...] = ()
    """Id and scale of each LoRA adapter; their files are `adapter_paths`."""
    adapter_paths: tuple[str, ...] = ()
    chat_template: str | None = None
    pin: bool = False
    names: tuple[str, ...] = ()
    """Names the model was asked for by, best first: they help to find the template's family."""
    origins: dict[str, str] = field(factory=dict)
    """Where a value that is set comes from; one that is not named here is a `flag`."""
    options: dict[str, Any] = field(factory=dict)
    """Backend-specific extras (the echo backend's script and delays, further devices)."""
