"""Every command has an executor and a preview, and a dry run touches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import Unsupported
from localllm.executors.context import Context
from localllm.executors.dispatch import dispatch, executor_of, preview
from localllm.executors.events import Event, Events, Result
from localllm.executors.ledger import ledger_of
from localllm.executors.preview import preview_of
from localllm.planner.codec import load_plan
from localllm.planner.plans import COMMANDS

MINIMAL: dict[str, dict[str, Any]] = {
    "models.show": {"model": "m"},
    "models.load": {"model": "m"},
    "models.unload": {"model": "m"},
    "models.pull": {"name": "smollm2-135m"},
    "config.get": {"key": "port"},
    "config.set": {"key": "port", "value": "1"},
    "config.unset": {"key": "port"},
    "plan.undo": {"entry": "last"},
    "chat": {"messages": [{"role": "user", "content": "hello"}], "model": "m"},
    "complete": {"prompts": ["hello"], "model": "m"},
    "explain": {"target": ["status"]},
}
HEAVY = ("litestar", "uvicorn", "llama_cpp", "httpx", "jinja2", "rich", "asyncio", "tomlkit", "numpy")


def plan_of(command: str, tmp_path: Path) -> dict[str, Any]:
    """The smallest plan of a command."""
    if command == "apply":
        saved = tmp_path / "plan.json"
        saved.write_text(json.dumps({"command": "version"}))
        return {"command": command, "file": str(saved)}
    if command in ("replay", "plan.lock", "plan.validate", "plan.diff", "plan.id"):
        file = tmp_path / "one.plan.json"
        file.write_text(json.dumps({"format_version": "1.0", "steps": [{"plan": {"command": "version"}}]}))
        operands: dict[str, dict[str, Any]] = {
            "replay": {"files": [str(file)]},
            "plan.validate": {"files": [str(file)]},
            "plan.diff": {"a": str(file), "b": str(file)},
        }
        return {"command": command, **operands.get(command, {"file": str(file)})}
    if command == "plan.undo":
        for folder in (tmp_path, tmp_path / "state"):
            write_entry(folder)
    return {"command": command, **MINIMAL.get(command, {})}


def write_entry(state_dir: Path) -> None:
    """An entry that can be taken back."""
    ledger = ledger_of(state_dir)
    keys = {"kind": "keys", "before": [], "after": []}
    record = {"plan": {"command": "auth.enable"}, "actor": {}, "effects": [], "outcome": "done", "undo": keys}
    ledger.append({"entry": "e1", **record})


@pytest.fixture
def serving(make_context: Callable[..., Context]) -> Callable[..., Context]:
    """Contexts into which the server's executor is injected, as the program does."""
    from localllm.api.serve import serve

    return lambda **more: make_context(serve=serve, **more)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_executor_with_a_preview(
    command: str, serving: Callable[..., Context], tmp_path: Path
) -> None:
    executor = executor_of(load_plan(plan_of(command, tmp_path)), serving())

    assert preview_of(executor) is not None
    assert executor.__doc__


@pytest.mark.parametrize("command", COMMANDS)
def test_the_dry_run_of_every_command_is_a_whole_report(
    command: str, serving: Callable[..., Context], tmp_path: Path
) -> None:
    raw = plan_of(command, tmp_path)
    before = sorted(tmp_path.rglob("*"))

    report = preview(load_plan(raw), serving())

    # the report of `apply` is that of the plan in the file
    assert report["plan"]["command"] == ("version" if command == "apply" else command)
    assert report["plan_id"].startswith("sha256:")
    assert report["summary"]
    json.dumps(report, allow_nan=False)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ("serve", "apply")])
def test_a_dry_run_imports_nothing_heavy(command: str, tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from localllm.executors.context import Context\n"
        "from localllm.executors.dispatch import preview\n"
        "from localllm.planner.codec import load_plan\n"
        "from localllm.planner.settings import resolve_settings\n"
        "raw, heavy, folder = json.loads(sys.argv[1]), sys.argv[2].split(), sys.argv[3]\n"
        "flags = {'models_dir': folder, 'state_dir': folder}\n"
        "settings = resolve_settings(flags, {}, config_file=folder + '/c.toml', must_exist=False)\n"
        "preview(load_plan(raw), Context(settings=settings, dry_run=True))\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    allowed = {"tomlkit"} if command in ("config.set", "config.unset") else set()
    heavy = " ".join(name for name in HEAVY if name not in allowed)
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(plan_of(command, tmp_path)), heavy, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout == "[]\n"


def test_a_dry_run_never_calls_the_executor(
    make_context: Callable[..., Context], run_plan: Callable[..., list[Event]], tmp_path: Path
) -> None:
    (result,) = run_plan({"command": "config.set", "key": "port", "value": "1"}, make_context(dry_run=True))

    assert isinstance(result, Result)
    assert result.data["plan"]["command"] == "config.set"
    assert os.listdir(tmp_path) == []


def test_an_executor_without_a_preview_says_unsupported(make_context: Callable[..., Context]) -> None:
    async def bare(_plan: Any, _ctx: Context) -> Events:
        yield Result(data={})

    with pytest.raises(Unsupported, match="dry run"):
        preview(load_plan({"command": "serve"}), make_context(serve=bare))


def test_serve_cannot_run_where_it_was_not_injected(make_context: Callable[..., Context]) -> None:
    with pytest.raises(Unsupported):
        preview(load_plan({"command": "serve"}), make_context())


def test_closing_the_events_closes_the_executor(make_context: Callable[..., Context]) -> None:
    import asyncio

    closed = []

    async def endless(_plan: Any, _ctx: Context) -> Events:
        try:
            while True:
                yield Result(data={})
        finally:
            closed.append(True)

    async def leave() -> None:
        events = dispatch(load_plan({"command": "serve"}), make_context(serve=endless))
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())

    assert closed == [True]


def test_a_dry_run_on_the_server_is_the_same_plan(make_context: Callable[..., Context], tmp_path: Path) -> None:
    plan = load_plan(plan_of("chat", tmp_path))
    here = preview(plan, make_context(dry_run=True))
    there = preview(plan, make_context(dry_run=True, on_server=True, backend="echo"))

    assert here["plan"] == there["plan"]
    assert here["plan_id"] == there["plan_id"]
