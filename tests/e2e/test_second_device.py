"""Offloading on a real second device: llama.cpp's RPC server on loopback, which needs no GPU."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from fixtures.buffers import real_buffers
from fixtures.rpc import RpcServer, rpc_server
from localllm.errors import WorkerDied
from localllm.runtime.models.devices import Device, library_folder
from localllm.runtime.models.estimate import Sizing, estimate
from localllm.runtime.models.fit import auto_layers
from localllm.runtime.models.gguf import read_header
from localllm.runtime.models.shape import model_shape
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.types import Done, GenerateRequest, LoadedModel, LoadSpec, Output, Piece, Sampling

MIB = 1 << 20
LIST = """
import json, sys
from localllm.runtime.models.devices import add_rpc_server, list_devices
before = [device.name for device in list_devices()]
added = add_rpc_server(sys.argv[1])
facts = [[device.name, device.type, device.free_bytes, device.total_bytes] for device in added]
print(json.dumps([before, facts, [device.name for device in list_devices()]]))
"""
GENERATE = """
import json, os, sys, time
from localllm.runtime.backend import Batch, open_backend
from localllm.runtime.types import LoadSpec, Sampling
options = json.loads(sys.argv[1])
if options["rpc"]:
    from localllm.runtime.models.devices import add_rpc_server
    add_rpc_server(options["rpc"])
backend = open_backend(LoadSpec(model_id="m", path=options["path"], n_ctx=512, gpu_layers=options["gpu_layers"]))
tokens = backend.tokenize("The capital of France is")
sampler = backend.open_sampler(Sampling(temperature=0), 1, tokens)
batch = Batch()
batch.extend(tokens, 0, 0, 1)
out = []
for step in range(options["n"]):
    backend.decode(batch)
    token = sampler.sample(len(batch) - 1)
    out.append(backend.piece(token).decode("utf-8", "replace"))
    batch = Batch()
    batch.extend([token], len(tokens) + step, 0, 1)
    print("step", file=sys.stderr, flush=True)
