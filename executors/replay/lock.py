"""The lock of a plan file: which weights, chat template, tokenizer and build it was written against."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BadInput, LocalLLMError
from ..state import write_atomically

if TYPE_CHECKING:
    from ...planner.files.steps import PlanFile
    from ...runtime.models.catalog import Entry
    from ..context import Context

BLOCK_BYTES = 4 * 1024 * 1024
WORDS = {"sha256": "weights", "template_hash": "chat template", "tokenizer_hash": "tokenizer"}


def runtime_build() -> str:
    """The build that computes answers, as a lock names it."""
    try:
        return f"llama-cpp-python {version('llama-cpp-python')}"
    except PackageNotFoundError:
        return "none"


def facts_of_model(name: str, ctx: Context) -> dict[str, str]:
    """What a lock says of a model of the models folder. Raises ModelNotFound, AmbiguousName, InvalidGGUF."""
    from ...runtime.models.gguf import read_header, token_texts
    from ..loading import resolve

    entry = resolve(ctx, name).entry
    if entry is None:
        raise BadInput(f"`{name}` has no file to lock", param="models")
    path = Path(entry.path)
    header = read_header(path)
    tokens = token_texts(path, header, tuple(range(header.vocabulary_size or 0)))
    kept = {key: value for key, value in header.metadata.items() if _is_plain(key, value)}
    return {
        "sha256": _weights(entry, ctx),
        "template_hash": _digest(header.chat_template or ""),
        "tokenizer_hash": _digest(json.dumps([kept, sorted(tokens.items())], sort_keys=True)),
    }


def differences(lock: Mapping[str, Any], ctx: Context) -> list[str]:
    """A sentence for each thing that is not what the lock says."""
    found: list[str] = []
    build = runtime_build()
    if lock.get("build") not in (None, build):
        found.append(f"the build is `{build}`, the lock says `{lock['build']}`")
    for name, wanted in lock.get("models", {}).items():
        try:
            facts = facts_of_model(name, ctx)
        except LocalLLMError as error:
            found.append(f"model `{name}`: {error.message}")
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
    for step in (*file.steps, *file.finally_):
        model = step.plan.get("model")
        if isinstance(model, str) and "${" not in model:
            names[model] = None
    return list(names)


def _is_plain(key: str, value: Any) -> bool:
    return key.startswith("tokenizer.ggml.") and isinstance(value, (str, int, float, bool))


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _weights(entry: Entry, ctx: Context) -> str:
    """The SHA-256 over a model's files, in order; kept by size and time, since a large file takes minutes."""
    stamps = [(part, (stat := Path(part).stat()).st_size, stat.st_mtime_ns) for part in map(str, entry.parts)]
    name = _digest(json.dumps(stamps)).rpartition(":")[2]
    kept = Path(ctx.settings.state_dir) / "hashes" / f"{name}.txt"
    try:
        found = kept.read_text("ascii").strip()
        if len(found) == 64:
            return found
    except (OSError, ValueError):
        pass
    digest = hashlib.sha256()
    for part, _, _ in stamps:
        with open(part, "rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    try:
        write_atomically(kept, digest.hexdigest().encode() + b"\n")
    except OSError:
        pass  # it is only computed again next time
    return digest.hexdigest()
