"""`localllm plan validate|diff|id` and `localllm schema`: looking at plans and schemas, running nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..planner.compare import differences
from ..planner.files.saved import Saved, SavedPlan, read_saved
from ..planner.identity import plan_id
from ..planner.report import Facts
from .events import Result
from .preview import previewed
from .threads import in_daemon_thread

if TYPE_CHECKING:
    from ..planner.plans.inspect import PlanDiff, PlanId, PlanValidate, Schema
    from .context import Context
    from .events import Events

UNSETTLED = "needs what an earlier step captures"


def preview_reading(_plan: Any, _ctx: Context) -> Facts:
    """Reading files is all there is."""
    return Facts(effects=("read",))


@previewed(preview_reading)
async def validate(plan: PlanValidate, _ctx: Context) -> Events:
    """What each file is and how many plans it holds. Raises InvalidPlan with every fault of every file."""
    found = await in_daemon_thread(_read, plan, list(plan.files))
    rows = [{"file": saved.file, "kind": saved.kind, "plans": len(saved.plans)} for saved in found]
    yield Result(data={"files": rows, "plans": sum(len(saved.plans) for saved in found)})


@previewed(preview_reading)
async def diff(plan: PlanDiff, _ctx: Context) -> Events:
    """Every value that differs; not ok where any does.

    Two plans are compared with their defaults filled in, step by step for plan files; two reports whole.
    """
    first, second = await in_daemon_thread(_read, plan, [plan.a, plan.b])
    left, right = _comparable(first, second.kind), _comparable(second, first.kind)
    found = [difference.as_dict() for difference in differences(left, right)]
    sides = [{"file": saved.file, "kind": saved.kind, "plan_ids": _ids(saved)} for saved in (first, second)]
    yield Result(data={"same": not found, "differences": found, "a": sides[0], "b": sides[1]}, ok=not found)


@previewed(preview_reading)
async def identify(plan: PlanId, _ctx: Context) -> Events:
    """The id of the file's plan, or of each step. A step that needs a capture has none yet."""
    (saved,) = await in_daemon_thread(_read, plan, [plan.file])
    rows = [_identified(each) for each in saved.plans]
    data: dict[str, Any] = {"file": saved.file, "kind": saved.kind, "plans": rows}
    yield Result(data=data if saved.kind == "plan-file" else {**data, "plan_id": rows[0]["plan_id"]})


def preview_schema(plan: Schema, _ctx: Context) -> Facts:
    """The schema's id. Raises NotFound as running would."""
    return Facts(effects=("read",), resolved={"ids": [row["id"] for row in _rows(plan.name)]})


@previewed(preview_schema)
async def schema(plan: Schema, _ctx: Context) -> Events:
    """One published schema as it is, or the list of all."""
    from ..schemas import load_schema

    yield Result(data={"schemas": _rows(None)} if plan.name is None else load_schema(plan.name))


def _rows(name: str | None) -> list[dict[str, Any]]:
    from ..schemas import load_schema, schema_names

    names = schema_names() if name is None else [name]
    found = [(each, load_schema(each)) for each in names]
    return [
        {"name": each, "id": body["$id"], "title": body["title"], "description": body["description"]}
        for each, body in found
    ]


def _read(plan: PlanDiff | PlanId | PlanValidate, files: list[str]) -> list[Saved]:
    return read_saved(files, flags=plan.var, vars_file=plan.vars_file, env=os.environ)


def _comparable(saved: Saved, other: str) -> Any:
    """What is compared: reports whole, else the plans; a single plan stands beside a report's plan."""
    if saved.kind == "report" and other == "report":
        return {**saved.document, "plan": saved.plans[0].shown}
    if saved.kind == "plan-file" and other == "plan-file":
        return {**saved.document, "steps": [_step(each) for each in saved.plans], "finally": None}
    return saved.plans[0].shown if len(saved.plans) == 1 else [_step(each) for each in saved.plans]


def _step(saved: SavedPlan) -> dict[str, Any]:
    return {"name": saved.name, "plan": saved.template if saved.shown is None else saved.shown}


def _ids(saved: Saved) -> list[str | None]:
    return [None if each.shown is None else plan_id(each.shown) for each in saved.plans]


def _identified(saved: SavedPlan) -> dict[str, Any]:
    row: dict[str, Any] = {"name": saved.name, "plan_id": None if saved.shown is None else plan_id(saved.shown)}
    return row if saved.shown is not None else {**row, "reason": UNSETTLED}
