"""What `explain`, `plan …` and `schema` print for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .terminal import plural, printable, printable_text


def report_lines(report: Mapping[str, Any]) -> str:
    """A report's text, as a dry run prints it."""
    from .wording import report_text

    return report_text(report).rstrip("\n")


def explained(data: Mapping[str, Any]) -> str:
    """Each plan: its name and id, then a block for each of its doors, then what it would do."""
    return "\n\n".join(_one(each) for each in data["plans"])


def validated(data: Mapping[str, Any]) -> str:
    """A line a file."""
    lines = [f"{printable(row['file'])}: {row['kind']}, {plural(row['plans'], 'plan')}, valid" for row in data["files"]]
    return "\n".join(lines)


def compared(data: Mapping[str, Any]) -> str:
    """The differing values, `-` before and `+` after, under their paths."""
    lines: list[str] = []
    for each in data["differences"]:
        lines.append(printable(each["path"]))
        lines += [f"  - {_json(each['before'])}"] if "before" in each else []
        lines += [f"  + {_json(each['after'])}"] if "after" in each else []
    return "\n".join(lines) or "no difference"


def identified(data: Mapping[str, Any]) -> str:
    """The id alone for one plan; a line a step for a plan file."""
    if "plan_id" in data:
        return str(data["plan_id"])
    return "\n".join(f"{row['plan_id'] or row['reason']}  {printable(row['name'])}" for row in data["plans"])


def schema_text(data: Mapping[str, Any]) -> str:
    """The schema as JSON, or a line for each there is."""
    if "schemas" not in data or "$id" in data:
        return json.dumps(data, indent=2)
    width = max(len(row["name"]) for row in data["schemas"])
    return "\n".join(f"{row['name']:<{width}}  {row['description']}" for row in data["schemas"])


def _one(each: Mapping[str, Any]) -> str:
    head = f"{printable(each['name'])}  {each['plan_id'] or 'no id yet'}"
    if each["plan_id"] is None:
        return f"{head}\n{_error(each['error'])}"
    blocks = [("command line", each["command_line"]), ("curl", each["curl"]), ("python", each["python"])]
    shown = [f"{title}\n{_indented(text)}" for title, text in blocks if text]
    report = each["report"]
    outcome = _error(each["error"]) if report is None else report_lines(report)
    return "\n\n".join([head, *shown, f"dry run\n{_indented(outcome)}"])


def _error(error: Mapping[str, Any]) -> str:
    return f"error: {printable_text(str(error['message']))}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in printable_text(text).rstrip("\n").split("\n"))


def _json(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))


PLAN_FORMS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "explain": explained,
    "plan.validate": validated,
    "plan.diff": compared,
    "plan.id": identified,
    "schema": schema_text,
}
