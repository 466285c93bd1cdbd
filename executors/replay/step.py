"""One step of a plan file, tried until it is as expected, its time is up, or the replay is stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define, evolve, field

from ...errors import LocalLLMError, TimedOut
from ...planner.files.expect import ExpectFault, capture, check_expectations, holds
from ...planner.files.steps import BoundStep, Step, bind
from ...planner.files.variables import redact
from .outcome import Outcome, outcome_of, outcome_of_error
from .recorded import as_recorded, compare, is_outdated

if TYPE_CHECKING:
    from ..context import Context

T = TypeVar("T")

LAST_MOMENTS_S = 5.0
"""How long a step may take to end once it was told to; then it is left behind."""


class Stopped(Exception):
    """The replay was stopped while the step ran."""


@define(kw_only=True)
class Trial:
    """What came of one run of a step: the last outcome, what was wrong with it, and what it captured."""

    name: str
    outcome: Outcome | None = None
    problems: list[dict[str, str]] = field(factory=list)
    captured: dict[str, Any] = field(factory=dict)
    attempts: int = 0
    duration_ms: float = 0.0
    secrets: frozenset[str] = frozenset()
    comparison: dict[str, Any] | None = None
    """How the outcome relates to the recorded one, where there is one."""
    new_lock: dict[str, Any] | None = None
    """What the outcome depended on, where the recorded one is outdated."""
    bound: BoundStep | None = None

    @property
    def passed(self) -> bool:
        return not self.problems


async def try_step(
    step: Step, known: Mapping[str, Any], item: Mapping[str, Any], ctx: Context, stop: asyncio.Event, timeout_s: float
) -> Trial:
    """Bind and run a step with its retries. Raises Stopped where the replay is stopped meanwhile."""
    began = time.monotonic()
    try:
        bound = bind(step, known, item)
    except LocalLLMError as error:
        return Trial(name=step.name, problems=_faults(error))
    trial = Trial(name=bound.name, secrets=bound.secrets, bound=bound)
    if step.dry_run:
        ctx = evolve(ctx, dry_run=True)
    plan = as_recorded(bound.plan, step.recorded)
    deadline = began + (step.timeout_s or timeout_s)
    retries = step.retry.times if step.retry is not None else 0
    for attempt in range(1, retries + 2):
        trial.attempts = attempt
        trial.outcome = await _bounded(outcome_of(plan, ctx, bound.secrets), stop, deadline)
        timed_out = trial.outcome is None
        if trial.outcome is None:
            words = f"the step did not end within {step.timeout_s or timeout_s:g} s"
            trial.outcome = outcome_of_error(TimedOut(words))
            trial.outcome.duration_ms = round((time.monotonic() - began) * 1000, 3)
        trial.problems = judge(bound, trial.outcome)
        if not trial.problems or timed_out or attempt > retries:
            break
        assert step.retry is not None
        if await _pause(step.retry.interval_s, stop, deadline):
            break
    if step.recorded is not None and trial.outcome is not None and not step.dry_run:
        compared, lock = await compare(plan, step.recorded, trial.outcome, ctx)
        trial.comparison = redact(compared.as_dict(), bound.secrets)
        if compared.failed:
            trial.problems.append({"path": "$.result", "message": redact(compared.sentence, bound.secrets)})
        if is_outdated(compared, step.recorded, lock):
            trial.new_lock = redact(lock, bound.secrets)
    if trial.passed:
        capture_all(step, trial)
    trial.duration_ms = round((time.monotonic() - began) * 1000, 3)
    return trial


async def _bounded(work: Coroutine[Any, Any, T], stop: asyncio.Event, deadline: float) -> T | None:
    """Run the work to its end; None where its time was up first. Raises Stopped."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait(
            {task, watch}, timeout=max(0.0, deadline - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
        )
        if task.done():
            return task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=LAST_MOMENTS_S)
            if task.done() and not task.cancelled():
                task.exception()  # read, or asyncio reports it as forgotten
    if stop.is_set():
        raise Stopped
    return None


async def _pause(interval_s: float, stop: asyncio.Event, deadline: float) -> bool:
    """Wait between two tries; whether the step's time was up first. Raises Stopped."""
    rest_s = deadline - time.monotonic()
    try:
        await asyncio.wait_for(stop.wait(), max(0.0, min(interval_s, rest_s)))
    except TimeoutError:
        return interval_s >= rest_s
    raise Stopped


def judge(bound: BoundStep, outcome: Outcome) -> list[dict[str, str]]:
    """What the outcome lacks of what was expected, and of what a retry waits for."""
    document = outcome.as_dict()
    try:
        found = check_expectations(bound.expect or {}, document)
        problems = [{"path": problem.path, "message": problem.message} for problem in found]
        if bound.until is not None and not problems and not holds(bound.until, document):
            problems.append({"path": "$", "message": "what `until` waits for did not come"})
    except ExpectFault as fault:
        problems = [{"path": "$", "message": fault.message}]
    if problems and outcome.error is not None:
        problems.append({"path": "$.error", "message": str(outcome.error.get("message"))})
    redacted: list[dict[str, str]] = redact(problems, bound.secrets)
    return redacted


def capture_all(step: Step, trial: Trial) -> None:
    """Take what the step captures from its outcome; what is not there is a problem of the step."""
    assert trial.outcome is not None
    document = trial.outcome.as_dict()
    for name, path in step.capture.items():
        try:
            trial.captured[name] = capture(path, document)
        except (LookupError, ExpectFault) as error:
            message = f"`{name}` cannot be captured: {error.args[0] if error.args else path}"
            trial.problems.append({"path": path, "message": message})


def _faults(error: LocalLLMError) -> list[dict[str, str]]:
    listed = error.data.get("problems") or [{"path": "$", "message": error.message}]
    return [{"path": str(problem.get("path", "$")), "message": str(problem["message"])} for problem in listed]
