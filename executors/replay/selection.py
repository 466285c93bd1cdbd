"""Which steps run: by tag, from a step on, those that failed, those that are still to come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from ...errors import BadInput, NotFound

if TYPE_CHECKING:
    from ...planner.files.steps import PlanFile, Step
    from ...planner.plans.replay import Replay
    from .memory import Earlier


@frozen(kw_only=True)
class Selection:
    """The steps of one file that were asked for, by number."""

    numbers: frozenset[int]
    only_failed: bool = False
    resume: bool = False

    def includes(self, step: Step) -> bool:
        """Whether the step was asked for."""
        return step.index in self.numbers

    def is_done(self, step: Step, iteration: int, earlier: Earlier) -> bool:
        """Whether the step passed earlier and need not run again."""
        return (self.only_failed or self.resume) and earlier.passed((step.index, iteration), step.name)

    def has_unfinished(self, file: PlanFile, earlier: Earlier) -> bool:
        """Whether a step that was asked for did not pass last time, in all of its iterations."""
        passed: dict[int, bool] = {}
        for (number, _), (_, mark) in earlier.marks.items():
            passed[number] = passed.get(number, True) and mark == "passed"
        return any(not passed.get(step.index, False) for step in file.steps if self.includes(step))


def select(files: Sequence[PlanFile], plan: Replay) -> list[Selection]:
    """What is asked for of each file. Raises NotFound for a step that no file has.

    `--from` counts in the files that have such a step; the others then have nothing to do.
    """
    firsts = [_first(file, plan.from_step) for file in files]
    if plan.from_step is not None and not any(firsts):
        raise NotFound(f"no step is called `{plan.from_step}`", hint=_nearest(files, plan.from_step), param="from_step")
    wanted = {tag.strip() for given in plan.tags for tag in given.split(",")}
    return [
        Selection(
            numbers=frozenset(
                step.index
                for step in file.steps
                if first is not None and step.index >= first and (not wanted or wanted & set(step.tags))
            ),
            only_failed=plan.only_failed,
            resume=plan.resume,
        )
        for file, first in zip(files, firsts, strict=True)
    ]


def refuse_empty(plan: Replay) -> BadInput:
    """The error of a replay that has nothing to run."""
    if plan.only_failed:
        return BadInput("no step failed last time", hint="`--allow-empty` counts that as done")
    if plan.tags:
        return BadInput(f"no step has the tag {' or '.join(f'`{tag}`' for tag in plan.tags)}", param="tags")
    return BadInput("there is no step to run", hint="`--allow-empty` counts that as done")


def _first(file: PlanFile, name: str | None) -> int | None:
    """The number of the first step to run; None where the file has no such step."""
    if name is None:
        return 1
    for step in file.steps:
        if name in (step.name, str(step.index)):
            return step.index
    return None


def _nearest(files: Sequence[PlanFile], name: str) -> str | None:
    from difflib import get_close_matches

    near = get_close_matches(name, {step.name for file in files for step in file.steps}, n=1)
    return f"did you mean `{near[0]}`?" if near else None
