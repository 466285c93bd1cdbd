"""Load parameters for the machine at hand: reads the headers, asks the devices, and resolves.

The one file here that joins disk, devices and the pure rules of `parameters`.
"""

from __future__ import annotations

from collections.abc import Collection

from ...errors import ModelLoadFailed
from ..load_spec import LoadSpec
from .device import Device, probe_devices
from .gguf import InvalidGGUF, read_header
from .machine import cpu_limits
from .parameters import LoadParameters, load_parameters
from .splits import sibling_parts


def parameters_here(spec: LoadSpec, *, given: Collection[str] | None = None, probe: bool = False) -> LoadParameters:
    """Resolve a load on this machine, now. Raises ModelLoadFailed, BadInput, RuntimeFailed.

    A worker, which will load the model, asks the devices in its own process. `probe=True` is for everybody else: it
    starts no GPU driver here and leaves nothing behind, so a dry run may call it.
    """
    try:
        headers = [read_header(path, exact=not probe) for path in sibling_parts(spec.path)]
    except InvalidGGUF as error:
        raise ModelLoadFailed(f"`{spec.model_id}` {error.reason}", model=spec.model_id, reason=error.reason) from error
    return load_parameters(spec, headers, probe_devices() if probe else _own_devices(), cpu_limits(), given=given)


def _own_devices() -> list[Device]:
    from .devices import list_devices  # opens llama.cpp's libraries, which a dry run leaves alone

    return list_devices()