print(json.dumps({"text": "".join(out), "layers": backend.info.applied["gpu_layers"], "memory": backend.info.memory}))
"""


@pytest.fixture(scope="module")
def second_device() -> Iterator[RpcServer]:
    assert list(library_folder().glob("libggml-rpc*")), "llama.cpp is built without RPC: run `make setup` anew"
    with rpc_server() as server:
        yield server


def generate(path: Path, gpu_layers: int | str, rpc: str | None, n: int = 24) -> dict[str, Any]:
    """Greedy text from a process of its own, with the layers it really offloaded."""
    options = json.dumps({"path": str(path), "gpu_layers": gpu_layers, "rpc": rpc, "n": n})
    done = subprocess.run([sys.executable, "-c", GENERATE, options], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_an_rpc_server_is_a_gpu_device_of_the_process_that_adds_it(second_device: RpcServer) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST, second_device.endpoint], capture_output=True, text=True, timeout=250, check=True
    )
    before, added, after = json.loads(done.stdout)

    assert len(added) == 1
    name, kind, free, total = added[0]
    assert (kind, name in after, name in before) == ("gpu", True, False)
    assert 0 < free <= total


def test_an_endpoint_where_nobody_answers_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", LIST, "127.0.0.1:1"], capture_output=True, text=True, timeout=250)

    assert done.returncode != 0
    assert "no RPC server answers" in done.stderr


@pytest.mark.model
def test_the_same_text_comes_out_wherever_the_layers_are(model_path: Path, second_device: RpcServer) -> None:
    on_cpu = generate(model_path, 0, None)
    part = generate(model_path, 10, second_device.endpoint)
    whole = generate(model_path, "all", second_device.endpoint)

    assert (on_cpu["layers"], part["layers"], whole["layers"]) == (0, 10, 31)
    assert "Paris" in on_cpu["text"]
    assert part["text"] == on_cpu["text"]
    assert whole["text"] == on_cpu["text"]


@pytest.mark.model
@pytest.mark.parametrize("gpu_layers", [1, 10, 31])
def test_the_estimate_by_device_agrees_with_the_buffers_on_both(
    model_path: Path, second_device: RpcServer, gpu_layers: int
) -> None:
    real = real_buffers(str(model_path), rpc=second_device.endpoint, gpu_layers=gpu_layers, n_ctx=4096, n_ubatch=512)
    both = [
        Device(name=name, description="", type=kind, free_bytes=1 << 34, total_bytes=1 << 34)  # type: ignore[arg-type]
        for name, kind in (("CPU", "cpu"), ("RPC0", "gpu"))
    ]
    shape = model_shape([read_header(model_path)])
    told = estimate(shape, Sizing(n_ctx_pool=4096, n_ubatch=512, gpu_layers=gpu_layers), both)

    for device in told.devices:
        found = real[device.name]
        assert device.weights_bytes / MIB == pytest.approx(found.get("model", 0), abs=0.02)
        assert device.kv_bytes / MIB == pytest.approx(found.get("KV", 0), abs=0.02)
        assert device.compute_bytes / MIB == pytest.approx(found.get("compute", 0), rel=0.1, abs=2)


@pytest.mark.model
def test_what_auto_places_on_a_small_device_really_takes_no_more_than_it_has(
    model_path: Path, second_device: RpcServer
) -> None:
    free = 220 * MIB
    both = [
        Device(name="CPU", description="", type="cpu", free_bytes=1 << 34, total_bytes=1 << 34),
        Device(name="RPC0", description="", type="gpu", free_bytes=free, total_bytes=free),
    ]
    sizing = Sizing(n_ctx_pool=4096)
    layers = auto_layers(model_shape([read_header(model_path)]), sizing, both)
    real = real_buffers(str(model_path), rpc=second_device.endpoint, gpu_layers=layers, n_ctx=4096, n_ubatch=512)
    more = estimate(model_shape([read_header(model_path)]), evolve(sizing, gpu_layers=layers + 1), both)

    assert 5 < layers < 31
    assert sum(real["RPC0"].values()) * MIB <= free
    assert not more.fits


def spec(path: Path, model_id: str, **fields: Any) -> LoadSpec:
    return LoadSpec(model_id=model_id, path=str(path), n_ctx=1024, n_slots=2, **fields)


def ask(max_tokens: int) -> GenerateRequest:
    messages = ({"role": "user", "content": "Write a very long story."},)
    return GenerateRequest(
        request_id=os.urandom(4).hex(), messages=messages, sampling=Sampling(temperature=0), max_tokens=max_tokens
    )


@pytest.mark.model
def test_a_worker_fills_the_device_and_says_what_lies_where(model_path: Path, second_device: RpcServer) -> None:
    async def load() -> LoadedModel:
        runtime = LocalRuntime()
        try:
            options = {"rpc_servers": [second_device.endpoint]}
            return await asyncio.wait_for(runtime.load(spec(model_path, "m", options=options)), 250)
        finally:
            await runtime.aclose()

    model = asyncio.run(load())

    assert (model.applied["gpu_layers"], model.origins["gpu_layers"], model.warnings) == (31, "fit", ())
    assert any(device.startswith("RPC0") for device in model.memory["kv_buffers"])
    assert [device["name"] for device in model.memory["estimate"]["devices"]] == ["CPU", "RPC0"]
    assert (model.memory["estimate"]["fits"], model.memory["alternatives"]) == (True, [])
    assert abs(model.memory["estimate_error"]) < 0.05


@pytest.mark.model
def test_a_device_that_dies_costs_its_worker_and_nothing_else(model_path: Path) -> None:
    async def scenario(server: RpcServer) -> list[Output]:
        runtime = LocalRuntime()
        try:
            options = {"rpc_servers": [server.endpoint]}
            await runtime.load(spec(model_path, "far", gpu_layers="all", options=options))
            await runtime.load(spec(model_path, "near", gpu_layers=0))
            stream = runtime.generate("far", ask(900))
            async for output in stream:
                if isinstance(output, Piece):
                    break
            server.process.kill()
            with pytest.raises(WorkerDied):
                async for _ in stream:
                    pass
            return [output async for output in runtime.generate("near", ask(4))]
        finally:
            await runtime.aclose()

    with rpc_server() as server:
        outputs = asyncio.run(asyncio.wait_for(scenario(server), 250))

    assert isinstance(outputs[-1], Done)
