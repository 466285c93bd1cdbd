"""One model over two devices, by llama.cpp's RPC servers on loopback: splits, the cache's place, a device that dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli, StartServer
from fixtures.bare_loop import agreeing, bare_answers
from fixtures.rpc import RpcServer, rpc_server
from fixtures.tiny_models import write_llama, write_lora
from localllm.errors import BadInput
from localllm.runtime.models.devices import library_folder
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.types import GenerateRequest, LoadedModel, LoadSpec, Piece, Sampling

MIB = 1 << 20
PROMPT = (1, *range(40, 80))
N = 8


@pytest.fixture(scope="module")
def endpoints() -> Iterator[list[str]]:
    assert list(library_folder().glob("libggml-rpc*")), "llama.cpp is built without RPC: run `make setup` anew"
    with rpc_server() as first, rpc_server() as second:
        yield [first.endpoint, second.endpoint]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of seven layers, the output layer not counted, and an adapter for it."""
    models = tmp_path_factory.mktemp("models")
    write_llama(models / "tiny.gguf", n_layers=7)
    write_lora(models / "style.gguf", n_layers=7)
    return models


def load(folder: Path, endpoints: list[str], **asked: Any) -> tuple[LoadedModel, list[bytes]]:
    """The report of a load with both devices, and the tokens of a greedy answer."""
    spec = LoadSpec(
        model_id="tiny",
        path=str(folder / "tiny.gguf"),
        options={"rpc_servers": endpoints},
        **{"n_ctx": 512, "n_slots": 1, "gpu_layers": "all", "mmap": False, **asked},
    )
    request = GenerateRequest(
        request_id="r",
        prompt=PROMPT,
        sampling=Sampling(temperature=0, ignore_eos=True),
        max_tokens=N,
        logprobs=0,
    )

    async def scenario() -> tuple[LoadedModel, list[bytes]]:
        runtime = LocalRuntime()
        try:
            model = await runtime.load(spec)
            outputs = [output async for output in runtime.generate("tiny", request)]
            return model, [each.token for output in outputs if isinstance(output, Piece) for each in output.logprobs]
        finally:
            await runtime.aclose()

    return asyncio.run(asyncio.wait_for(scenario(), 250))


def layers(model: LoadedModel) -> list[int]:
    """How many layers each device computes, the CPU first, as the report says."""
    return [device["layers"] for device in model.memory["estimate"]["devices"]]


def compare_with_buffers(model: LoadedModel, endpoints: list[str]) -> None:
    """Weights, cache and adapters by device as estimated, within what llama.cpp's log rounds."""
    names = ["CPU", *(f"RPC0[{endpoint}]" for endpoint in endpoints)]
    for kind, part in (("model", "weights_bytes"), ("kv", "kv_bytes"), ("lora", "adapter_bytes")):
        buffers = model.memory.get(f"{kind}_buffers", {})
        for name, device in zip(names, model.memory["estimate"]["devices"], strict=True):
            held = sum(size for buffer, size in buffers.items() if buffer == name)
            assert device[part] / MIB == pytest.approx(held / MIB, abs=0.03), (kind, name)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"tensor_split": (3.0, 1.0)}, [0, 6, 2]),
        ({"tensor_split": (0.0, 1.0)}, [0, 0, 8]),
        ({"tensor_split": (1.0, 1.0), "gpu_layers": 4}, [4, 2, 2]),
        ({"split_mode": "none", "main_gpu": 1}, [0, 0, 8]),
        ({"split_mode": "none", "gpu_layers": 5}, [3, 5, 0]),
        ({"tensor_split": (1.0, 3.0), "kv_offload": False}, [0, 2, 6]),
        ({"split_mode": "row", "tensor_split": (1.0, 1.0)}, [0, 4, 4]),
    ],
)
def test_a_split_puts_layers_where_it_says_and_the_answer_stays(
    folder: Path, endpoints: list[str], asked: dict[str, Any], expected: list[int]
) -> None:
    model, texts = load(folder, endpoints, **asked)
    (bare,) = bare_answers(folder / "tiny.gguf", [PROMPT], N)

    assert layers(model) == expected
    assert not any("on the CPU" in warning for warning in model.warnings)
    compare_with_buffers(model, endpoints)
    assert agreeing(texts, bare) > N // 2
    for name, value in asked.items():
        if (name, value) != ("split_mode", "row"):
            applied = model.applied[name]
            assert (tuple(applied) if isinstance(value, tuple) else applied, model.origins[name]) == (value, "flag")


