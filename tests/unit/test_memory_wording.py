"""Memory for people: by device, with what would fit; and a loaded model's context beside its pool."""

from __future__ import annotations

from typing import Any

from localllm.executors.events import Result
from localllm.executors.memory_wording import measured_text, memory_lines
from localllm.executors.wording import report_text, text_of

MEMORY: dict[str, Any] = {
    "needed_bytes": 5_100_000_000,
    "devices": [
        {"name": "CPU", "type": "cpu", "weights_bytes": 1e8, "kv_bytes": 0, "compute_bytes": 0, "fits": True},
        {"name": "CUDA0", "type": "gpu", "weights_bytes": 4e9, "kv_bytes": 1e9, "compute_bytes": 0, "fits": False},
        {"name": "CUDA1", "type": "gpu", "weights_bytes": 0, "kv_bytes": 0, "compute_bytes": 0, "fits": True},
    ],
    "fits": False,
    "alternatives": [{"changes": {"n_ctx": 4096, "cache_type_k": "q8_0"}, "needed_bytes": 4.2e9}],
}


def test_a_report_tells_memory_by_device_and_what_would_fit() -> None:
    assert memory_lines(MEMORY) == [
        "memory of CPU: 100.0 MB, fits (weights 100.0 MB)",
        "memory of CUDA0: 5.0 GB, does not fit (weights 4.0 GB, kv 1.0 GB)",
        "would fit: `--n-ctx 4096 --cache-type-k q8_0` (4.2 GB)",
    ]
    text = report_text({"resolved": {"model_id": "m", "memory": MEMORY}})
    assert "\n".join(memory_lines(MEMORY)) in text
    assert "memory.fits          no\n" in text
    assert "item" not in text


def test_what_a_load_took_is_told_apart_from_what_it_mapped() -> None:
    took = {"measured_bytes": 2e8, "estimate_error": -0.01}

    assert measured_text(took) == "took 200.0 MB, estimated -1.0%"
    beside = measured_text(took | {"mapped_bytes": 1e8})
    assert beside == "took 200.0 MB beside 100.0 MB of weights mapped from the file, estimated -1.0%"


def test_status_shows_the_pool_beside_the_context_and_what_the_buffers_take() -> None:
    loaded = {
        "model_id": "m",
        "state": "ready",
        "applied": {"n_ctx": 512, "n_ctx_pool": 4096, "n_slots": 8},
        "memory": {"estimate": {"needed_bytes": 9e9}, "total_bytes": 1.5e9},
        "requests_running": 1,
        "requests_queued": 2,
        "warnings": ["it is slow\x1b[0m"],
    }
    loading = {"model_id": "n", "state": "loading"}
    text = text_of("status", Result(data={"running": True, "models": [loaded, loading]}))
    rows = [line.split() for line in text.splitlines()]

    assert ["model", "state", "n_ctx", "pool", "slots", "memory", "running", "queued"] in rows
    assert ["m", "ready", "512", "4096", "8", "1.5", "GB", "1", "2"] in rows
    assert text.endswith("\nwarning: m: it is slow\\x1b[0m")
