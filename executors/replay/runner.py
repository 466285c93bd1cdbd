"""One plan file from its first step to the last of its `finally`, which runs whatever came before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ...errors import LocalLLMError
from ...planner.files.steps import Step, applies, iterations
from ..events import Event, Progress, Record
from .memory import Memory, keepable
from .selection import Selection
from .step import Stopped, Trial, capture_all, try_step
from .tally import Tally

if TYPE_CHECKING:
    from ...planner.files.steps import PlanFile
    from ..context import Context
    from .update import Updates

FINALLY_AFTER_STOP_S = 60.0
"""How long a step of `finally` may take after Ctrl-C, where it says nothing itself: somebody waits."""
REFRESHING = frozenset({"config.set", "config.unset", "plan.undo", "apply"})
"""Commands after which the settings are read anew, as the next command line would."""


@define
class Signals:
    """What all files of a replay listen to: `fail_fast` starts no further step, `stop` also ends those that run."""

    fail_fast: bool = False
    failed: bool = False
    stop: asyncio.Event = field(factory=asyncio.Event)

    def reason_to_skip(self) -> str | None:
        """Why no further step starts; None while there is no reason."""
        if self.stop.is_set():
            return "interrupted"
        return "another step failed" if self.fail_fast and self.failed else None


@define(kw_only=True)
class Runner:
    """Runs one file in a context of its own. `emit` takes its records as they come."""

    file: PlanFile
    ctx: Context
    selection: Selection
    memory: Memory
    signals: Signals
    emit: Callable[[Event], Awaitable[None]]
    timeout_s: float
    updates: Updates | None = None
    tally: Tally = field(factory=Tally)
    known: dict[str, Any] = field(factory=dict)
    """What the steps captured so far."""
    broken: bool = False
    """A step failed that lets no other follow."""

    async def run(self) -> None:
        """Every step that was asked for, in order, then `finally`. Raises nothing but a second cancellation."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            for step in self.file.steps:
                await self._step(step)
        finally:
            # a stop that comes while `finally` runs must not cut it short
            patient = asyncio.Event()
            for step in self.file.finally_:
                await self._iterations(step, patient)
            self.tally.duration_ms = (loop.time() - began) * 1000
            if not self.signals.stop.is_set():
                self.memory.end()

    async def skip_all(self, reason: str) -> None:
        """Count every step as skipped; nothing of the file has begun, so its `finally` has nothing to end."""
        for step in self.file.steps:
            if self.selection.includes(step):
                await self._tell(step, 0, "skipped", reason=reason)

    async def _step(self, step: Step) -> None:
        if not self.selection.includes(step):
            self._recall(step)
            return
        reason = self.signals.reason_to_skip() or ("an earlier step failed" if self.broken else None)
        if reason is not None:
            await self._tell(step, 0, "skipped", reason=reason)
            return
        await self.emit(
            Progress(
                stage="replaying",
                message=f"{self.file.name}: {step.name}",
                current=step.index - 1,
                total=len(self.file.steps),
                unit="steps",
            )
        )
        await self._iterations(step, self.signals.stop)

    async def _iterations(self, step: Step, stop: asyncio.Event) -> None:
        """Run a step once, or once for each item it goes through."""
        ran = False
        try:
            for position, item in enumerate(iterations(step, self.known)):
                ran = True
                if self.signals.reason_to_skip() is not None and stop is self.signals.stop:
                    await self._tell(step, position, "skipped", reason=self.signals.reason_to_skip())
                    return
                final = stop is not self.signals.stop
                if not final and self.selection.is_done(step, position, self.memory.earlier):
                    await self._carry(step, position)
                elif not applies(step, self.known, item):
                    await self._tell(step, position, "skipped", reason="its condition is not met")
                else:
                    await self._try(step, position, item, stop)
        except LocalLLMError as error:
            await self._fault(step, error)
            return
        if not ran:
            await self._tell(step, 0, "skipped", reason="there is nothing to go through")

    async def _try(self, step: Step, position: int, item: Mapping[str, Any], stop: asyncio.Event) -> None:
        timeout_s = min(self.timeout_s, FINALLY_AFTER_STOP_S) if self.signals.stop.is_set() else self.timeout_s
        try:
            trial = await try_step(step, self.known, item, self.ctx, stop, timeout_s)
        except Stopped:
            await self._tell(step, position, "skipped", reason="interrupted")
            return
        if str(step.plan.get("command")) in REFRESHING and self.ctx.refresh is not None:
            self._refresh(self.ctx.refresh)
        if self.updates is not None and (trial.problems or trial.new_lock is not None):
            self.updates.offer(step, trial)
            if trial.passed:
                capture_all(step, trial)
        self.known.update(trial.captured)
        await self._tell(step, position, "passed" if trial.passed else "failed", trial=trial)

    def _refresh(self, refresh: Callable[[], Any]) -> None:
        try:
            self.ctx.settings = refresh()
        except LocalLLMError:
            pass  # a step broke the configuration: the next ones go on with what was

    async def _fault(self, step: Step, error: LocalLLMError) -> None:
        """A step that cannot even be prepared, such as one that uses what was never captured."""
        listed = error.data.get("problems") or [{"path": "$", "message": error.message}]
        trial = Trial(name=step.name, problems=[{"path": p["path"], "message": p["message"]} for p in listed])
        await self._tell(step, 0, "failed", trial=trial)

    def _recall(self, step: Step) -> None:
        """What a step that does not run captured last time, so that later ones find it."""
        for position in range(len(self.memory.earlier.captured)):
            found = self.memory.earlier.captured.get((step.index, position))
            if found is None:
                return
            self.known.update(found)
            self._keep_earlier(step, position, found)

    async def _carry(self, step: Step, position: int) -> None:
        """Count a step that passed last time, and take over what it captured."""
        found = self.memory.earlier.captured[(step.index, position)]
        self.known.update(found)
        if self.selection.resume:
            record = self._record(step, position, "passed", "passed before the interruption", None)
            self.tally.add("passed")
            self.memory.keep(record, found, step.name)
        else:
            self._keep_earlier(step, position, found)

    def _keep_earlier(self, step: Step, position: int, found: dict[str, Any]) -> None:
        mark = self.memory.earlier.marks.get((step.index, position))
        if mark is not None:
            record = {"step": step.index, "iteration": position, "status": mark[1], "earlier": True}
            self.memory.keep(record, found, mark[0])

    async def _tell(
        self, step: Step, position: int, status: str, *, reason: str | None = None, trial: Trial | None = None
    ) -> None:
        """Count, keep and emit what came of a step."""
        record = self._record(step, position, status, reason, trial)
        if status == "failed":
            self.signals.failed = True
            self.broken |= not step.continue_on_error
        self.tally.add(status)
        captured = None if trial is None else keepable(trial.captured, trial.secrets)
        self.memory.keep(record, captured, step.name)
        await self.emit(Record(data=record))

    def _record(
        self, step: Step, position: int, status: str, reason: str | None, trial: Trial | None
    ) -> dict[str, Any]:
        record: dict[str, Any] = {
            "file": self.file.source,
            "suite": self.file.name,
            "step": step.index,
            "name": step.name if trial is None else trial.name,
            "status": status,
            "command": str(step.plan.get("command")),
            "place": {"file": step.place.file, "line": step.place.line, "column": step.place.column},
        }
        if step.for_each is not None:
            record["iteration"] = position
        if reason is not None:
            record["reason"] = reason
        if trial is not None:
            record |= {"attempts": trial.attempts, "duration_ms": trial.duration_ms}
            if trial.outcome is not None:
                record["exit_code"] = trial.outcome.exit_code
            if trial.comparison is not None:
                record["comparison"] = trial.comparison
            if trial.problems:
                record["problems"] = trial.problems
        return record