def test_rows_are_split_by_layers_on_devices_that_cannot(folder: Path, endpoints: list[str]) -> None:
    model, _texts = load(folder, endpoints, split_mode="row")

    assert model.applied["split_mode"] == "layer"


def test_without_a_split_free_memory_decides(folder: Path, endpoints: list[str]) -> None:
    model, _texts = load(folder, endpoints, gpu_layers=None)

    assert (sum(layers(model)), layers(model)[0]) == (8, 0)
    assert (model.applied["tensor_split"], model.origins["tensor_split"]) in (((), "machine"), ([], "machine"))
    assert (model.applied["gpu_layers"], model.origins["gpu_layers"]) == (8, "fit")
    compare_with_buffers(model, endpoints)


def test_an_adapter_lies_with_its_layers(folder: Path, endpoints: list[str]) -> None:
    adapters = {"adapters": (("style", 0.5),), "adapter_paths": (str(folder / "style.gguf"),)}
    model, texts = load(folder, endpoints, tensor_split=(1.0, 1.0), gpu_layers=6, **adapters)
    (bare,) = bare_answers(folder / "tiny.gguf", [PROMPT], N, [(folder / "style.gguf", 0.5)])

    compare_with_buffers(model, endpoints)
    assert [device["adapter_bytes"] > 0 for device in model.memory["estimate"]["devices"]] == [True, True, True]
    assert agreeing(texts, bare) > N // 2


def test_a_gpu_that_does_not_exist_is_refused(folder: Path, endpoints: list[str]) -> None:
    with pytest.raises(BadInput, match="3 numbers for 2 GPUs"):
        load(folder, endpoints, tensor_split=(1.0, 1.0, 1.0))
    with pytest.raises(BadInput, match="no GPU 5"):
        load(folder, endpoints, split_mode="none", main_gpu=5)


@pytest.mark.model
def test_a_device_that_dies_while_streaming_ends_one_answer_and_not_the_server(
    server: StartServer, cli: Cli, model_path: Path
) -> None:
    def ask(http: Any, **more: Any) -> Any:
        body = {"messages": [{"role": "user", "content": "Write a very long story."}], "max_tokens": 900, **more}
        return http.stream("POST", "/v1/chat/completions", json=body)

    with rpc_server() as device:
        running = start_on(device, server)
        with running.client() as http:
            lines = []
            with ask(http, stream=True) as answer:
                for line in answer.iter_lines():
                    lines.append(line)
                    if len(lines) == 8:
                        device.process.kill()
            told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
            errors = [each["error"] for each in told if "error" in each]

            assert len(errors) == 1
            assert errors[0]["code"] == "worker_died"
            assert "data: [DONE]" not in lines
            assert http.get("/health").status_code == 200
            with ask(http) as refused:
                refused.read()
                assert refused.status_code in (500, 503), refused.text
            listed = json.loads(cli("--output", "json", "status", env=running.env).out)
            assert [model["state"] for model in listed["models"]] in ([], ["cooling_down"])


def start_on(device: RpcServer, server: StartServer) -> Any:
    """A real server whose model lies wholly on the device."""
    options = json.dumps({"rpc_servers": [device.endpoint]})
    return server("--model", "smollm2-135m", "--n-ctx", "1024", "--gpu-layers", "all", "--backend-options", options)
