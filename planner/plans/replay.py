"""The plans of `localllm replay` and `localllm plan lock`: plan files run, and what they were written against."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, argument, option


@frozen(kw_only=True)
class Replay:
    """Run plan files step by step and check what is expected of each."""

    command: ClassVar[Literal["replay"]] = "replay"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "create", "update", "delete", "network", "gpu", "exec")
    on_server: ClassVar[bool] = False

    files: tuple[str, ...] = argument(
        help="Plan files, YAML or JSON; `-` reads standard input", min_length=1, max_length=10_000, client_path=True
    )
    jobs: int = option(1, help="How many files run at the same time", ge=1, le=256)
    fail_fast: bool = option(False, help="Start no further step once one has failed")
    tags: tuple[str, ...] = option((), help="Only steps with one of these tags (may be given several times)")
    from_step: str | None = option(None, help="Begin at the step of this name or number", min_length=1, flag="from")
    only_failed: bool = option(False, help="Only steps that did not pass last time")
    resume: bool = option(False, help="Go on where the last replay of the file was interrupted")
    var: tuple[str, ...] = option((), help="Variable as `name=value` (may be given several times)")
    vars_file: str | None = option(None, help="YAML or JSON file of variables", min_length=1, client_path=True)
    report: tuple[str, ...] = option(
        (), help="Also write a report: `junit=FILE`, `json=FILE` or `md=FILE` (may be given several times)"
    )
    update: bool = option(False, help="Write what came out into the files where something else was expected")
    allow_empty: bool = option(False, help="Count it as done where no step is selected")
    timeout_s: float = option(600.0, help="Seconds that a step may take which says nothing itself", gt=0, le=86_400)


@frozen(kw_only=True)
class PlanLock:
    """Write into a plan file which weights, templates and build it belongs to; a replay then checks them."""

    command: ClassVar[Literal["plan.lock"]] = "plan.lock"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "update")
    on_server: ClassVar[bool] = False

    file: str = argument(help="Plan file, YAML or JSON", min_length=1, client_path=True, example="tour.plan.yaml")
    models: tuple[str, ...] = option(
        (), help="Models to lock (may be given several times); unset means those the steps name", flag="model"
    )
