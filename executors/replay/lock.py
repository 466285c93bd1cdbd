"""The lock of a plan file: which weights, chat template, tokenizer and build it was written against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...errors import BadInput, LocalLLMError
from ..fingerprint import runtime_build

if TYPE_CHECKING:
    from ...planner.files.steps import PlanFile
    from ..context import Context

WORDS = {"sha256": "weights", "template_hash": "chat template", "tokenizer_hash": "tokenizer"}


def facts_of_model(name: str, ctx: Context) -> dict[str, str]:
    """What a lock says of a model of the models folder. Raises ModelNotFound, AmbiguousName, InvalidGGUF, OSError."""
    from ..fingerprint import model_fingerprint
    from ..loading import resolve

    target = resolve(ctx, name)
    if target.entry is None:
        raise BadInput(f"`{name}` has no file to lock", param="models")
    return model_fingerprint(target.entry, ctx.settings.state_dir, names=target.names)


def differences(lock: Mapping[str, Any], ctx: Context) -> list[str]:
    """A sentence for each thing that is not what the lock says."""
    found: list[str] = []
    build = runtime_build()
    if lock.get("build") not in (None, build):
        found.append(f"the build is `{build}`, the lock says `{lock['build']}`")
    for name, wanted in lock.get("models", {}).items():
        try:
            facts = facts_of_model(name, ctx)
        except (LocalLLMError, OSError) as error:
            found.append(f"model `{name}`: {error}")
            continue
        found += [
            f"model `{name}`: its {words} are not those of the lock"
            if key == "sha256"
            else f"model `{name}`: its {words} is not that of the lock"
            for key, words in WORDS.items()
            if wanted.get(key) not in (None, facts[key])
        ]
    return found


def lock_edits(lock: Mapping[str, Any], ctx: Context) -> dict[tuple[str | int, ...], Any]:
    """The edits that make a file's lock say what is here now. Raises what `facts_of_model` does."""
    edits: dict[tuple[str | int, ...], Any] = {}
    if "build" in lock:
        edits[("lock", "build")] = runtime_build()
    for name, wanted in lock.get("models", {}).items():
        facts = facts_of_model(name, ctx)
        edits |= {("lock", "models", name, key): facts[key] for key in WORDS if key in wanted}
    return edits


def new_lock(names: Iterable[str], ctx: Context) -> dict[str, Any]:
    """A whole lock for these models."""
    return {"build": runtime_build(), "models": {name: facts_of_model(name, ctx) for name in names}}


def models_of(file: PlanFile) -> list[str]:
    """The models that the steps of a file name, as far as they are known without running it."""
    names: dict[str, None] = {}
    for step in chain(file.steps, file.finally_):
        model = step.plan.get("model")
        if isinstance(model, str) and "${" not in model:
            names[model] = None
    return list(names)
