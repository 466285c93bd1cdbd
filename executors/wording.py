"""Results as text for people: a table or a few lines for each command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .events import Result
from .terminal import facts, plural, printable, printable_text, size, table


def text_of(command: str, result: Result) -> str:
    """The text of a command's result; a command without a form of its own shows names and values."""
    form = FORMS.get(command)
    return form(result.data) if form is not None else facts(_flat(result.data))


def record_text(command: str, data: Mapping[str, Any]) -> str | None:
    """The line of a record, or None for one that is not for people (the envelope of an answer)."""
    if command == "logs":
        return log_line(data)
    if command == "serve":
        return server_line(data)
    return None


def server_line(data: Mapping[str, Any]) -> str:
    """What the server says on the terminal: where it listens, and how the first load went."""
    model = printable(data.get("model", ""))
    match data.get("event"):
        case "listening":
            return f"listening on {printable(data.get('url', ''))} (Ctrl-C ends it)"
        case "load_failed":
            return f"model `{model}` is not loaded: {printable((data.get('error') or {}).get('message', ''))}"
        case _:
            return f"model `{model}` is ready"


def log_line(data: Mapping[str, Any]) -> str:
    """`time level event key=value …` of one log line."""
    known = ("time", "level", "event")
    extra = [f"{key}={value}" for key, value in data.items() if key not in known and value is not None]
    parts = [data.get("time", "-"), str(data.get("level", "-")).upper(), data.get("event", "-"), *extra]
    return " ".join(printable(part) for part in parts)


def report_text(report: Mapping[str, Any]) -> str:
    """A dry run's report: the summary, then what it would do and what it can't know."""
    lines = [printable_text(str(report.get("summary", ""))).rstrip("\n")]
    effects = ", ".join(report.get("effects") or ()) or "none"
    lines.append(facts([("runs on", report.get("where")), ("effects", effects), ("plan id", report.get("plan_id"))]))
    diff = report.get("diff")
    if diff:
        lines += [f"before: {json.dumps(diff.get('before'))}", f"after:  {json.dumps(diff.get('after'))}"]
    resolved = report.get("resolved") or {}
    if resolved:
        lines.append(facts(_flat(resolved)))
    lines += [f"unknown: {printable(item)}" for item in report.get("unknown") or ()]
    lines += [f"warning: {printable(item)}" for item in report.get("warnings") or ()]
    return "\n".join(line for line in lines if line) + "\n"


def _status(data: Mapping[str, Any]) -> str:
    if not data.get("running"):
        lines = [f"not running at {printable(data.get('server'))}"]
        if data.get("hint"):
            lines.append(f"hint: {printable(data['hint'])}")
        return "\n".join(lines)
    head = facts(
        [
            ("running", data.get("server")),
            ("version", data.get("version")),
            ("pid", data.get("pid")),
            ("default model", data.get("default_model") or "-"),
        ]
    )
    models = data.get("models") or ()
    if not models:
        return f"{head}\nno model is loaded"
    rows = [
        (
            model["model_id"],
            model["state"],
            (model.get("applied") or {}).get("n_ctx"),
            (model.get("applied") or {}).get("n_slots"),
            size((model.get("memory") or {}).get("total_bytes")),
            model.get("requests_running"),
            model.get("requests_queued"),
        )
        for model in models
    ]
    return head + "\n\n" + table(("model", "state", "n_ctx", "slots", "memory", "running", "queued"), rows)


def _version(data: Mapping[str, Any]) -> str:
    lines = [f"localllm {data['version']}", f"python {data['python']} on {data['platform']}"]
    lines += [f"{name} {version}" for name, version in data["packages"].items()]
    return "\n".join(printable(line) for line in lines)


def _flat(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested names joined by dots, lists of objects as JSON."""
    out: list[tuple[str, Any]] = []
    for key, value in data.items():
        name = printable(f"{prefix}{key}")
        if isinstance(value, Mapping):
            out += _flat(value, f"{name}.")
        elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
            out.append((name, f"{plural(len(value), 'item')}"))
        else:
            out.append((name, value))
    return out


FORMS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "status": _status,
    "version": _version,
}
