"""The plans of `localllm plan log` and `localllm plan undo`: what was changed here, and taking it back."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, argument, option


@frozen(kw_only=True)
class PlanLog:
    """List the plans that changed something here: when, by whom, and how they ended."""

    command: ClassVar[Literal["plan.log"]] = "plan.log"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = False

    lines: int = option(50, help="How many of the newest entries to show", ge=0, le=1_000_000, aliases=("-n",))


@frozen(kw_only=True)
class PlanUndo:
    """Take back what one entry of the log changed, if nothing has changed it since."""

    command: ClassVar[Literal["plan.undo"]] = "plan.undo"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("create", "update", "delete", "network", "gpu", "exec")
    on_server: ClassVar[bool] = False

    entry: str = argument(
        help="Id of an entry as `localllm plan log` shows it, or `last` for the newest that can be taken back",
        min_length=1,
        example="last",
    )
