"""One model of the pool: what is known of it, who uses it, and how much room it takes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from attrs import define, field

from ..errors import LocalLLMError
from .messages import Loaded, Status
from .metrics import RequestMetrics
from .process import WorkerProcess
from .protocol import LoadProgress
from .residency import Resident
from .types import LoadedModel, LoadSpec, ModelState


@define(eq=False, kw_only=True)
class Entry:
    """One model of the pool: its worker, its state and who uses it."""

    spec: LoadSpec
    state: ModelState = "loading"
    worker: WorkerProcess | None = None
    report: Loaded = field(factory=lambda: Loaded({}, {}, (), {}))
    metrics: RequestMetrics = field(factory=RequestMetrics)
    load: asyncio.Task[None] | None = None
    end: asyncio.Task[None] | None = None
    ended_by: LocalLLMError | None = None
    listeners: list[LoadProgress] = field(factory=list)
    told: tuple[str, float] | None = None
    """What the load told last of its progress."""
    memory_bytes: int = 0
    lane_bytes: int = 0
    """What of it is the strict lane's, once a request asked for that."""
    has_lane: bool = False
    admitted: bool = False
    load_s: float = 0.0
    loaded_at: float | None = None
    last_used_at: float | None = None
    used: float = 0.0
    open: int = 0
    ttl: asyncio.TimerHandle | None = None

    def slots(self) -> int:
        """How many requests run at once; before the load has said so, what was asked for."""
        return int(self.report.applied.get("n_slots") or self.spec.n_slots or 1)

    def listen(self, listener: LoadProgress) -> None:
        """Tell this one too how the load goes on, and at once how far it is."""
        self.listeners.append(listener)
        if self.told is not None:
            listener(*self.told)

    def progress(self, stage: str, fraction: float) -> None:
        """Tell everybody who waits for the load."""
        self.told = (stage, fraction)
        for listener in self.listeners:
            listener(stage, fraction)

    def count_lane(self) -> None:
        """A strict request is on its way: the worker makes the lane's context, which stays."""
        if not self.has_lane:
            self.has_lane, self.lane_bytes = True, self.expected_lane_bytes()
            self.memory_bytes += self.lane_bytes

    def expected_lane_bytes(self) -> int:
        """What the strict lane's context takes, by the estimate; 0 where there is none."""
        return int((self.report.memory.get("estimate") or {}).get("strict_lane_bytes", 0))

    def touch(self) -> None:
        """Somebody used it now."""
        self.used, self.last_used_at = time.monotonic(), time.time()

    def resident(self) -> Resident:
        """What eviction decides by."""
        return Resident(
            model_id=self.spec.model_id,
            memory_bytes=self.memory_bytes,
            last_used=self.used,
            busy=self.open > 0 or self.state != "ready",
            pinned=self.spec.pin,
        )

    def snapshot(self, waiting: int = 0) -> LoadedModel:
        """The model as `status` shows it; `waiting` are requests that wait for it and are not `open` yet."""
        running = min(self.open, self.slots())
        worker, told = self.worker, self.worker.last_status if self.worker else Status(0)
        return LoadedModel(
            model_id=self.spec.model_id,
            state=self.state,
            backend=self.spec.backend,
            spec=self.spec,
            pid=worker.pid if worker else None,
            applied=self.report.applied,
            origins=self.report.origins,
            warnings=self.report.warnings,
            memory=self._memory(),
            load_s=self.load_s,
            loaded_at=self.loaded_at,
            last_used_at=self.last_used_at,
            requests_running=running,
            requests_queued=self.open - running + waiting,
            slots=tuple(slot for slot in told.slots if worker and worker.runs(slot.request_id)),
            metrics={**self.metrics.as_dict(), "engine": told.metrics},
            pinned=self.spec.pin,
        )

    def _memory(self) -> dict[str, Any]:
        told = self.report.memory
        if not self.lane_bytes:
            return told
        lane: dict[str, Any] = {"strict_lane_bytes": self.lane_bytes}
        return told | lane | ({"total_bytes": told["total_bytes"] + self.lane_bytes} if "total_bytes" in told else {})


def expected_bytes(spec: LoadSpec) -> int:
    """What a model will take: `options["memory_bytes"]`, else the estimate from its header, else its file's size.

    Reads the header, and asks a GPU's driver in a process of its own where there is one; blocking.
    """
    given = spec.options.get("memory_bytes")
    if given is not None or not spec.path:
        return int(given or 0)
    from .models.placement import parameters_here

    try:
        return parameters_here(spec, probe=True).estimate.needed_bytes
    except (LocalLLMError, OSError):  # the load itself will say what is wrong with it
        path = Path(spec.path)
        return path.stat().st_size if path.is_file() else 0
