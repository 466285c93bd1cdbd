"""Why a worker process ended, in plain words: from its exit status and the last lines it wrote. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Any

from ..errors import ModelLoadFailed, OutOfMemory, RuntimeFailed, WorkerDied

_OUT_OF_MEMORY = re.compile(
    r"out of (device |host )?memory|OutOf(Device|Host)Memory|failed to allocate|unable to allocate|cudaMalloc failed|"
    r"insufficient memory|bad_alloc|cannot allocate memory|MemoryError",
    re.IGNORECASE,
)
_TELLING = re.compile(r"error|fail|assert|abort|unable|cannot|invalid|unknown|unsupported|missing", re.IGNORECASE)
_NATIVE_CRASH = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
_LINES_TOLD = 12


def ending(returncode: int | None) -> str:
    """The exit status as a phrase: `was killed by signal 9 (SIGKILL)`, `ended with status 1`."""
    if returncode is None:
        return "stopped answering"
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        name = f" ({signal.Signals(-returncode).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-returncode}{name}"


def telling_line(lines: Sequence[str]) -> str | None:
    """The last line that looks like a reason."""
    return next((line.strip() for line in reversed(lines) if _TELLING.search(line)), None)


def death_error(model_id: str, returncode: int | None, lines: Sequence[str], cause: str | None = None) -> WorkerDied:
    """What each request in flight gets when its worker is gone; the last log lines travel in `data`."""
    message = f"the worker of `{model_id}` {cause or ending(returncode)}"
    return WorkerDied(
        message,
        hint="the next request starts a new worker",
        **_evidence(model_id, returncode, lines),
    )


def load_error(model_id: str, returncode: int | None, lines: Sequence[str], cause: str | None = None) -> RuntimeFailed:
    """What the caller of a load gets when the worker ended before the model was there."""
    evidence = _evidence(model_id, returncode, lines)
    memory_line = next((line.strip() for line in reversed(lines) if _OUT_OF_MEMORY.search(line)), None)
    if memory_line is not None or (returncode == -signal.SIGKILL and cause is None):
        reason = memory_line or "the system killed the worker, as it does when memory runs out"
        return OutOfMemory(
            f"model `{model_id}` does not fit in memory: {reason}",
            hint="try a smaller `n_ctx`, fewer GPU layers or a smaller quantization",
            **evidence,
        )
    reason = cause or telling_line(lines) or f"the worker {ending(returncode)}"
    if cause is None and returncode is not None and -returncode in _NATIVE_CRASH:
        reason = f"llama.cpp crashed: {reason}"
    return ModelLoadFailed(f"cannot load model `{model_id}`: {reason}", **evidence)


def _evidence(model_id: str, returncode: int | None, lines: Sequence[str]) -> dict[str, Any]:
    return {"model_id": model_id, "returncode": returncode, "last_lines": list(lines[-_LINES_TOLD:])}
