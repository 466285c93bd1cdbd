"""All files of one replay, so many at a time, and their events as one stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from attrs import evolve

from ...errors import LocalLLMError
from ..events import Event, Record
from .reports import Report, Suite
from .runner import Runner, Signals
from .tally import Tally

if TYPE_CHECKING:
    from ...planner.files.steps import PlanFile
    from ...planner.plans.replay import Replay
    from ..context import Context
    from .memory import Memory
    from .selection import Selection
    from .update import Updates

WAITING_EVENTS = 64
"""How many events may wait to be shown before the steps wait: memory stays flat."""
SHOWN_FAILURES = 100
"""How many failed steps the result lists; reports have all."""


class Run:
    """Runs the files in a task of its own; `events` gives what happens, `close` and `finish` end it in any case."""

    def __init__(
        self,
        plan: Replay,
        ctx: Context,
        files: list[PlanFile],
        selections: list[Selection],
        memories: list[Memory],
        updates: Updates | None,
        reports: list[Report],
    ) -> None:
        self.plan = plan
        self.updates = updates
        self.reports = reports
        self.signals = Signals(fail_fast=plan.fail_fast)
        self.memories = memories
        self.queue: asyncio.Queue[Event | None] = asyncio.Queue(WAITING_EVENTS)
        self.slots = asyncio.Semaphore(plan.jobs)
        self.task: asyncio.Task[None] | None = None
        self.closed = False
        self.began = time.monotonic()
        self.failures: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self.updated: list[str] = []
        self.finished = False
        self.interrupted = False
        self.runners = [
            Runner(
                file=file,
                ctx=evolve(ctx, make_runtime=lambda _: ctx.runtime, inside_replay=True),
                selection=selection,
                memory=memory,
                signals=self.signals,
                emit=self._emit,
                timeout_s=plan.timeout_s,
                updates=updates,
            )
            for file, selection, memory in zip(files, selections, memories, strict=True)
        ]

    def start(self) -> None:
        """Begin to run the files."""
        self.task = asyncio.create_task(self._work())

    async def events(self) -> AsyncIterator[Event]:
        """What happens, as it happens, until the last file has ended."""
        while self.task is not None and (event := await self.queue.get()) is not None:
            yield event
        if self.task is not None:
            await self.task  # raises what no step should have

    def stop(self) -> None:
        """End the steps that run, and start none but those of `finally`."""
        self.interrupted = True
        self.signals.stop.set()

    async def close(self) -> None:
        """Wait until every file has ended, whoever listens."""
        self.closed = True
        if self.task is None:
            return
        if not self.task.done():
            self.stop()  # who listened has gone
        try:
            while not self.task.done():
                while not self.queue.empty():
                    self.queue.get_nowait()  # whoever waits to put one goes on
                await asyncio.wait({self.task}, timeout=0.05)
        finally:
            self.task.cancel()

    def finish(self) -> None:
        """Write reports and updated files, and let go of what is kept on disk. Quick, and never raises."""
        if self.finished:
            return
        self.finished = True
        try:
            if self.updates is not None and not self.interrupted:
                for file in self.updates.edits:
                    if self._attempt(lambda file=file: self._update(file)):
                        self.updated.append(file)
            suites = [
                Suite(
                    source=runner.file.source,
                    name=runner.file.name,
                    tally=runner.tally,
                    records=runner.memory.records,
                )
                for runner in self.runners
            ]
            if self.task is not None:
                for report in self.reports:
                    self._attempt(lambda report=report: report.write(suites, self.totals()))
        finally:
            for memory in self.memories:
                memory.close()

    def totals(self) -> dict[str, Any]:
        """How many steps of all files came to what."""
        total = Tally(duration_ms=(time.monotonic() - self.began) * 1000)
        for runner in self.runners:
            total.passed += runner.tally.passed
            total.failed += runner.tally.failed
            total.skipped += runner.tally.skipped
        return total.as_dict()

    def summary(self) -> dict[str, Any]:
        """The result: totals, each file's, and the first failures."""
        return {
            **self.totals(),
            "interrupted": self.interrupted,
            "files": [
                {"file": runner.file.source, "name": runner.file.name, **runner.tally.as_dict()}
                for runner in self.runners
            ],
            "failures": self.failures,
            "reports": [str(report.path) for report in self.reports],
            "report_faults": self.faults,
            "updated": self.updated,
        }

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for runner in self.runners:
                    group.create_task(self._one(runner))
        finally:
            if not self.closed:
                await self.queue.put(None)

    async def _one(self, runner: Runner) -> None:
        if not runner.selection.numbers:
            return  # nothing of this file was asked for
        async with self.slots:
            reason = self.signals.reason_to_skip()
            if reason is not None:
                await runner.skip_all(reason)
            else:
                await runner.run()

    async def _emit(self, event: Event) -> None:
        if isinstance(event, Record) and event.data["status"] == "failed" and len(self.failures) < SHOWN_FAILURES:
            self.failures.append(event.data)
        if not self.closed:
            await self.queue.put(event)

    def _update(self, file: str) -> bool:
        assert self.updates is not None
        self.updates.write(file)
        return True

    def _attempt(self, work: Any) -> Any:
        try:
            return work()
        except OSError as error:
            self.faults.append(f"{error.filename or 'a file'} cannot be written: {error.strerror or error}")
        except LocalLLMError as error:
            self.faults.append(error.message)
        return None
