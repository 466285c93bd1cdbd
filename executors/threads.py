"""Blocking work beside the event loop, in modules that a dry run imports without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the work in a thread and wait for it. asyncio is imported here: it takes longer than a whole report."""
    import asyncio

    return await asyncio.to_thread(work, *args, **kwargs)
