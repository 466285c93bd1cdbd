"""Results as text for people: a table or a few lines for each command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .events import Result
from .memory_wording import TOLD_APART, measured_text, memory_lines, taken_bytes
from .plan_wording import PLAN_FORMS
from .residency_wording import TOLD, residency_lines
from .terminal import facts, plural, printable, printable_text, size, table
from .traffic import traffic_text


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
    if command == "replay":
        return step_text(data)
    return None


def step_text(data: Mapping[str, Any]) -> str | None:
    """A step that failed, with its place and what was wrong, or whose recorded answer differs or may; the totals of a
    replay that was interrupted."""
    if "summary" in data:
        return totals_line(data["summary"])
    compared = data.get("comparison") or {}
    if data.get("status") != "failed" and compared.get("verdict") in (None, "same"):
        return None
    place = data["place"]
    if data.get("status") != "failed":
        at = f"{place['file']}:{place['line']}: {data['step']}. {data['name']}"
        return printable(f"{data['status']}  {at}: {compared['message']}")
    number = f"{data['step']}" + (f"[{data['iteration']}]" if "iteration" in data else "")
    head = f"failed  {place['file']}:{place['line']}: {number}. {data['name']}"
    lines = [f"        {problem['path']}: {problem['message']}" for problem in data.get("problems") or ()]
    return "\n".join(printable(line) for line in [head, *lines])


def annotation(data: Mapping[str, Any]) -> str | None:
    """A failed step as GitHub shows it at its line; None for everything else."""
    if data.get("status") != "failed":
        return None
    place = data["place"]
    text = "\n".join(f"{problem['path']}: {problem['message']}" for problem in data.get("problems") or ())
    given = {"file": place["file"], "line": place["line"], "col": place["column"], "title": data["name"]}
    escaped = [f"{name}={_command_value(str(value), ':,')}" for name, value in given.items()]
    return f"::error {','.join(escaped)}::{_command_value(text, '')}"


def _command_value(text: str, more: str) -> str:
    """A value within a workflow command, whose own marks are escaped by their code."""
    return "".join(f"%{ord(char):02X}" if char in f"%\r\n{more}" else char for char in text)


def totals_line(data: Mapping[str, Any]) -> str:
    """`passed=9 failed=1 skipped=0 total=10 score=90`."""
    counts = " ".join(f"{name}={data[name]}" for name in ("passed", "failed", "skipped", "total"))
    return f"{counts} score={data['score']:g}"


def closing_text(command: str, data: Mapping[str, Any]) -> str:
    """What still has to be said at the end of a result whose records were shown as they came."""
    if command == "chat":
        return calls_text(data)
    return _replayed(data) + "\n" if command == "replay" else ""


def server_line(data: Mapping[str, Any]) -> str:
    """What the server says on the terminal: where it listens, and how the first load went."""
    model = printable(data.get("model", ""))
    match data.get("event"):
        case "listening":
            return f"listening on {printable(data.get('url', ''))} (Ctrl-C ends it)"
        case "load_failed":
            return f"model `{model}` is not loaded: {printable((data.get('error') or {}).get('message', ''))}"
        case _:
            return "\n".join([f"model `{model}` is ready", *_warnings(data)])


def _warnings(data: Mapping[str, Any]) -> list[str]:
    return [f"warning: {printable(warning)}" for warning in data.get("warnings") or ()]


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
        memory = {name: value for name, value in resolved.get("memory", {}).items() if name not in TOLD_APART}
        told = {name: value for name, value in resolved.items() if name not in TOLD}
        lines.append(facts(_flat(told | {"memory": memory} if memory else told)))
    lines += memory_lines(resolved.get("memory") or {})
    lines += residency_lines(resolved)
    lines += [f"unknown: {printable(item)}" for item in report.get("unknown") or ()]
    lines += _warnings(report)
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
            (model.get("applied") or {}).get("n_ctx_pool"),
            (model.get("applied") or {}).get("n_slots"),
            size(taken_bytes(model.get("memory") or {})),
            model.get("requests_running"),
            model.get("requests_queued"),
        )
        for model in models
    ]
    listed = table(("model", "state", "n_ctx", "pool", "slots", "memory", "running", "queued"), rows)
    lines = [text for model in models if (text := traffic_text(model)) is not None]
    lines += [f"warning: {model['model_id']}: {text}" for model in models for text in model.get("warnings") or ()]
    return "\n".join([head, "", listed, *(["", *map(printable, lines)] if lines else [])])


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


def _files(data: Mapping[str, Any]) -> str:
    rows = [
        (
            row["id"],
            row["kind"],
            row["architecture"],
            row["quantization"],
            size(row["size_bytes"]),
            row["context_length"],
            ", ".join(row["aliases"]) if row["valid"] else f"invalid: {row['reason']}",
        )
        for row in data.get("files", data.get("models")) or ()
    ]
    lines = [table(("id", "kind", "architecture", "quantization", "size", "context", "notes"), rows)] if rows else []
    if "files" in data:
        lines.append(f"{plural(data['total'], 'file')}, {data['invalid']} invalid")
    elif not rows:
        lines.append("no models; `localllm models pull smollm2-135m` fetches a small one")
    return "\n".join([*lines, *_warnings(data)])


def _show(data: Mapping[str, Any]) -> str:
    header = data.get("header") or {}
    apart = ("header", "loaded", "measured", "size_bytes", "modified")
    pairs = [(name, value) for name, value in data.items() if name not in apart]
    pairs += [("size", size(data["size_bytes"])), ("tensors", header.get("tensors"))]
    if measured := data.get("measured"):
        pairs.append(("last load", measured_text(measured)))
    lines = [facts(pairs)]
    metadata = header.get("metadata") or {}
    short = [(printable(name), _short(value)) for name, value in metadata.items()]
    return "\n\n".join([*lines, facts(short)]) if short else lines[0]


def _short(value: Any, limit: int = 100) -> Any:
    if isinstance(value, Mapping):
        return f"{value.get('array_of')} items"
    if isinstance(value, str) and len(value) > limit:
        return f"{value[:limit]}... ({len(value)} characters)"
    return value


def _loaded(data: Mapping[str, Any]) -> str:
    head = f"{'loaded' if data.get('changed') else 'was loaded already:'} {printable(data['model_id'])}"
    applied = facts(sorted((printable(name), value) for name, value in (data.get("applied") or {}).items()))
    return "\n".join(line for line in (head, applied, *_warnings(data)) if line)


def _unloaded(data: Mapping[str, Any]) -> str:
    gone = data.get("unloaded") or ()
    return "\n".join(f"unloaded {printable(model_id)}" for model_id in gone) or "nothing was loaded"


def _pulled(data: Mapping[str, Any]) -> str:
    done = "fetched" if data["changed"] else "is there already:"
    return f"{printable(data['model_id'])} {done} {printable(data['file'])} ({size(data['size_bytes'])})"


def _key(data: Mapping[str, Any]) -> str:
    return f"{data['key']}\n{data['note']}" + ("\nthe earlier key no longer works" if data.get("replaced") else "")


def _replayed(data: Mapping[str, Any]) -> str:
    lines = [f"updated {printable(file)}" for file in data["updated"]]
    lines += [f"fault: {printable(fault)}" for fault in data["report_faults"]]
    return "\n".join([*lines, totals_line(data)])


def _locked(data: Mapping[str, Any]) -> str:
    head = f"{printable(data['file'])}: {'locked to' if data['changed'] else 'is locked already to'}"
    models = [f"{printable(name)} {lock['sha256']}" for name, lock in data["lock"]["models"].items()]
    return "\n".join([f"{head} {printable(data['lock']['build'])}", *models])


def _ledger(data: Mapping[str, Any]) -> str:
    rows = []
    for entry in data["entries"]:
        actor, outcome = entry["actor"], entry["outcome"]
        note = f"undone by {entry['undone_by']}" if entry["undone_by"] else "can be undone"
        note = note if entry["undone_by"] or entry["reversible"] else "-"
        given = " ".join(_value(value) for name, value in entry["plan"].items() if name in ("key", "value", "model"))
        told = " ".join((entry["command"].replace(".", " "), given)).strip()
        rows.append((entry["entry"], entry["time"], actor["user"], actor["door"], told[:60], outcome, note))
    if not rows:
        return "nothing was changed here"
    return table(("entry", "time", "user", "by", "plan", "outcome", "note"), rows)


def _undone(data: Mapping[str, Any]) -> str:
    head = f"took back {printable(data['undid'])}"
    if data["kind"] == "config":
        return f"{head}: {printable(data['key'])}: {_value(data['before'])} -> {_value(data['after'])}"
    if data["kind"] == "keys":
        return f"{head}: {'the earlier API key works again' if data['enabled'] else 'no API key is asked for'}"
    lines = [f"unloaded {printable(name)}" for name in data["unloaded"]]
    return "\n".join([head, *lines, *(f"loaded {printable(name)}" for name in data["loaded"])])


def _auth(data: Mapping[str, Any]) -> str:
    if "changed" in data:
        return "no API key is asked for" if data["changed"] else "no API key was asked for"
    return "an API key is asked for" if data["enabled"] else "no API key is asked for"


def _setting(data: Mapping[str, Any]) -> str:
    return _value(data["value"])


def _settings(data: Mapping[str, Any]) -> str:
    rows = [(row["key"], _value(row["value"]), row["origin"]) for row in data["settings"]]
    lines = [table(("setting", "value", "origin"), rows), f"\nconfig file: {printable(data['config_file'])}"]
    return "\n".join([*lines, *_warnings(data)])


def _changed_setting(data: Mapping[str, Any]) -> str:
    if not data["changed"]:
        return f"{printable(data['key'])} is {_value(data['after'])} already"
    return f"{printable(data['key'])}: {_value(data['before'])} -> {_value(data['after'])}"


def _value(value: Any) -> str:
    if value is None:
        return "unset"
    return printable(value if isinstance(value, str) else json.dumps(value))


def _bench(data: Mapping[str, Any]) -> str:
    figures = [(name, value) for name, value in data.items() if name != "raw"]
    failed = [sample["error"] for sample in data["raw"] if sample["error"]]
    return "\n".join([facts(figures), *(f"error: {printable(error)}" for error in failed[:3])])


def _doctor(data: Mapping[str, Any]) -> str:
    lines = []
    for check in data["checks"]:
        lines.append(f"{check['status']:<4}  {check['name']:<13}  {printable(check['message'])}")
        if check.get("hint"):
            lines.append(f"{'':<21}hint: {printable(check['hint'])}")
    lines.append(f"{data['ok']} ok, {plural(data['warnings'], 'warning')}, {plural(data['failures'], 'failure')}")
    return "\n".join(lines)


def _logs(data: Mapping[str, Any]) -> str:
    return "\n".join(log_line(line) for line in data["lines"])


def _prompt(data: Mapping[str, Any]) -> str:
    """The prompt as it is, then its tokens."""
    text, tokens = printable_text(data["text"]), data["tokens"]
    notes = [f"note: {printable(note)}" for note in data.get("notes") or ()]
    return "\n".join([text.rstrip("\n"), "", f"{plural(len(tokens), 'token')}: {tokens}", *notes])


def _chat(data: Mapping[str, Any]) -> str:
    if "choices" not in data:
        return _prompt(data)
    choices = data["choices"]
    texts = [printable_text(_said(choice)) for choice in choices]
    if len(texts) > 1:
        texts = [f"[{choice['index']}] {text}" for choice, text in zip(choices, texts, strict=True)]
    text = "\n".join(texts) or "\n"
    calls = calls_text(data)
    return f"{text.rstrip()}\n{calls}".lstrip("\n") if calls else text


def _said(choice: Mapping[str, Any]) -> str:
    """A choice's text, of a conversation or of a text completion."""
    return str(choice.get("text") or (choice.get("message") or {}).get("content") or "")


