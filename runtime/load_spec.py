"""How to load a model, as a value; apart from `types`, so that a dry run makes none of the classes of answers."""

from __future__ import annotations

from typing import Any, Literal

from attrs import field, frozen

BackendName = Literal["llama", "echo"]


@frozen(kw_only=True)
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
    gpu_layers: int | Literal["auto", "all"] = "auto"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    mmap: bool = True
    mlock: bool = False
    chat_template: str | None = None
    pin: bool = False
    names: tuple[str, ...] = ()
    """Names the model was asked for by, best first: they help to find the template's family."""
    options: dict[str, Any] = field(factory=dict)
    """Backend-specific extras (the echo backend's script and delays, device splits, adapters)."""
