"""A plan in words for people: the full command, how it prints, where models lie, what it was given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from .fields import METADATA_KEY, FieldSpec, default_of

if TYPE_CHECKING:
    from .plan_union import CommandPlan
    from .settings import ResolvedSettings

LONGEST_VALUE = 60


def summarize(plan: CommandPlan, settings: ResolvedSettings) -> str:
    """One line a fact; values that are a default say so. Names from outside are made safe for a terminal."""
    rows = _arguments(plan)
    rows.append(("output", settings.output))
    rows.append(("models folder", one_line(str(settings.models_dir))))
    if plan.where != "local":
        rows.append(("server", one_line(settings.server)))
    width = max(len(label) for label, _ in rows)
    lines = [f"  {label:<{width}}  {text}" for label, text in rows]
    return "\n".join([f"localllm {plan.command.replace('.', ' ')}", *lines])


def one_line(text: str, limit: int | None = None) -> str:
    """The text without control characters, cut in the middle where it is longer than `limit`."""
    safe = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
    if limit is not None and len(safe) > limit:
        half = (limit - 1) // 2
        safe = f"{safe[:half]}…{safe[-half:]}"
    return safe


def _arguments(plan: CommandPlan) -> list[tuple[str, str]]:
    rows = []
    for attribute in attrs.fields(type(plan)):
        spec: FieldSpec | None = attribute.metadata.get(METADATA_KEY)
        if spec is None:
            continue
        value = getattr(plan, attribute.name)
        mark = " (default)" if value == default_of(attribute) else ""
        rows.append((attribute.name, f"{_shown(value)}{mark}"))
    return rows


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return one_line(value, LONGEST_VALUE) or '""'
    if isinstance(value, tuple):
        return _shown_list(value)
    if isinstance(value, dict):
        return one_line(json.dumps(value, ensure_ascii=False), LONGEST_VALUE) if value else "none"
    return str(value)


def _shown_list(values: tuple[Any, ...]) -> str:
    if not values:
        return "none"
    last = values[-1]
    if isinstance(last, dict):
        return one_line(json.dumps(values, ensure_ascii=False), LONGEST_VALUE)
    if not attrs.has(type(last)):
        return ", ".join(f"'{one_line(str(value), LONGEST_VALUE)}'" for value in values)
    role, content = getattr(last, "role", ""), getattr(last, "content", None)
    text = content if isinstance(content, str) else ""
    count = f"{len(values)} message{'s' if len(values) != 1 else ''}"
    return (
        f"{count}, the last from {role}: {one_line(text, LONGEST_VALUE)}" if text else f"{count}, the last from {role}"
    )
