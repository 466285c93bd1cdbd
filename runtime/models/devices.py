"""The devices llama.cpp can compute on, as ggml's own registry lists them.

The package `llama_cpp` is not imported: its libraries are opened where they lie. On Linux `libX.so`, `libX.so.0`
and `libX.so.0.N` are separate copies in its wheel, and libllama uses the `.so.0` ones; opening another copy would
show a second, empty registry.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Literal

from attrs import asdict, frozen

from ...errors import RuntimeFailed
from .machine import memory_limits

DeviceType = Literal["cpu", "gpu", "igpu", "accelerator", "meta"]
TYPES: Final[tuple[DeviceType, ...]] = ("cpu", "gpu", "igpu", "accelerator", "meta")
"""By `enum ggml_backend_dev_type`."""
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


def list_devices() -> list[Device]:
    """Every device of the registry, in its order. Starts the GPU's driver in this process; `probe_devices` does not."""
    library = _ggml()
    return [_device(library, handle) for handle in _handles(library)]


def probe_devices(timeout_s: float = PROBE_TIMEOUT_S) -> list[Device]:
    """Like `list_devices`, but no driver is started in this process, and none that hangs or dies is waited for.

    A build without GPU libraries has the CPU alone, and needs no child process to say so. Raises RuntimeFailed.
    """
    if not _has_gpu_libraries():
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


def add_rpc_server(endpoint: str) -> list[Device]:
    """Register llama.cpp's RPC server at `HOST:PORT` as devices of this process, before a model is loaded.

    Raises RuntimeFailed where the build has no RPC or nobody answers.
    """
    library, rpc = _ggml(), _library("ggml-rpc")
    if rpc is None:
        raise RuntimeFailed("this build of llama.cpp has no RPC device", hint="build it with `-DGGML_RPC=ON`")
    rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    rpc.ggml_backend_rpc_add_server.argtypes = [ctypes.c_char_p]
    _require_listener(endpoint)
    before = len(list(_handles(library)))
    registry = rpc.ggml_backend_rpc_add_server(endpoint.encode())
    if not registry:
        raise RuntimeFailed(f"no RPC server answers at `{endpoint}`")
    library.ggml_backend_register.argtypes = [ctypes.c_void_p]
    library.ggml_backend_register(registry)
    return [_device(library, handle) for handle in list(_handles(library))[before:]]


def _require_listener(endpoint: str) -> None:
    """llama.cpp ends the process where nobody answers, so look first."""
    import socket

    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise RuntimeFailed(f"no RPC server answers at `{endpoint}`") from error


def serve_rpc(endpoint: str, n_threads: int = 1) -> None:
    """Offer this process's CPU as an RPC device at `HOST:PORT`; returns only on failure. For tests, on loopback."""
    library, rpc = _ggml(), _library("ggml-rpc")
    if rpc is None:
        raise RuntimeFailed("this build of llama.cpp has no RPC device", hint="build it with `-DGGML_RPC=ON`")
    library.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    cpu = ctypes.c_void_p(library.ggml_backend_dev_by_type(TYPES.index("cpu")))
    start = rpc.ggml_backend_rpc_start_server
    start.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    ]
    start.restype = None
    start(endpoint.encode(), None, n_threads, 1, (ctypes.c_void_p * 1)(cpu))


def library_folder() -> Path:
    """Where the libraries of `llama_cpp` lie. Raises RuntimeFailed where the package is missing."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise RuntimeFailed("llama-cpp-python is not installed", hint="`make setup` installs it")
    return Path(spec.origin).parent / "lib"


@cache
def _library(name: str) -> ctypes.CDLL | None:
    folder = library_folder()
    for file in (f"lib{name}.so.0", f"lib{name}.0.dylib", f"lib{name}.dylib", f"lib{name}.so"):
        if (folder / file).exists():
            return ctypes.CDLL(str(folder / file), mode=ctypes.RTLD_GLOBAL)
    return None


def _ggml() -> ctypes.CDLL:
    library = _library("ggml")
    if library is None:
        raise RuntimeFailed("llama.cpp's libraries are not where they should be", folder=library_folder().name)
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    return library


def _handles(library: ctypes.CDLL) -> Iterator[ctypes.c_void_p]:
    for index in range(library.ggml_backend_dev_count()):
        yield ctypes.c_void_p(library.ggml_backend_dev_get(index))


def _device(library: ctypes.CDLL, handle: ctypes.c_void_p) -> Device:
    texts = []
    for function in (library.ggml_backend_dev_name, library.ggml_backend_dev_description):
        function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        texts.append((function(handle) or b"").decode("utf-8", "replace"))
    library.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    kind = TYPES[library.ggml_backend_dev_type(handle)]
    if kind == "cpu":
        memory = memory_limits()
        free, total = memory.available_bytes, memory.total_bytes
    else:
        free, total = _memory(library, handle)
    return Device(name=texts[0], description=texts[1], type=kind, free_bytes=free, total_bytes=total)


def _memory(library: ctypes.CDLL, handle: ctypes.c_void_p) -> tuple[int, int]:
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    function = library.ggml_backend_dev_memory
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)]
    function(handle, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def _has_gpu_libraries() -> bool:
    names = [path.name for path in library_folder().glob("libggml*")]
    return any(not name.startswith(NOT_OF_THIS_MACHINE) for name in names)


if __name__ == "__main__":
    print(json.dumps([asdict(device) for device in list_devices()]))
