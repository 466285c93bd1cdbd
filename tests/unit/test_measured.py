from __future__ import annotations

from pathlib import Path
from typing import Any

from localllm.executors.measured import KEPT, last_measurement, measured_file, remember_measurement
from localllm.runtime.types import LoadedModel, LoadSpec

MEMORY = {"estimated_bytes": 1100, "measured_bytes": 1000, "mapped_bytes": 300, "estimate_error": 0.1}


def loaded(model_id: str = "m", memory: dict[str, Any] = MEMORY) -> LoadedModel:
    spec = LoadSpec(model_id=model_id, path="")
    return LoadedModel(
        model_id=model_id, state="ready", backend="llama", spec=spec, applied={"n_ctx": 64}, memory=memory
    )


def test_the_last_load_of_each_model_is_remembered(tmp_path: Path) -> None:
    remember_measurement(tmp_path, loaded())
    remember_measurement(tmp_path, loaded("other"))
    remember_measurement(tmp_path, loaded(memory={**MEMORY, "measured_bytes": 2000, "estimate_error": -0.45}))
    found = last_measurement(tmp_path, "m")

    assert found is not None
    assert (found["estimated_bytes"], found["measured_bytes"], found["estimate_error"]) == (1100, 2000, -0.45)
    assert found["mapped_bytes"] == 300
    assert found["parameters"]["n_ctx"] == 64
    assert last_measurement(tmp_path, "other") is not None
    assert last_measurement(tmp_path, "unknown") is None


def test_a_backend_that_measures_nothing_leaves_no_record(tmp_path: Path) -> None:
    remember_measurement(tmp_path, loaded(memory={}))

    assert not measured_file(tmp_path).exists()


def test_a_damaged_record_is_no_record_and_is_replaced(tmp_path: Path) -> None:
    measured_file(tmp_path).write_text("{")

    assert last_measurement(tmp_path, "m") is None
    remember_measurement(tmp_path, loaded())
    assert last_measurement(tmp_path, "m") is not None


def test_a_state_folder_that_is_a_file_does_not_stop_a_load(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")

    remember_measurement(tmp_path / "state", loaded())
    assert last_measurement(tmp_path / "state", "m") is None


def test_the_record_does_not_grow_without_end(tmp_path: Path) -> None:
    rows = ",".join(f'"m{number}": {{}}' for number in range(KEPT))
    measured_file(tmp_path).write_text(f"{{{rows}}}")
    remember_measurement(tmp_path, loaded())

    assert last_measurement(tmp_path, "m0") is None
    assert last_measurement(tmp_path, "m1") == {}
    assert last_measurement(tmp_path, "m") is not None
