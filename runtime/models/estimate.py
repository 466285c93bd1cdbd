"""How much memory a model will take on each device, from its header alone.

The formulas follow what llama.cpp allocates: weights by layer, KV cells by type, a state a sequence for recurrent
layers, logits, and a compute buffer as large as the widest moment of the graph. Measured against llama.cpp's own
buffers (the tests do it again) weights and KV are exact and the compute buffer is within a tenth, or two MiB where
it is small. Not in it: the process itself, and a GPU driver's own memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import asdict, evolve, frozen

from .device import Device, devices_to_offload_to
from .shape import ModelShape

CELL_STEP: Final = 256
"""llama.cpp rounds a context up to this many cells."""
MAX_OUTPUTS: Final = 64
"""Rows of logits that one decode may ask for; the backend's own limit."""
HEADROOM_SHARE: Final = 0.04
HEADROOM_LEAST: Final = 64 << 20


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class Sizing:
    """What of the load parameters decides memory."""

    n_ctx_pool: int
    """KV cells that all sequences share."""
    n_sequences: int = 8
    n_ubatch: int = 512
    n_outputs: int = MAX_OUTPUTS
    gpu_layers: int = 0
    """As llama.cpp counts: the output layer first, then repeating layers from the last."""
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: bool = True
    full_window: bool = False
    """Layers with a sliding window keep the whole context, which llama.cpp does unless told otherwise."""
    split: tuple[float, ...] = ()
    """Each GPU's share of the offloaded layers; empty shares them by free memory."""
    kv_offload: bool = True
    """Each layer's cache lies on its device; else all of it in main memory, where attention is then computed."""
    adapter_bytes: tuple[int, ...] = ()
    """Of all adapters together, in each layer and last in what is outside of them."""


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class DeviceMemory:
    """What one device would hold, in bytes, and what it has free."""

    name: str
    type: str
    weights_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    output_bytes: int = 0
    adapter_bytes: int = 0
    free_bytes: int = 0
    layers: int = 0
    """How many layers, the output layer included, it computes."""

    @property
    def needed_bytes(self) -> int:
        """Everything together."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes + self.output_bytes + self.adapter_bytes

    @property
    def fits(self) -> bool:
        """Whether it is free, with a little left for what no estimate sees. A device that is not used always fits."""
        return self._has_room_for(self.needed_bytes)

    @property
    def fits_mapped(self) -> bool:
        """Like `fits`; on the CPU without the weights, which may be mapped from the file and read again."""
        return self._has_room_for(self.needed_bytes - (self.weights_bytes if self.type == "cpu" else 0))

    def _has_room_for(self, needed: int) -> bool:
        headroom = max(HEADROOM_LEAST, int(self.free_bytes * HEADROOM_SHARE))
        return not needed or needed + headroom <= self.free_bytes

    def as_dict(self) -> dict[str, Any]:
        """The facts as JSON."""
        return asdict(self) | {"needed_bytes": self.needed_bytes, "fits": self.fits}


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class Estimate:
    """Memory by device, the CPU first."""

    devices: tuple[DeviceMemory, ...]
    lane_bytes: int = 0
    """What the strict lane takes on top, once a request first asks for it."""

    @property
    def fits(self) -> bool:
        """Whether every device has what it would hold."""
        return all(device.fits for device in self.devices)

    @property
    def fits_mapped(self) -> bool:
        """Whether it can run at all, with weights that do not fit main memory read from the file over and over."""
        return all(device.fits_mapped for device in self.devices)

    @property
    def needed_bytes(self) -> int:
        """All devices together."""
        return sum(device.needed_bytes for device in self.devices)

    def as_dict(self) -> dict[str, Any]:
        """The estimate as JSON."""
        return {
            "fits": self.fits,
            "needed_bytes": self.needed_bytes,
            "strict_lane_bytes": self.lane_bytes,
            "devices": [device.as_dict() for device in self.devices],
        }


def estimate(shape: ModelShape, sizing: Sizing, devices: Sequence[Device]) -> Estimate:
    """Memory by device. Layers go to the devices llama.cpp offloads to, in proportion to their free memory."""
    cpu = next((device for device in devices if device.type == "cpu"), None)
    gpus = devices_to_offload_to(devices)
    places = place(shape.n_layers, sizing.gpu_layers, gpus, sizing.split)
    held = [_held(shape, sizing, places, index) for index in range(-1, len(gpus))]
    names = [("CPU", "cpu", cpu.free_bytes if cpu else 0), *((gpu.name, gpu.type, gpu.free_bytes) for gpu in gpus)]
    return Estimate(
        devices=tuple(
            DeviceMemory(name=name, type=kind, free_bytes=free, **parts)
            for (name, kind, free), parts in zip(names, held, strict=True)
        ),
        lane_bytes=_lane_bytes(shape, sizing),
    )


def place(n_layers: int, gpu_layers: int, gpus: Sequence[Device], split: Sequence[float] = ()) -> tuple[int, ...]:
    """The device of each layer, -1 for the CPU; the last item is the output layer.

    With several GPUs each gets its share of the offloaded layers by `split`, or else by its free memory, as llama.cpp
    does it.
    """
    shares = split or [gpu.free_bytes for gpu in gpus]
    count = n_layers + 1
    offloaded = min(max(0, gpu_layers), count) if gpus else 0
    first = count - offloaded
    total = sum(shares) or 1
    ends, upto = [], 0.0
    for share in shares:
        upto += share
        ends.append(upto / total)
    places = [-1] * count
    for layer in range(first, count):
        position = (layer - first) / max(1, offloaded)
        places[layer] = next((index for index, end in enumerate(ends) if position < end), len(ends) - 1)
    return tuple(places)


def padded(cells: int) -> int:
    """A number of cells as llama.cpp rounds it."""
    return -(-cells // CELL_STEP) * CELL_STEP


def kv_bytes(shape: ModelShape, sizing: Sizing) -> list[int]:
    """Bytes of cache and state in each layer."""
    whole, window = padded(sizing.n_ctx_pool), _window_cells(shape, sizing)
    found = []
    for attention, state in zip(shape.attention, shape.state_bytes, strict=True):
        cells = window if attention.windowed else whole
        cache = cells * attention.cell_bytes(sizing.cache_type_k, sizing.cache_type_v)
        found.append(cache + state * sizing.n_sequences)
    return found


def _window_cells(shape: ModelShape, sizing: Sizing) -> int:
    """Cells of a layer with a sliding window: what each sequence still sees, and the tokens of one step."""
    whole = padded(sizing.n_ctx_pool)
    return whole if sizing.full_window else min(whole, padded(shape.window * sizing.n_sequences + sizing.n_ubatch))


def _held(shape: ModelShape, sizing: Sizing, places: tuple[int, ...], device: int) -> dict[str, int]:
    """What one device holds; -1 is the CPU, which always keeps the input's weights and the logits."""
    mine = [layer for layer in range(shape.n_layers) if places[layer] == device]
    has_output = places[-1] == device
    caches = kv_bytes(shape, sizing)
    weights = sum(shape.layer_bytes[layer] for layer in mine) + (shape.output_bytes if has_output else 0)
    if device < 0 or (has_output and shape.tied_embeddings):
        weights += shape.input_bytes
    layers = len(mine) + int(has_output)
    cached = mine if sizing.kv_offload else range(shape.n_layers) if device < 0 else ()
    return {
        "weights_bytes": weights,
        "kv_bytes": sum(caches[layer] for layer in cached),
        "adapter_bytes": _adapter_bytes(sizing, mine, device),
        "compute_bytes": _compute_bytes(shape, sizing, bool(mine or cached), has_output, is_cpu=device < 0),
        "output_bytes": sizing.n_outputs * shape.n_vocab * 4 if device < 0 else 0,
        "layers": layers,
    }


