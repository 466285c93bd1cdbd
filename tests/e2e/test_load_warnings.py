"""What a load warns of, such as the CPU in place of a GPU, reaches all who look: at the server, its log, an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Cli, StartServer
from fixtures.tiny_models import write_llama
from localllm.runtime.backend import open_backend
from localllm.runtime.models import placement
from localllm.runtime.models.devices import Device, list_devices
from localllm.runtime.types import LoadSpec

NO_GPU = "there is no GPU that llama.cpp can use: all layers run on the CPU"
TOO_LONG = "the model was made for 512 tokens; beyond them its answers get worse"
NOBODY = {"LOCALLLM_SERVER": "http://127.0.0.1:9"}


@pytest.fixture
def folder(tmp_path: Path) -> dict[str, str]:
    """An environment whose models folder holds a small llama."""
    write_llama(tmp_path / "models" / "tiny.gguf")
    return {"LOCALLLM_MODELS_DIR": str(tmp_path / "models")}


def eventually(told: Callable[[], str], words: str) -> str:
    """What is told, once the words are in it."""
    end = time.monotonic() + 200
    while words not in (found := told()):
        assert time.monotonic() < end, found
        time.sleep(0.1)
    return found


def test_a_server_that_computes_on_the_cpu_where_a_gpu_was_asked_for_says_so_everywhere(
    cli: Cli, server: StartServer, folder: dict[str, str]
) -> None:
    running = server("--model", "tiny", "--gpu-layers", "999", env=folder)
    env = running.env | folder
    status = cli("status", env=env).out

    assert f"\nwarning: tiny: {NO_GPU}\n" in status
    assert f"model `tiny` is ready\nwarning: {NO_GPU}\n" in eventually(running.log, "is ready\nwarning")
    (line,) = [line for line in cli("logs", env=env).out.splitlines() if NO_GPU in line]
    assert " WARNING " in line
    assert "model=tiny" in line


def test_a_server_that_was_asked_for_nothing_special_warns_of_nothing(
    cli: Cli, server: StartServer, folder: dict[str, str]
) -> None:
    running = server("--model", "tiny", env=folder)
    eventually(running.log, "is ready")

    assert "warning" not in running.log()
    assert "warning" not in cli("status", env=running.env | folder).out
    assert NO_GPU not in cli("logs", env=running.env | folder).out


def test_a_question_that_loads_its_model_passes_on_what_the_load_warns_of(cli: Cli, folder: dict[str, str]) -> None:
    ask = ("complete", "Hello", "-m", "tiny", "--max-tokens", "2")
    asked, plain = (cli(*ask, env=folder | NOBODY | more) for more in ({"LOCALLLM_N_CTX": "1024"}, {}))

    assert (asked.code, plain.code) == (0, 0), asked.err + plain.err
    assert f"warning: model `tiny`: {TOO_LONG}\n" in asked.err
    assert "warning" not in plain.err
    assert "warning" not in asked.out


def test_a_question_for_which_the_server_loads_passes_it_on_once(
    cli: Cli, server: StartServer, folder: dict[str, str]
) -> None:
    running = server(env=folder | {"LOCALLLM_N_CTX": "1024"})
    env = running.env | folder
    first, second = (cli("complete", "Hello", "-m", "tiny", "--max-tokens", "2", env=env) for _ in range(2))

    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert first.err.count(TOO_LONG) == 1
    assert TOO_LONG not in second.err
    assert cli("logs", env=env).out.count(TOO_LONG) == 1


def test_layers_that_llama_leaves_on_the_cpu_are_told_after_the_load(
    monkeypatch: pytest.MonkeyPatch, folder: dict[str, str]
) -> None:
    gone = Device(name="GPU0", description="", type="gpu", free_bytes=1 << 33, total_bytes=1 << 33)
    monkeypatch.setattr(placement, "_own_devices", lambda: [*list_devices(), gone])
    path = f"{folder['LOCALLLM_MODELS_DIR']}/tiny.gguf"
    left = open_backend(LoadSpec(model_id="tiny", path=path))
    asked = open_backend(LoadSpec(model_id="tiny", path=path, gpu_layers=2))
    none = open_backend(LoadSpec(model_id="tiny", path=path, gpu_layers=0))

    assert left.info.warnings == ("0 of 5 layers run on the GPU that were meant for it: the others run on the CPU",)
    assert asked.info.warnings == ("0 of 2 layers run on the GPU that were meant for it: the others run on the CPU",)
    assert none.info.warnings == ()
    for backend in (left, asked, none):
        backend.close()
