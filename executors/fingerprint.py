"""What an answer depends on besides its plan: weights, template, tokenizer, runtime build.

A recording and a lock keep it, so that a later answer that differs can be explained. Hashing weights takes a second a
GB, so the hash is kept in the state folder under the file's stamp.
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LocalLLMError
from .state import locked, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..runtime.models.catalog import Entry
    from ..runtime.models.fingerprint import Stamp
    from ..runtime.types import LoadedModel
    from .context import Context

MOST_KEPT = 1000
BUILD_PARTS = ("localllm", "llama-cpp-python")


def runtime_build(backend: str = "llama") -> str:
    """The versions whose change may change numbers; the echo backend computes none."""
    from .version import package_version

    parts = BUILD_PARTS if backend == "llama" else BUILD_PARTS[:1]
    return " ".join([*(f"{name}/{package_version(name) or 'unknown'}" for name in parts), backend])


@cache
def machine() -> str:
    """The processor, whose instructions decide how sums are rounded."""
    import platform

    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(filter(None, [platform.machine(), found.group(1).strip() if found else platform.processor()]))


def model_fingerprint(
    entry: Entry, state_dir: Path, *, names: Sequence[str] = (), override: str | None = None
) -> dict[str, str]:
    """`sha256` of the weights, `template_hash` and `tokenizer_hash`, under the names that a lock has.

    `override` is the chat template the model was loaded with. Blocking: hashes the file the first time. Raises OSError
    and InvalidGGUF.
    """
    from ..runtime.models.fingerprint import stamp_of

    header = _of_header(entry.path, stamp_of(entry.path), tuple(names) or (*entry.aliases, entry.id), override)
    return {"sha256": kept_sha256(entry.parts, state_dir), **header}


@lru_cache(maxsize=64)
def _of_header(path: str, _stamp: Stamp, names: tuple[str, ...], override: str | None) -> dict[str, str]:
    """What the header says, read once for each state of a file."""
    from ..runtime.models.fingerprint import template_hash, tokenizer_hash

    return {"template_hash": template_hash(path, names, override), "tokenizer_hash": tokenizer_hash(path)}


def served_fingerprint(ctx: Context, name: str, loaded: LoadedModel | None) -> dict[str, Any]:
    """The model's fingerprint in this process with `build` and `machine`, and the `parameters` it is loaded with.

    What cannot be told is left out. Blocking, like `model_fingerprint`.
    """
    from .loading import resolve

    found: dict[str, Any] = {"build": runtime_build(ctx.backend), "machine": machine()}
    if loaded is not None:
        found["parameters"] = {key: loaded.applied[key] for key in PARAMETERS if key in loaded.applied}
    try:
        target = resolve(ctx, name)
        if target.entry is not None:
            override = None if loaded is None else loaded.spec.chat_template
            names = target.names if loaded is None else loaded.spec.names
            found |= model_fingerprint(target.entry, ctx.settings.state_dir, names=names, override=override)
    except (LocalLLMError, OSError):
        pass  # the model is gone from the folder, or is no longer readable
    return found


PARAMETERS = (
    "n_batch",
    "n_ubatch",
    "n_threads",
    "n_threads_batch",
    "gpu_layers",
    "flash_attention",
    "cache_type_k",
    "cache_type_v",
)
"""Load parameters that move a model's numbers."""


def kept_sha256(parts: Sequence[str], state_dir: Path) -> str:
    """The SHA-256 of a model's weights, from the state folder where it was computed before. Raises OSError."""
    from attrs import astuple

    from ..runtime.models.fingerprint import stamp_of, weights_sha256

    stamps = [[str(part), *(str(number) for number in astuple(stamp_of(part)))] for part in parts]
    key = json.dumps(stamps)
    path = state_dir / "hashes.json"
    known = _read(path).get(key)
    if known is not None:
        return known
    digest = weights_sha256(parts)
    try:
        with locked(path):
            kept = {**_read(path), key: digest}
            write_atomically(path, json.dumps(dict(list(kept.items())[-MOST_KEPT:])).encode())
    except (OSError, LocalLLMError):
        pass  # it is computed again next time
    return digest


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
