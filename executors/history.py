"""`localllm plan log` and `localllm plan undo`: the ledger for people, and the way back."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LocalLLMError, NotFound, StalePlan, Unsupported
from ..planner.fields import Effect
from ..planner.report import Facts
from .events import Progress, Record, Result
from .ledger import Entry, ledger_of
from .preconditions import config_precondition, keys_precondition, server_precondition
from .preview import previewed
from .threads import in_thread

if TYPE_CHECKING:
    from ..planner.plans.ledger import PlanLog, PlanUndo
    from .context import Context
    from .events import Events

NEWEST = "last"


def preview_log(_plan: PlanLog, ctx: Context) -> Facts:
    """Reading the ledger is all there is."""
    return Facts(effects=("read",), resolved={"ledger": str(ledger_of(ctx.settings.state_dir).path)})


@previewed(preview_log)
async def log(plan: PlanLog, ctx: Context) -> Events:
    """The newest entries, oldest first."""
    ledger = ledger_of(ctx.settings.state_dir)
    entries = await in_thread(ledger.entries)
    undone = _undone(entries)
    rows = [entry_row(entry, undone.get(entry.id)) for entry in entries[len(entries) - plan.lines :]]
    yield Result(data={"ledger": str(ledger.path), "total": len(entries), "entries": rows if plan.lines else []})


def entry_row(entry: Entry, undone_by: str | None = None) -> dict[str, Any]:
    """An entry as JSON; what undoing it needs stays in the ledger, because a hash of a key is among it."""
    shown = ("time", "plan_id", "plan", "actor", "effects", "instance", "duration_ms", "result", "error", "undid")
    row = {name: entry.record.get(name) for name in shown}
    return {
        "entry": entry.id,
        "command": entry.command,
        "outcome": entry.outcome,
        "reversible": entry.undo is not None and undone_by is None,
        "undone_by": undone_by,
        **{name: value for name, value in row.items() if value is not None},
    }


def preview_undo(plan: PlanUndo, ctx: Context) -> Facts:
    """What would be brought back. A state that has changed since is a warning here, and refused when it runs."""
    entry = _find(plan.entry, ctx)
    change = entry.undo
    if change is None:
        return Facts(effects=("read",), warnings=(f"would be refused: {_why_not(entry)}",))
    facts = Facts(
        effects=_effects(change),
        resolved={"entry": entry.id, "command": entry.command, "kind": change["kind"]},
        diff=_diff(change),
    )
    from attrs import evolve

    if change["kind"] == "models":
        unknown = ("whether the server still has what the entry left",)
        return evolve(facts, unknown=unknown, preconditions=(server_precondition(change["instance"]),))
    if change["kind"] == "config":
        facts = evolve(facts, preconditions=(config_precondition(ctx.settings),))
    else:
        facts = evolve(facts, preconditions=(keys_precondition(ctx.settings.state_dir),))
    try:
        _check_unchanged(change, ctx)
    except LocalLLMError as error:
        return evolve(facts, warnings=(f"would be refused: {error.message}",))
    return facts


@previewed(preview_undo)
async def undo(plan: PlanUndo, ctx: Context) -> Events:
    """Bring back what the entry changed. Raises StalePlan where it was changed since, and then does nothing."""
    entry = await in_thread(_find, plan.entry, ctx)
    change = entry.undo
    if change is None:
        raise Unsupported(_why_not(entry), param="entry")
    yield Progress(stage="undoing", message=f"{entry.command} ({entry.id})")
    told: dict[str, Any] = {"undid": entry.id, "command": entry.command, "kind": change["kind"], "changed": True}
    if change["kind"] == "config":
        from .config import exchange

        path, key = Path(change["path"]), change["key"]
        _check_config_file(path, ctx)
        await in_thread(exchange, path, key, change["after"], change["before"])
        told |= {"key": key, "before": change["after"], "after": change["before"], "config_file": str(path)}
    elif change["kind"] == "keys":
        from .keys import exchange_keys

        await in_thread(exchange_keys, ctx.settings.state_dir, change["after"], change["before"])
        told |= {"enabled": bool(change["before"])}
    else:
        async with aclosing(_undo_models(change, ctx)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event
        told |= {"unloaded": change["loaded"], "loaded": [load["model"] for load in change["unloaded"]]}
    yield Result(data=told)


async def _undo_models(change: dict[str, Any], ctx: Context) -> Events:
    """Unload what was loaded, load what was unloaded, by plans of the server, which keeps its own account of them."""
    plans = await _plans_back(change, ctx)
    from ..planner.codec import load_plan
    from .dispatch import dispatch

    for raw in plans:
        yield Record(data={"undoing_by": raw["command"], "model": raw["model"]})
        async with aclosing(dispatch(load_plan(raw), ctx)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Progress):
                    yield event


async def _plans_back(change: dict[str, Any], ctx: Context) -> list[dict[str, Any]]:
    """The plans that bring the server back. Raises StalePlan where it is another run or has other models since."""
    from .client import find_server

    server = await find_server(ctx)
    if server.instance != change["instance"]:
        raise _stale(f"the server at `{ctx.settings.server}` is another run")
    loaded = await _loaded(ctx)
    gone = [name for name in change["loaded"] if name not in loaded]
    back = [load["model"] for load in change["unloaded"] if load["model"] in loaded]
    if gone:
        raise _stale(f"`{gone[0]}` is not loaded any more")
    if back:
        raise _stale(f"`{back[0]}` is loaded again")
    before = change["default"]["before"]
    plans: list[dict[str, Any]] = [{"command": "models.unload", "model": name} for name in change["loaded"]]
    plans += [load | ({"make_default": True} if load["model"] == before else {}) for load in change["unloaded"]]
    if before in loaded and before not in change["loaded"] and change["default"]["after"] != before:
        plans.append({"command": "models.load", "model": before, "make_default": True})
    return plans


async def _loaded(ctx: Context) -> set[str]:
    from ..planner.codec import load_plan
    from .dispatch import dispatch

    async with aclosing(dispatch(load_plan({"command": "status"}), ctx)) as events:  # type: ignore[type-var]
        async for event in events:
            if isinstance(event, Result):
                return {model["model_id"] for model in event.data["models"]}
    return set()


def _find(name: str, ctx: Context) -> Entry:
    """The entry; `last` is the newest that can still be taken back and is no undoing itself."""
    ledger = ledger_of(ctx.settings.state_dir)
    entries = ledger.entries()
    undone = _undone(entries)
    if name == NEWEST:
        fitting = [e for e in entries if e.undo is not None and e.id not in undone and e.command != "plan.undo"]
        if not fitting:
            raise NotFound("the ledger has no entry that can be taken back", hint="`localllm plan log` lists them")
        return fitting[-1]
    entry = ledger.entry(name)
    if entry.id in undone:
        raise _stale(f"entry `{entry.id}` was taken back already, by `{undone[entry.id]}`")
    return entry


def _undone(entries: list[Entry]) -> dict[str, str]:
    """Entries that were taken back, with the entry that did; taking that one back makes the first count again."""
    undone: dict[str, str] = {}
    for entry in entries:
        target = entry.record.get("undid")
        if target is not None and entry.outcome == "done":
            undone[str(target)] = entry.id
            undone = {key: value for key, value in undone.items() if value != target}
    return undone


def _why_not(entry: Entry) -> str:
    if entry.outcome in ("running", "interrupted"):
        return f"entry `{entry.id}` (`{entry.command}`) has no end: what it changed is not known"
    if entry.outcome == "failed":
        return f"entry `{entry.id}` (`{entry.command}`) failed and changed nothing that can be taken back"
    return f"entry `{entry.id}` (`{entry.command}`) changed nothing that can be taken back"


def _effects(change: dict[str, Any]) -> tuple[Effect, ...]:
    if change["kind"] != "models":
        return ("update",)
    return ("network", "delete") if not change["unloaded"] else ("network", "create", "delete", "gpu", "exec")


def _diff(change: dict[str, Any]) -> dict[str, Any]:
    """The change the other way round; of keys only whether there are any."""
    if change["kind"] == "config":
        return {"before": {change["key"]: change["after"]}, "after": {change["key"]: change["before"]}}
    if change["kind"] == "keys":
        return {"before": {"enabled": bool(change["after"])}, "after": {"enabled": bool(change["before"])}}
    unloaded = [load["model"] for load in change["unloaded"]]
    return {"before": {"loaded": change["loaded"]}, "after": {"loaded": unloaded}}


def _check_unchanged(change: dict[str, Any], ctx: Context) -> None:
    """Raise StalePlan where the local state is not what the entry left."""
    if change["kind"] == "config":
        from .config import check_value_is

        _check_config_file(Path(change["path"]), ctx)
        check_value_is(Path(change["path"]), change["key"], change["after"])
    elif change["kind"] == "keys":
        from .keys import check_keys_are

        check_keys_are(ctx.settings.state_dir, change["after"])


def _check_config_file(path: Path, ctx: Context) -> None:
    if path != ctx.settings.config_file:
        raise StalePlan(
            f"the entry changed `{path}`, the config file now is `{ctx.settings.config_file}`",
            hint=f"name it with `--config {path}`",
        )


def _stale(message: str) -> StalePlan:
    return StalePlan(message, hint="what has changed since is not overwritten")
