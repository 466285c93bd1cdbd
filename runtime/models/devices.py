"""The devices llama.cpp can compute on, as ggml's own registry lists them.

The package `llama_cpp` is not imported: its libraries are opened where they lie. On Linux `libX.so`, `libX.so.0`
and `libX.so.0.N` are separate copies in its wheel, and libllama uses the `.so.0` ones; opening another copy would
show a second, empty registry.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from functools import cache
from typing import Final

from attrs import asdict

from ...errors import RuntimeFailed
from .device import (
    Device,
    DeviceType,
    cpu_device,
    devices_to_offload_to,
    library_folder,
    probe_devices,
)
from .machine import memory_limits

__all__ = [
    "Device",
    "DeviceType",
    "add_rpc_server",
    "cpu_device",
    "devices_to_offload_to",
    "library_folder",
    "list_devices",
    "probe_devices",
    "serve_rpc",
]

TYPES: Final[tuple[DeviceType, ...]] = ("cpu", "gpu", "igpu", "accelerator", "meta")
"""By `enum ggml_backend_dev_type`."""


def list_devices() -> list[Device]:
    """Every device of the registry, in its order. Starts the GPU's driver in this process; `probe_devices` does not."""
    library = _ggml()
    return [_device(library, handle) for handle in _handles(library)]


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


if __name__ == "__main__":
    print(json.dumps([asdict(device) for device in list_devices()]))
