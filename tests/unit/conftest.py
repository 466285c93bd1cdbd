"""What tests of the executors share: a context in a folder of the test's own, and a plan run to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from localllm.executors.context import Context
from localllm.executors.dispatch import dispatch
from localllm.executors.events import Event, Result
from localllm.planner.codec import load_plan
from localllm.planner.settings import resolve_settings

NOBODY = "http://127.0.0.1:9"
"""A URL at which nothing answers."""

MakeContext = Callable[..., Context]
RunPlan = Callable[..., list[Event]]


@pytest.fixture
def make_context(tmp_path: Path) -> MakeContext:
    """`make_context(server=…, env={…}, dry_run=True)`: everything lies below the test's folder."""

    def make(*, env: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None, **more: Any) -> Context:
        folders = {"models_dir": str(tmp_path / "models"), "state_dir": str(tmp_path / "state"), "server": NOBODY}
        settings = resolve_settings(
            folders | dict(flags or {}), dict(env or {}), config_file=tmp_path / "config.toml", must_exist=False
        )
        return Context(settings=settings, **more)

    return make


@pytest.fixture
def run_plan(make_context: MakeContext) -> RunPlan:
    """`run_plan({"command": …})` runs a plan in a fresh context and gives all of its events."""

    def run(raw: Mapping[str, Any], ctx: Context | None = None, **more: Any) -> list[Event]:
        used = make_context(**more) if ctx is None else ctx

        async def collect() -> list[Event]:
            try:
                return [event async for event in dispatch(load_plan(raw), used)]
            finally:
                await used.aclose()

        return asyncio.run(collect())

    return run


def result_of(events: list[Event]) -> Result:
    """The result, which is the last event and the only one of its kind."""
    assert [type(event) for event in events].count(Result) == 1
    last = events[-1]
    assert isinstance(last, Result)
    return last


@pytest.fixture
def run_result(run_plan: RunPlan) -> Callable[..., Result]:
    """Like `run_plan`, for those who only want the result."""
    return lambda raw, ctx=None, **more: result_of(run_plan(raw, ctx, **more))
