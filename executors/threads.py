"""Blocking work beside the event loop, in modules that a dry run imports without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_daemon_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `in_thread` for work that may hang, such as opening a pipe: no thread that is left keeps the process."""
    import asyncio
    import threading

    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not future.done():
            future.set_result(result) if error is None else future.set_exception(error)  # type: ignore[arg-type]

    def run() -> None:
        result, fault = None, None
        try:
            result = work(*args, **kwargs)
        except BaseException as error:
            fault = error
        try:
            loop.call_soon_threadsafe(settle, result, fault)
        except RuntimeError:
            pass  # the loop has ended meanwhile: nobody waits any more

    threading.Thread(target=run, daemon=True).start()
    return await future


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the work in a thread and wait for it. asyncio is imported here: it takes longer than a whole report."""
    import asyncio

    return await asyncio.to_thread(work, *args, **kwargs)
