"""What a device is, and which devices there are, asked without starting a GPU driver in this process."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from attrs import frozen

from ...errors import RuntimeFailed
from .machine import memory_limits

DeviceType = Literal["cpu", "gpu", "igpu", "accelerator", "meta"]
NOT_OF_THIS_MACHINE: Final = ("libggml.", "libggml-base", "libggml-cpu", "libggml-rpc", "libggml-blas")
PROBE_TIMEOUT_S: Final = 20.0


@frozen(kw_only=True)
class Device:
    """Something llama.cpp computes on; free memory is of the moment it was asked for."""

    name: str
    description: str
    type: DeviceType
    free_bytes: int
    total_bytes: int

    @property
    def takes_layers(self) -> bool:
        """Whether llama.cpp puts layers on it when told to offload."""
        return self.type in ("gpu", "igpu")


def probe_devices(timeout_s: float = PROBE_TIMEOUT_S) -> list[Device]:
    """Like `list_devices`, but no driver is started in this process, and none that hangs or dies is waited for.

    A build without GPU libraries has the CPU alone, and needs no child process to say so. Raises RuntimeFailed.
    """
    if not gpu_kinds():
        return [cpu_device()]
    import subprocess  # only where there is a driver to ask: a dry run without one starts faster

    command = [sys.executable, "-m", "localllm.runtime.models.devices"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=True, stdin=subprocess.DEVNULL)
        return [Device(**row) for row in json.loads(done.stdout.splitlines()[-1])]
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        hint = "`localllm doctor` looks closer; `--gpu-layers 0` does without"
        raise RuntimeFailed("the GPU's driver does not answer", hint=hint, reason=type(error).__name__) from error


def cpu_device() -> Device:
    """The CPU with the memory this process may use; ggml itself tells the whole machine's as free."""
    memory = memory_limits()
    return Device(
        name="CPU",
        description="CPU",
        type="cpu",
        free_bytes=memory.available_bytes,
        total_bytes=memory.total_bytes,
    )


def devices_to_offload_to(devices: Sequence[Device]) -> list[Device]:
    """The devices llama.cpp splits layers over: the GPUs, and integrated ones only where there is no other."""
    gpus = [device for device in devices if device.type == "gpu"]
    return gpus or [device for device in devices if device.type == "igpu"][:1]


def library_folder() -> Path:
    """Where the libraries of `llama_cpp` lie. Raises RuntimeFailed where the package is missing."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise RuntimeFailed("llama-cpp-python is not installed", hint="`make setup` installs it")
    return Path(spec.origin).parent / "lib"


def gpu_kinds(folder: Path | None = None) -> tuple[str, ...]:
    """The kinds of GPU that llama.cpp is built for, such as `cuda`, by its libraries; no device is asked for."""
    names = {path.name for path in (library_folder() if folder is None else folder).glob("libggml*")}
    found = {name.removeprefix("libggml-").split(".")[0] for name in names if not name.startswith(NOT_OF_THIS_MACHINE)}
    return tuple(sorted(found))
