"""What the last load of each model really took, beside what had been estimated.

Weights that are mapped from the file are told apart, since they take no memory that is not the file's.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InUse
from .state import locked, write_atomically

if TYPE_CHECKING:
    from ..runtime.types import LoadedModel

KEPT = 1000
"""Models remembered; those loaded longest ago go first."""
SIZES = ("n_ctx", "n_ctx_pool", "n_slots", "n_ubatch", "flash_attention", "cache_type_k", "cache_type_v", "gpu_layers")


def measured_file(state_dir: str | Path) -> Path:
    """The file with the last measurement of each model."""
    return Path(state_dir) / "measured.json"


def measurement_of(model: LoadedModel) -> dict[str, Any] | None:
    """A load's estimate and what its buffers took, in bytes; None where the backend measured nothing."""
    memory = model.memory
    if not memory.get("measured_bytes"):
        return None
    return {
        "loaded_at": model.loaded_at or time.time(),
        "load_s": round(model.load_s, 3),
        **{name: memory[name] for name in ("estimated_bytes", "measured_bytes", "mapped_bytes", "estimate_error")},
        "parameters": {name: model.applied.get(name) for name in SIZES},
    }


def remember_measurement(state_dir: str | Path, model: LoadedModel) -> None:
    """Keep a load's measurement; a state folder that cannot be written costs the record, never the load."""
    told = measurement_of(model)
    if told is None:
        return
    path = measured_file(state_dir)
    try:
        with locked(path):
            kept = _read(path)
            kept.pop(model.model_id, None)
            kept[model.model_id] = told
            latest = dict(list(kept.items())[-KEPT:])
            write_atomically(path, (json.dumps(latest, indent=1) + "\n").encode())
    except (OSError, InUse):
        pass


def last_measurement(state_dir: str | Path, model_id: str) -> dict[str, Any] | None:
    """What the model's last load on this machine took; None where there was none."""
    found: dict[str, Any] | None = _read(measured_file(state_dir)).get(model_id)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}  # a damaged record of the past is no record
    return found if isinstance(found, dict) else {}
