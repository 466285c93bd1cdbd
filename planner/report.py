"""What a dry run prints: everything a person or a program needs to trust a plan before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs import field, frozen

from .codec import dump_plan
from .fields import METADATA_KEY, Effect, Where, default_of
from .identity import plan_id
from .summary import summarize

if TYPE_CHECKING:
    from .plan_union import CommandPlan
    from .settings import ResolvedSettings

FORMAT_VERSION = "1.0"
"""Of reports and plan files. The major part changes when an old reader would misread a new document."""


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class Facts:
    """What an executor's preview found out without changing anything; all values are JSON values.

    `effects` and `where` are None where the class's own hold. `resolved` says what names mean (a model's id and
    path). `provenance` maps a parameter to `{"value", "origin"}` and, where it cannot be honoured, `"fate"`.
    A precondition is `{"kind", …}` plus what must still be equal when the report is applied. `unknown` lists what
    only running can tell, one sentence each. `diff` is `{"before", "after"}` of a changing command.
    """

    effects: tuple[Effect, ...] | None = None
    where: Where | None = None
    resolved: dict[str, Any] = field(factory=dict)
    provenance: dict[str, dict[str, Any]] = field(factory=dict)
    preconditions: tuple[dict[str, Any], ...] = ()
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    diff: dict[str, Any] | None = None


def build_report(plan: CommandPlan, facts: Facts, settings: ResolvedSettings) -> dict[str, Any]:
    """The report of one plan as JSON values, keys in reading order; `diff` only where there is one."""
    dumped = dump_plan(plan)
    report: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "plan": dumped,
        "plan_id": plan_id(dumped),
        "summary": summarize(plan, settings),
        "effects": list(plan.effects if facts.effects is None else facts.effects),
        "where": plan.where if facts.where is None else facts.where,
        "depth": "offline",
        "resolved": facts.resolved,
        "provenance": {**_plan_origins(plan, dumped), **settings.provenance(), **facts.provenance},
        "preconditions": [dict(item) for item in facts.preconditions],
        "unknown": list(facts.unknown),
        "warnings": [*settings.warnings, *facts.warnings],
    }
    if facts.diff is not None:
        report["diff"] = facts.diff
    return report


def _plan_origins(plan: CommandPlan, dumped: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each plan value with `plan` or `default` as its origin: equal plans have equal origins, whatever the door."""
    origins: dict[str, dict[str, Any]] = {}
    for attribute in attrs.fields(type(plan)):
        if METADATA_KEY not in attribute.metadata:
            continue
        value = getattr(plan, attribute.name)
        origin = "default" if value == default_of(attribute) else "plan"
        origins[attribute.name] = {"value": dumped[attribute.name], "origin": origin}
    return origins
