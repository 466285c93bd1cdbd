"""From the adapters a load names to their files: LoRA adapters of the folder, made for the model's architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from ..errors import BadInput, ModelNotFound

if TYPE_CHECKING:
    from ..runtime.models.catalog import Catalog, Entry

PARAM = "adapters"


@frozen
class Adapters:
    """What a `LoadSpec` takes of them."""

    scales: tuple[tuple[str, float], ...] = ()
    """Id and scale of each."""
    entries: tuple[Entry, ...] = ()


def scale_of(text: str) -> tuple[str, float]:
    """`NAME=0.5` as a name and its scale; without one it is 1. Raises BadInput."""
    name, equals, number = text.rpartition("=")
    if not equals:
        return text, 1.0
    try:
        scale = float(number)
    except ValueError:
        scale = float("inf")
    if not name or not -1000 <= scale <= 1000:
        raise BadInput(f"`{text}` does not say how strongly to apply it", hint="write `NAME=0.5`", param=PARAM)
    return name, scale


def find_adapters(texts: Sequence[str], model: Entry, catalog: Catalog) -> Adapters:
    """The adapters that the texts name. Raises BadInput, ModelNotFound, AmbiguousName, ModelLoadFailed."""
    found: dict[str, tuple[float, Entry]] = {}
    for text in texts:
        name, scale = scale_of(text)
        entry = _entry(name, catalog)
        _require_adapter(entry, model)
        if entry.id in found:
            raise BadInput(f"the adapter `{entry.id}` is named twice", param=PARAM)
        found[entry.id] = (scale, entry)
    return Adapters(
        tuple((name, scale) for name, (scale, _entry) in found.items()),
        tuple(entry for _scale, entry in found.values()),
    )


def _entry(name: str, catalog: Catalog) -> Entry:
    try:
        return catalog.resolve(name)
    except ModelNotFound as error:
        known = [entry.id for entry in catalog.entries if entry.kind == "adapter" and entry.valid]
        listed = ", ".join(f"`{each}`" for each in known[:8])
        hint = f"there {'is' if len(known) == 1 else 'are'} {listed}" if known else "the models folder holds no adapter"
        raise ModelNotFound(f"there is no adapter `{name}`", hint=hint, param=PARAM, available=known) from error


def _require_adapter(entry: Entry, model: Entry) -> None:
    if not entry.valid:
        raise BadInput(f"the adapter `{entry.id}` {entry.reason}", param=PARAM)
    if entry.kind != "adapter":
        raise BadInput(
            f"`{entry.id}` is not a LoRA adapter", hint="`localllm models list --kind adapter` lists them", param=PARAM
        )
    if entry.architecture != model.architecture:
        raise BadInput(
            f"the adapter `{entry.id}` was made for `{entry.architecture}`, and `{model.id}` is `{model.architecture}`",
            param=PARAM,
        )
