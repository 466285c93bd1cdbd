"""A model under a name with spaces, other scripts, signs and a byte that is no text, from the folder to an answer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from localllm.runtime.models.catalog import scan
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.types import Done, GenerateRequest, LoadSpec, Sampling


@pytest.mark.model
@pytest.mark.skipif(os.uname().sysname == "Darwin", reason="macOS file systems refuse such names")
def test_a_model_under_an_odd_name_loads_and_answers(model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Мои модели"
    folder.mkdir()
    os.symlink(os.fsencode(model_path), os.fsencode(folder) + "/qwen tiny ü (v1) 'x' #1%20".encode() + b"\xff.gguf")
    (entry,) = scan(folder).entries
    request = GenerateRequest(
        request_id="r",
        messages=({"role": "user", "content": "Say hello."},),
        sampling=Sampling(temperature=0),
        max_tokens=4,
    )

    async def chat() -> object:
        runtime = LocalRuntime()
        try:
            spec = LoadSpec(model_id=entry.id, path=entry.path, n_ctx=512, n_slots=1)
            assert (await asyncio.wait_for(runtime.load(spec), 200)).state == "ready"
            return [output async for output in runtime.generate(entry.id, request)][-1]
        finally:
            await runtime.aclose()

    assert entry.valid
    assert isinstance(asyncio.run(chat()), Done)
