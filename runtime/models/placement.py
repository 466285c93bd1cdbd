"""Load parameters for the machine at hand: reads the headers, asks the devices, and resolves.

The one file here that joins disk, devices and the pure rules of `parameters`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ...errors import ModelLoadFailed
from ..load_spec import LoadSpec
from .device import Device, gpu_kinds, probe_devices
from .gguf import GGUFHeader, InvalidGGUF, read_header
from .machine import cpu_limits
from .parameters import LoadParameters, load_parameters
from .splits import sibling_parts


def parameters_here(spec: LoadSpec, *, given: Collection[str] | None = None, probe: bool = False) -> LoadParameters:
    """Resolve a load on this machine, now. Raises ModelLoadFailed, BadInput, RuntimeFailed.

    A worker, which will load the model, asks the devices in its own process. `probe=True` is for everybody else: it
    starts no GPU driver here and leaves nothing behind, so a dry run may call it.
    """
    headers = [_header(path, spec.model_id, exact=not probe) for path in sibling_parts(spec.path)]
    names = [name for name, _scale in spec.adapters]
    adapters = [_header(path, name, exact=not probe) for name, path in zip(names, spec.adapter_paths, strict=True)]
    devices = probe_devices() if probe else _own_devices()
    return load_parameters(spec, headers, devices, cpu_limits(), given=given, adapters=adapters, gpu_kinds=gpu_kinds())


def _header(path: str | Path, model_id: str, *, exact: bool) -> GGUFHeader:
    try:
        return read_header(path, exact=exact)
    except InvalidGGUF as error:
        raise ModelLoadFailed(f"`{model_id}` {error.reason}", model=model_id, reason=error.reason) from error


def _own_devices() -> list[Device]:
    from .devices import list_devices  # opens llama.cpp's libraries, which a dry run leaves alone

    return list_devices()
