"""How an executor says what it would do: its preview, which a dry run calls instead of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from ..planner.report import Facts
    from .context import Context
    from .events import Events

Executor = Callable[[Any, "Context"], "Events"]


ASK_SERVER = "`--ask-server` tells"
"""Ends what a dry run cannot know from here and the running server can."""


class Preview(Protocol):
    """Reads what it needs and tells the facts; it never writes, opens a socket or loads a model."""

    def __call__(self, plan: Any, ctx: Context, /) -> Facts: ...


E = TypeVar("E", bound=Executor)

ATTRIBUTE = "__localllm_preview__"


def previewed(preview: Preview) -> Callable[[E], E]:
    """Attach the preview to its executor; dispatch refuses to dry-run an executor without one."""

    def attach(executor: E) -> E:
        setattr(executor, ATTRIBUTE, preview)
        return executor

    return attach


def preview_of(executor: Executor) -> Preview | None:
    """The executor's preview, or None where it has none."""
    found: Preview | None = getattr(executor, ATTRIBUTE, None)
    return found
