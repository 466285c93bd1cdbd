"""What the handlers of one server share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from attrs import define, field

from ..errors import LocalLLMError
from ..executors.context import Context
from ..executors.logbook import Level
from .guard import Policy, Traffic

WriteLog = Callable[[Level, str, dict[str, Any]], None]
"""Writes one line: level, event, fields. Never raises: a full disk must not cost an answer."""


@define
class Readiness:
    """Whether the model named at the start is there; `fault` says why not, once that is known."""

    state: Literal["loading", "ready", "failed"] = "ready"
    model: str | None = None
    stage: str | None = None
    fraction: float | None = None
    fault: LocalLLMError | None = None


@define(kw_only=True)
class Server:
    """One running server; `ctx` has `on_server` set, and its runtime is made."""

    ctx: Context
    policy: Policy = field(factory=Policy)
    traffic: Traffic = field(factory=Traffic)
    readiness: Readiness = field(factory=Readiness)
    write_log: WriteLog = lambda _level, _event, _fields: None
    keep_alive_s: float = 15.0
    max_body_bytes: int = 10 * 1024 * 1024

    def dry(self) -> Context:
        """The context of a dry run."""
        from attrs import evolve

        return evolve(self.ctx, dry_run=True)

    def log_fault(self, fault: Exception) -> None:
        """Write a fault that nobody foresaw, with its traceback."""
        from traceback import format_exception

        self.write_log("error", "fault", {"error": repr(fault), "traceback": "".join(format_exception(fault))})