def _calls(choice: Mapping[str, Any]) -> list[Any]:
    return (choice.get("message") or {}).get("tool_calls") or []


def calls_text(data: Mapping[str, Any]) -> str:
    """A line for each tool call of an answer: `call NAME ARGUMENTS`."""
    calls = [call for choice in data.get("choices") or () for call in _calls(choice)]
    functions = [call.get("function") or {} for call in calls]
    return "".join(f"call {printable(each.get('name'))} {printable(each.get('arguments'))}\n" for each in functions)


def _serve(_data: Mapping[str, Any]) -> str:
    return "stopped"


FORMS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "status": _status,
    "version": _version,
    "models.scan": _files,
    "models.list": _files,
    "models.show": _show,
    "models.load": _loaded,
    "models.unload": _unloaded,
    "models.pull": _pulled,
    "auth.enable": _key,
    "auth.disable": _auth,
    "auth.status": _auth,
    "config.get": _setting,
    "config.list": _settings,
    "config.set": _changed_setting,
    "config.unset": _changed_setting,
    "bench.latency": _bench,
    "bench.throughput": _bench,
    "doctor": _doctor,
    "logs": _logs,
    "chat": _chat,
    "complete": _chat,
    "serve": _serve,
    "replay": _replayed,
    "plan.lock": _locked,
    "plan.log": _ledger,
    "plan.undo": _undone,
    **PLAN_FORMS,
}
