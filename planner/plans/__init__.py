"""The plan classes, one file a noun, and the table that finds a class by its command without importing the others."""

from __future__ import annotations

from importlib import import_module
from typing import Any

COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("status", "Status"),
    "models.scan": ("models", "ModelsScan"),
    "models.list": ("models", "ModelsList"),
    "models.show": ("models", "ModelsShow"),
    "models.load": ("models", "ModelsLoad"),
    "models.unload": ("models", "ModelsUnload"),
    "models.pull": ("models", "ModelsPull"),
    "auth.enable": ("auth", "AuthEnable"),
    "auth.disable": ("auth", "AuthDisable"),
    "auth.status": ("auth", "AuthStatus"),
    "config.get": ("config", "ConfigGet"),
    "config.set": ("config", "ConfigSet"),
    "config.unset": ("config", "ConfigUnset"),
    "config.list": ("config", "ConfigList"),
    "bench.latency": ("bench", "BenchLatency"),
    "bench.throughput": ("bench", "BenchThroughput"),
    "logs": ("logs", "Logs"),
    "doctor": ("doctor", "Doctor"),
    "chat": ("chat", "Chat"),
    "complete": ("complete", "Complete"),
    "serve": ("serve", "Serve"),
    "apply": ("apply", "Apply"),
    "explain": ("inspect", "Explain"),
    "plan.validate": ("inspect", "PlanValidate"),
    "plan.diff": ("inspect", "PlanDiff"),
    "plan.id": ("inspect", "PlanId"),
    "replay": ("replay", "Replay"),
    "plan.lock": ("replay", "PlanLock"),
    "plan.log": ("ledger", "PlanLog"),
    "plan.undo": ("ledger", "PlanUndo"),
    "schema": ("inspect", "Schema"),
    "version": ("version", "Version"),
}
"""Command name to `(module of this package, class)`. The order is the order of the help page."""


def plan_class(command: str) -> type[Any]:
    """The class of one command; imports only that command's noun. Raises KeyError for an unknown name."""
    module, name = COMMANDS[command]
    found: type[Any] = getattr(import_module(f".{module}", __name__), name)
    return found