def _adapter_bytes(sizing: Sizing, layers: Sequence[int], device: int) -> int:
    if not sizing.adapter_bytes:
        return 0
    return sum(sizing.adapter_bytes[layer] for layer in layers) + (sizing.adapter_bytes[-1] if device < 0 else 0)


def _compute_bytes(shape: ModelShape, sizing: Sizing, layers: bool, output: bool, *, is_cpu: bool) -> int:
    """The widest moment of the graph on a device: attention, feed-forward or logits, and the inputs they need."""
    rows, embd = sizing.n_ubatch, shape.n_embd
    inputs = rows * embd * 4 * (2 if is_cpu else 1)
    mask = _mask_bytes(shape, sizing)
    widest = 0
    if layers:
        key = max((layer.key_width + layer.value_width for layer in shape.attention), default=0)
        attention = rows * 4 * (3 * embd + key)
        if not sizing.flash_attention and any(layer.key_width for layer in shape.attention):
            attention += padded(sizing.n_ctx_pool) * rows * shape.n_heads * 4
        recurrent = rows * 4 * 6 * (max(shape.state_bytes, default=0) and 2 * embd)
        widest = mask + max(attention, rows * 4 * (3 * shape.n_ff + 2 * embd), recurrent)
    if output:
        widest = max(widest, min(sizing.n_outputs, rows) * shape.n_vocab * 4)
    if is_cpu and not layers:
        widest += mask  # the CPU makes the inputs for the others
    return widest + inputs if widest or is_cpu else 0


def _mask_bytes(shape: ModelShape, sizing: Sizing) -> int:
    if not any(layer.key_width for layer in shape.attention):
        return 0
    cells = padded(sizing.n_ctx_pool)
    if any(layer.windowed for layer in shape.attention):  # these have a mask of their own
        cells += _window_cells(shape, sizing)
    return cells * sizing.n_ubatch * (2 if sizing.flash_attention else 4)


def _lane_bytes(shape: ModelShape, sizing: Sizing) -> int:
    """The strict lane: a context of its own for one sequence."""
    alone = evolve(sizing, n_sequences=1)
    return sum(kv_bytes(shape, alone)) + _compute_bytes(shape, alone, True, True, is_cpu=True)
