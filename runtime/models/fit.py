"""Whether a model fits, how many layers go to the GPU, and what would fit instead. Pure functions of an estimate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from attrs import asdict, evolve, frozen

from .device import Device, devices_to_offload_to
from .estimate import Estimate, Sizing, estimate
from .shape import ModelShape

LEAST_CONTEXT: Final = 512
TOKENS_PER_SLOT: Final = 1024
"""What a request is taken to use on average, when the pool is sized."""
SMALLER_CACHES: Final = ("q8_0", "q4_0")


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class Alternative:
    """Parameters that would fit, as changes to those asked for."""

    changes: dict[str, Any]
    needed_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """The alternative as JSON."""
        return asdict(self)


def pool_cells(n_ctx: int, n_slots: int) -> int:
    """KV cells for all slots: one whole context, and an average request for each slot."""
    return max(n_ctx, n_slots * min(n_ctx, TOKENS_PER_SLOT))


def auto_layers(shape: ModelShape, sizing: Sizing, devices: Sequence[Device]) -> int:
    """As many layers as fit the free memory of the devices that take layers; 0 without such a device.

    Counted as llama.cpp does: 1 is the output layer alone, `n_layers + 1` everything.
    """
    if not devices_to_offload_to(devices):
        return 0
    fitting, beyond = 0, shape.n_layers + 2
    while beyond - fitting > 1:  # what a device holds grows with the layers, so bisection finds the last that fits
        layers = (fitting + beyond) // 2
        found = estimate(shape, evolve(sizing, gpu_layers=layers), devices)
        if all(device.fits for device in found.devices if device.type != "cpu"):
            fitting = layers
        else:
            beyond = layers
    return fitting


def context_that_fits(
    shape: ModelShape, sizing: Sizing, devices: Sequence[Device], n_ctx: int, n_slots: int, *, auto: bool
) -> tuple[int, Sizing] | None:
    """The largest context up to `n_ctx`, halved until it fits, and its sizing; None where none does.

    The pool gives up its share for further slots before a context is made shorter. With `auto` the layers on the
    GPU are placed anew for each size. Where the weights alone exceed main memory, what fits beside them counts: they
    are mapped from the file, and slow.
    """
    for enough in (attrgetter("fits"), attrgetter("fits_mapped")):
        for context in _halved(n_ctx):
            for pool in dict.fromkeys((pool_cells(context, n_slots), context)):
                tried = evolve(sizing, n_ctx_pool=pool)
                if auto:
                    tried = evolve(tried, gpu_layers=auto_layers(shape, tried, devices))
                if enough(estimate(shape, tried, devices)):
                    return context, tried
    return None


def alternatives(
    shape: ModelShape, sizing: Sizing, devices: Sequence[Device], n_ctx: int, n_slots: int
) -> list[Alternative]:
    """Up to four ways to make it fit: fewer layers on the GPU, a smaller cache type, a shorter context, or both."""
    found: list[Alternative] = []
    layers = auto_layers(shape, sizing, devices)
    if layers < sizing.gpu_layers:
        _add(found, {"gpu_layers": layers}, shape, evolve(sizing, gpu_layers=layers), devices)
    types = [name for name in SMALLER_CACHES if shape.takes_cache_type(name) and name != sizing.cache_type_k]
    caches: list[dict[str, Any]] = [{"cache_type_k": name, "cache_type_v": name} for name in types]
    for changes in caches:
        _add(found, changes, shape, evolve(sizing, **changes), devices)
    shorter = next((context for context in _halved(n_ctx) if context < n_ctx), None)
    for changes in ({}, *caches[:1]):
        smaller = shorter and context_that_fits(shape, evolve(sizing, **changes), devices, shorter, n_slots, auto=False)
        if smaller:
            _add(found, {"n_ctx": smaller[0], **changes}, shape, smaller[1], devices)
    return found[:4]


def _add(
    found: list[Alternative], changes: dict[str, Any], shape: ModelShape, sizing: Sizing, devices: Sequence[Device]
) -> None:
    outcome: Estimate = estimate(shape, sizing, devices)
    if outcome.fits:
        found.append(Alternative(changes=changes, needed_bytes=outcome.needed_bytes))


def _halved(n_ctx: int) -> Iterator[int]:
    """Contexts to try: as asked, then powers of two below it, down to the least one worth having."""
    yield n_ctx
    context = 1 << max(0, (n_ctx - 1).bit_length() - 1)
    while context >= LEAST_CONTEXT:
        if context < n_ctx:
            yield context
        context >>= 1
