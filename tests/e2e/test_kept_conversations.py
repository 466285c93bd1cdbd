"""Conversations in turns on the real model: each finds its own beginning again, whoever spoke between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.asking import Asking, chat
from localllm.runtime.backend import Backend, open_backend
from localllm.runtime.engine.engine import Engine
from localllm.runtime.types import LoadSpec

pytestmark = pytest.mark.model

TALKS = ("Ada likes boats", "Bob likes bread", "Eve likes birds", "Ian likes books")


@pytest.fixture
def backend(model_path: Path) -> Iterator[Backend]:
    spec = LoadSpec(model_id="m", path=str(model_path), n_ctx=2048, n_slots=8, n_threads=2, gpu_layers=0)
    loaded = open_backend(spec)
    yield loaded
    loaded.close()


def test_four_conversations_in_turns_compute_only_what_is_new_in_each(backend: Backend) -> None:
    asking = Asking(backend, Engine(backend))
    talks, known = dict.fromkeys(TALKS, ""), dict.fromkeys(TALKS, 1)
    parked = 0
    for turn in range(4):
        for name in TALKS:
            talks[name] += chat(f"{name}, as everybody knows who met them. Tell me fact number {turn} about that.")
            told = asking.ask(talks[name], max_tokens=8)
            talks[name] += f"{told.text}<|im_end|>\n"
            usage = told.done.usage

            # its own question is there whole; where the answer's text begins, other tokens may
            assert usage.cached_tokens >= known[name] - 2
            assert turn == 0 or usage.cached_tokens > 0.5 * usage.prompt_tokens
            known[name] = usage.prompt_tokens
            parked = max(parked, asking.engine.metrics()["kv_cells_parked"])

    assert parked > backend.info.idle_cells  # type: ignore[operator]
    assert sum(known.values()) > 500
