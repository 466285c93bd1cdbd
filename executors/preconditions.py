"""What a report says must still hold when it is applied, and what no longer does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LocalLLMError

if TYPE_CHECKING:
    from ..planner.settings import ResolvedSettings
    from ..runtime.models.catalog import Entry
    from .context import Context


def file_preconditions(entry: Entry, models_dir: Path) -> tuple[dict[str, Any], ...]:
    """Size, time and header hash of each file of a model; paths inside the models folder are relative to it."""
    return tuple(_file_facts(Path(part), models_dir) for part in entry.parts)


def config_precondition(settings: ResolvedSettings) -> dict[str, Any]:
    """The config file's content, by its revision."""
    return {"kind": "config", "path": str(settings.config_file), "revision": settings.revision}


def keys_precondition(state_dir: str | Path) -> dict[str, Any]:
    """Which API key there is, by a mark that says nothing about it; None for no key."""
    from .keys import keys_revision

    return {"kind": "keys", "revision": keys_revision(state_dir)}


def server_precondition(instance: str) -> dict[str, Any]:
    """The very run of the server that was asked."""
    return {"kind": "server", "instance": instance}


def failed_locally(preconditions: Iterable[Mapping[str, Any]], ctx: Context) -> list[str]:
    """One sentence for each local precondition that no longer holds; one of an unknown kind does not hold."""
    failed = []
    for wanted in preconditions:
        kind = wanted.get("kind")
        if kind == "file":
            failed += _file_changes(wanted, ctx.models_dir)
        elif kind == "config":
            if wanted.get("revision") != ctx.settings.revision:
                failed.append(f"the config file `{ctx.settings.config_file}` has changed")
        elif kind == "keys":
            failed += _key_changes(wanted, ctx.settings.state_dir)
        elif kind not in ("server", "applied"):  # asked elsewhere: of the server, and when it runs
            failed.append(f"this version does not know the precondition `{kind}`")
    return failed


async def failed_on_server(preconditions: Iterable[Mapping[str, Any]], ctx: Context) -> list[str]:
    """Like `failed_locally` for the server's run. Raises ServerUnreachable where there is one to compare."""
    wanted = [item.get("instance") for item in preconditions if item.get("kind") == "server"]
    if not wanted:
        return []
    if ctx.on_server:
        instance = ctx.instance
    else:
        from .client import find_server

        instance = (await find_server(ctx)).instance
    return [f"the server at `{ctx.settings.server}` is another run" for each in wanted if each != instance]


def _key_changes(wanted: Mapping[str, Any], state_dir: str | Path) -> list[str]:
    before, now = wanted.get("revision"), keys_precondition(state_dir)["revision"]
    if before == now:
        return []
    if before is None:
        return ["an API key was made since"]
    return ["the API key was removed since" if now is None else "the API key has changed"]


def _file_facts(path: Path, models_dir: Path) -> dict[str, Any]:
    from ..runtime.models.gguf import header_hash

    stat = path.stat()
    shown = path.relative_to(models_dir) if path.is_relative_to(models_dir) else path
    return {
        "kind": "file",
        "path": os.fspath(shown),
        "size_bytes": stat.st_size,
        "mtime_ns": str(stat.st_mtime_ns),  # a JSON number is a double, which would lose the last digits
        "header_hash": header_hash(path),
    }


def _file_changes(wanted: Mapping[str, Any], models_dir: Path) -> list[str]:
    path = models_dir / str(wanted.get("path", ""))
    try:
        found = _file_facts(path, models_dir)
    except (OSError, LocalLLMError):
        return [f"`{wanted.get('path')}` is gone or cannot be read"]
    words = {"size_bytes": "size", "mtime_ns": "time of its last change", "header_hash": "header"}
    return [
        f"`{wanted.get('path')}`: its {word} has changed"
        for name, word in words.items()
        if name in wanted and str(wanted[name]) != str(found[name])
    ]
