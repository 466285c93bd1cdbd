from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from localllm.runtime.models.device import gpu_kinds
from localllm.runtime.models.devices import Device, cpu_device, devices_to_offload_to, list_devices, probe_devices
from localllm.runtime.models.machine import memory_limits


def device(name: str, kind: str) -> Device:
    return Device(name=name, description="", type=kind, free_bytes=1, total_bytes=1)  # type: ignore[arg-type]


def test_the_registry_lists_the_cpu_with_the_memory_this_process_may_use() -> None:
    cpu = next(device for device in list_devices() if device.type == "cpu")

    assert cpu.description
    assert cpu.total_bytes == memory_limits().total_bytes
    assert 0 < cpu.free_bytes <= cpu.total_bytes


def test_the_kinds_of_gpu_are_those_that_the_build_has_libraries_for(tmp_path: Path) -> None:
    for name in ("libggml.so", "libggml-base.so.0", "libggml-cpu-haswell.so", "libggml-rpc.so.0", "libggml-blas.so"):
        (tmp_path / name).touch()
    assert gpu_kinds(tmp_path) == ()

    for name in ("libggml-vulkan.so", "libggml-cuda.so", "libggml-cuda.so.0", "libggml-cuda.so.0.9.4"):
        (tmp_path / name).touch()
    assert gpu_kinds(tmp_path) == ("cuda", "vulkan")


def test_a_probe_imports_no_llama_cpp() -> None:
    program = (
        "import sys; from localllm.runtime.models.devices import probe_devices; "
        "assert any(device.type == 'cpu' for device in probe_devices()); print('llama_cpp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)

    assert done.stdout.strip() == "False"


def test_the_module_prints_devices_for_the_probe() -> None:
    command = [sys.executable, "-m", "localllm.runtime.models.devices"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)

    assert '"type": "cpu"' in done.stdout


def test_the_probe_and_the_registry_agree_on_names() -> None:
    assert {device.name for device in probe_devices()} == {device.name for device in list_devices()}
    assert cpu_device().takes_layers is False


@pytest.mark.parametrize(
    ("kinds", "chosen"),
    [
        (("cpu",), []),
        (("cpu", "gpu", "gpu"), ["d1", "d2"]),
        (("cpu", "igpu", "gpu"), ["d2"]),
        (("cpu", "igpu"), ["d1"]),
        (("cpu", "accelerator"), []),
    ],
)
def test_layers_go_to_gpus_and_to_an_integrated_one_only_without_others(
    kinds: tuple[str, ...], chosen: list[str]
) -> None:
    found = devices_to_offload_to([device(f"d{index}", kind) for index, kind in enumerate(kinds)])

    assert [each.name for each in found] == chosen
