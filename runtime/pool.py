"""`LocalRuntime`: one worker process a loaded model; load once, watch, restart, evict, unload.

A model's states are closed and each ends by a time-out: `loading` (given up without progress), `ready`, `unloading`
(killed after a grace time), `cooling_down` (its worker died; a request starts a new one once the pause is over).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from ..errors import (
    CoolingDown,
    InUse,
    LocalLLMError,
    ModelLoading,
    ModelNotFound,
    QueueFull,
    ShuttingDown,
    TimedOut,
    TryLater,
)
from .entry import Entry, expected_bytes
from .metrics import RequestMetrics
from .process import LogLine, Stream, WorkerProcess
from .protocol import LoadProgress
from .residency import Admission, Deaths, Limits, Resident, make_room, refusal
from .types import Done, GenerateRequest, LoadedModel, LoadSpec, Output


class LocalRuntime:
    """The `Runtime` of this machine. All methods belong to one event loop."""

    def __init__(self, limits: Limits | None = None, *, on_log: LogLine | None = None) -> None:
        self._limits = limits or Limits()
        self._on_log = on_log
        self._entries: dict[str, Entry] = {}
        self._deaths: dict[str, Deaths] = {}
        self._evicted: dict[str, LoadSpec] = {}
        self._waiting: Counter[str] = Counter()
        """By model, the requests that cannot be sent yet: their model is being loaded, or makes room."""
        self._admission = asyncio.Lock()
        self._quiet = asyncio.Event()
        self._closing = False

    # -- loading -------------------------------------------------------------------------------------------------

    async def load(
        self, spec: LoadSpec, on_progress: LoadProgress | None = None, *, queued: bool = False
    ) -> LoadedModel:
        """Load the model, or join the load that runs, or return the loaded one.

        `queued` says that a request waits for it, which takes a place in the model's queue, or raises QueueFull.
        """
        with self._place(spec.model_id, spec) if queued else nullcontext():
            return await self._loaded(spec, on_progress)

    async def _loaded(self, spec: LoadSpec, on_progress: LoadProgress | None) -> LoadedModel:
        entry = await self._settled(spec.model_id)
        if entry is None or entry.state == "cooling_down":
            entry = self._begin_load(spec, entry)
        entry.touch()
        self._arm_ttl(entry)
        if entry.load is not None:
            if on_progress is not None:
                entry.listen(on_progress)
            await self._join(entry, entry.load)
        return entry.snapshot()

    async def _join(self, entry: Entry, load: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(load)
        except asyncio.CancelledError:
            if load.cancelled() and entry.ended_by is not None:  # it was ended before it began; this task was not
                raise entry.ended_by from None
            raise

    async def _settled(self, model_id: str) -> Entry | None:
        """The model's entry, once it is not on its way out."""
        while True:
            if self._closing:
                raise ShuttingDown("the runtime is shutting down")
            entry = self._entries.get(model_id)
            if entry is None or entry.end is None:
                return entry
            await asyncio.shield(entry.end)

    def _begin_load(self, spec: LoadSpec, dead: Entry | None) -> Entry:
        deaths = self._deaths.setdefault(spec.model_id, Deaths(self._limits))
        wait_s = deaths.cooling_s(time.monotonic())
        if wait_s > 0:
            raise CoolingDown(
                f"the worker of `{spec.model_id}` died too often and is left alone for {wait_s:.0f} s",
                hint="`localllm logs` shows why it died",
                retry_after_s=int(wait_s) + 1,
                model_id=spec.model_id,
            )
        entry = Entry(spec=spec, metrics=dead.metrics if dead else RequestMetrics())
        if dead is not None:
            self._disarm_ttl(dead)
        self._entries[spec.model_id] = entry
        entry.load = asyncio.get_running_loop().create_task(self._load(entry, deaths))
        # Whoever started it may be gone when it fails; the error is then nobody's, and no cause for a warning.
        entry.load.add_done_callback(lambda task: task.cancelled() or task.exception())
        return entry

    async def _load(self, entry: Entry, deaths: Deaths) -> None:
        began = time.monotonic()
        spec = entry.spec
        try:
            await asyncio.sleep(deaths.backoff_s(began))
            async with self._admission:
                await self._admit(entry)
            entry.progress("start", 0.0)  # from here on it takes its time: what could be refused has been
            entry.worker = await WorkerProcess.spawn(spec.model_id, self._on_log)
            entry.report = await entry.worker.load(spec, entry.progress, self._limits.load_stall_s)
        except BaseException as error:
            await self._give_up(entry, deaths, error)
            if entry.ended_by is not None and isinstance(error, asyncio.CancelledError):
                raise entry.ended_by from None
            raise
        finally:
            entry.load = None
            entry.listeners.clear()
        entry.state = "ready"
        entry.load_s, entry.loaded_at = time.monotonic() - began, time.time()
        entry.memory_bytes = int(entry.report.memory.get("total_bytes") or entry.memory_bytes)
        entry.worker.on_death = partial(self._died, entry)
        self._evicted.pop(spec.model_id, None)
        if self._on_log is not None:
            for warning in entry.report.warnings:
                self._on_log(spec.model_id, "warning", warning)
        entry.touch()
        self._arm_ttl(entry)

    async def _give_up(self, entry: Entry, deaths: Deaths, error: BaseException) -> None:
        """A load failed: no worker stays, and the model is listed no longer."""
        if entry.worker is not None:
            if entry.worker.died:
                deaths.record(time.monotonic())
            await entry.worker.stop(_as_error(error), self._limits.stop_grace_s)
        self._forget(entry)

    async def _admit(self, entry: Entry) -> None:
        """Make room for the model, or say what stands in the way."""
        if self._limits.memory_budget_bytes is not None:
            entry.memory_bytes = await asyncio.to_thread(expected_bytes, entry.spec)
        await self._make_room(f"model `{entry.spec.model_id}`", entry.spec, entry.memory_bytes)
        entry.admitted = True

    async def _admit_lane(self, entry: Entry) -> None:
        """Make room for the context of strict requests, which stays once there is one; not for a model that ends."""
        async with self._admission:
            if entry.state == "ready" and not entry.has_lane:
                what = f"the strict lane of model `{entry.spec.model_id}` with the model"
                await self._make_room(what, entry.spec, entry.memory_bytes + entry.expected_lane_bytes())
            if entry.state == "ready":
                entry.count_lane()

    async def _make_room(self, what: str, spec: LoadSpec, needed_bytes: int) -> None:
        """Unload what is in the way of a model that takes so much, or raise what `refusal` says."""
        while (admission := self._admission_of(what, spec, needed_bytes)).evict:
            victim = self._entries[admission.evict[0]]
            self._evicted[victim.spec.model_id] = victim.spec
            await self._end(victim, TryLater(f"model `{victim.spec.model_id}` made room for `{spec.model_id}`"))
        if admission.refusal is not None:
            raise admission.refusal

    def _admission_of(self, what: str, spec: LoadSpec, needed_bytes: int) -> Admission:
        others: list[Resident] = [
            entry.resident()
            for entry in list(self._entries.values())
            if entry.spec.model_id != spec.model_id and (entry.admitted and entry.state != "cooling_down")
        ]
        room = make_room(others, needed_bytes, self._limits)
        return Admission(evict=room.evict, refusal=refusal(what, room, others, needed_bytes, self._limits))

    def admission(self, spec: LoadSpec) -> Admission:
        """What a load of `spec` would do to other models right now. From any thread."""
        entry = self._entries.get(spec.model_id)
        if entry is not None and entry.state in ("loading", "ready"):
            return Admission()
        needed_bytes = 0 if self._limits.memory_budget_bytes is None else expected_bytes(spec)
        return self._admission_of(f"model `{spec.model_id}`", spec, needed_bytes)

    def _died(self, entry: Entry, error: LocalLLMError) -> None:
        self._deaths[entry.spec.model_id].record(time.monotonic())
        entry.metrics.worker_deaths_total += 1
        entry.worker = None
        entry.state = "cooling_down"
        if self._on_log is not None:
            self._on_log(entry.spec.model_id, "error", error.message)

    # -- unloading -----------------------------------------------------------------------------------------------

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        """End the model's worker; returns when the process is gone."""
        entry = self._entries.get(model_id)
        if entry is None:
            raise self._not_loaded(model_id)
        if entry.end is None and not force:
            if entry.state == "loading":
                raise ModelLoading(f"model `{model_id}` is being loaded", hint="`--force` gives the load up")
            if entry.open:
                raise InUse(
                    f"model `{model_id}` answers {entry.open} request{'s' * (entry.open > 1)}",
                    hint="`--force` ends them",
                    requests=entry.open,
                )
        self._evicted.pop(model_id, None)
        await self._end(entry, TryLater(f"model `{model_id}` was unloaded"))

    async def _end(self, entry: Entry, error: LocalLLMError) -> None:
        """End the entry's worker, once; a caller that goes away does not stop the ending."""
        if entry.end is None:
            entry.ended_by, entry.state = error, "unloading"
            self._disarm_ttl(entry)
            entry.end = asyncio.get_running_loop().create_task(self._end_worker(entry, error))
        await asyncio.shield(entry.end)

    async def _end_worker(self, entry: Entry, error: LocalLLMError) -> None:
        try:
            if entry.load is not None:
                load = entry.load
                load.cancel()
                await asyncio.wait([load])
            elif entry.worker is not None:
                await entry.worker.stop(error, self._limits.stop_grace_s)
        finally:
            self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        if self._entries.get(entry.spec.model_id) is entry:
            del self._entries[entry.spec.model_id]

    def _not_loaded(self, model_id: str) -> ModelNotFound:
        return ModelNotFound(
            f"model `{model_id}` is not loaded", hint="`localllm status` lists what is", available=list(self._entries)
        )

    def _arm_ttl(self, entry: Entry) -> None:
        """Count the idle time from now."""
        self._disarm_ttl(entry)
        ttl_s = entry.spec.options.get("idle_ttl_s", self._limits.idle_ttl_s)
        if ttl_s is not None and not entry.spec.pin and not entry.open and entry.load is None:
            entry.ttl = asyncio.get_running_loop().call_later(float(ttl_s), self._expire, entry)

    def _disarm_ttl(self, entry: Entry) -> None:
        if entry.ttl is not None:
            entry.ttl.cancel()
            entry.ttl = None

    def _expire(self, entry: Entry) -> None:
        model_id = entry.spec.model_id
        self._evicted[model_id] = entry.spec
        entry.ended_by, entry.state = TryLater(f"model `{model_id}` was unloaded after being idle"), "unloading"
        entry.end = asyncio.get_running_loop().create_task(self._end_worker(entry, entry.ended_by))

    # -- telling -------------------------------------------------------------------------------------------------

    def loaded(self) -> list[LoadedModel]:
        """Every model of the pool in order of loading, as far as known without asking a worker."""
        return [entry.snapshot(self._waiting[model_id]) for model_id, entry in self._entries.items()]

    async def status(self) -> list[LoadedModel]:
        """Like `loaded`, with slots and counters asked from the workers; a busy worker's are those it told last."""
        await asyncio.gather(*(self._refresh(entry) for entry in list(self._entries.values())))
        return self.loaded()

    async def _refresh(self, entry: Entry) -> None:
        if entry.worker is None or entry.state != "ready":
            return
        await entry.worker.status(self._limits.status_timeout_s)

    # -- answering -----------------------------------------------------------------------------------------------

    async def generate(self, model_id: str, request: GenerateRequest) -> AsyncIterator[Output]:
        """Answer a request; closing the iterator cancels it."""
        with self._place(model_id, self._evicted.get(model_id)):
            entry = await self._ready(model_id)
            if request.determinism == "strict" and not request.only_prompt:
                while not entry.has_lane:  # while others make room, the model may have to go and come back
                    await self._admit_lane(entry)
                    entry = await self._ready(model_id)
        worker = entry.worker
        assert worker is not None
        stream = worker.open(request)
        meter = entry.metrics.begin(time.monotonic())
        entry.open += 1
        self._disarm_ttl(entry)
        self._set_deadline(stream, request)
        try:
            while True:
                output = await stream.next()
                meter.saw(output, time.monotonic())
                yield output
                if type(output) is Done:
                    return
        finally:
            worker.close(stream)
            meter.end()
            entry.open -= 1
            entry.touch()
            if entry.end is None:
                self._arm_ttl(entry)
            if not self._busy():
                self._quiet.set()

    @contextmanager
    def _place(self, model_id: str, spec: LoadSpec | None) -> Iterator[None]:
        """A place in the model's queue for as long as the request cannot be sent; `spec` is that of one not loaded.

        Those sent count too: who leaves this place for the worker, with no pause between, can be refused no more. How
        many slots there are without a number in the spec is known only after the load; until then it is one.
        """
        entry = self._entries.get(model_id)
        slots = entry.slots() if entry is not None else (spec.n_slots if spec is not None else None) or 1
        held = self._waiting[model_id] + (entry.open if entry is not None else 0)
        if held >= slots + self._limits.queue_limit:
            raise QueueFull(
                f"{held} requests wait for model `{model_id}`",
                retry_after_s=2,
                queue_limit=self._limits.queue_limit,
            )
        self._waiting[model_id] += 1
        try:
            yield
        finally:
            self._waiting[model_id] -= 1
            if not self._waiting[model_id]:
                del self._waiting[model_id]

    async def _ready(self, model_id: str) -> Entry:
        """The model's entry with a live worker; starts a dead or evicted one again."""
        entry = self._entries.get(model_id)
        if not self._closing and entry is not None and entry.state == "ready":
            return entry
        entry = await self._settled(model_id)
        spec = entry.spec if entry is not None else self._evicted.get(model_id)
        if spec is None:
            raise self._not_loaded(model_id)
        await self.load(spec)
        entry = self._entries.get(model_id)
        if entry is None or entry.state != "ready":
            raise TryLater(f"model `{model_id}` was unloaded meanwhile")
        return entry

    def _set_deadline(self, stream: Stream, request: GenerateRequest) -> None:
        if request.timeout_s is not None:
            error = TimedOut(f"no complete answer within {request.timeout_s:g} s", timeout_s=request.timeout_s)
            stream.timer = asyncio.get_running_loop().call_later(request.timeout_s, stream.push, error)

    def _busy(self) -> bool:
        return any(entry.open for entry in self._entries.values())

    # -- ending --------------------------------------------------------------------------------------------------

    async def aclose(self, drain_s: float = 0.0) -> None:
        """Take no more work, give running requests `drain_s` seconds, end every worker."""
        self._closing = True
        deadline = time.monotonic() + drain_s
        while self._busy() and (left_s := deadline - time.monotonic()) > 0:
            self._quiet.clear()
            try:
                await asyncio.wait_for(self._quiet.wait(), left_s)
            except TimeoutError:
                break
        error = ShuttingDown("the runtime is shutting down")
        await asyncio.gather(*(self._end(entry, error) for entry in list(self._entries.values())))


def _as_error(error: BaseException) -> LocalLLMError:
    return error if isinstance(error, LocalLLMError) else ShuttingDown("the load was given up")
