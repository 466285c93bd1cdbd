"""What a plan changed, kept so that it can be taken back: the state before a run, and the difference after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import fields

from ..errors import LocalLLMError
from .keys import read_keys

if TYPE_CHECKING:
    from ..planner.plan_union import CommandPlan
    from ..runtime.types import LoadSpec
    from .context import Context
    from .events import Result

KEY_COMMANDS = frozenset({"auth.enable", "auth.disable", "plan.undo"})
MODEL_COMMANDS = frozenset({"models.load", "models.unload"})


def state_before(plan: CommandPlan, ctx: Context) -> dict[str, Any]:
    """The state that the plan may change and that can be brought back, as JSON values."""
    state: dict[str, Any] = {}
    if plan.command in KEY_COMMANDS:
        try:
            state["keys"] = read_keys(ctx.settings.state_dir)
        except LocalLLMError:
            pass  # a damaged file is nothing to bring back
    if plan.command in MODEL_COMMANDS and ctx.on_server:
        state["loaded"] = {
            model.model_id: _load_plan(model.spec) for model in ctx.runtime.loaded() if model.state == "ready"
        }
        state["default"] = ctx.default_model_id
    return state


def change_of(plan: CommandPlan, ctx: Context, before: dict[str, Any], result: Result | None) -> dict[str, Any] | None:
    """What the run changed, as `plan undo` needs it; None where nothing changed or nothing can be taken back."""
    after = state_before(plan, ctx)
    if before.get("keys") != after.get("keys") and "keys" in before and "keys" in after:
        return {"kind": "keys", "before": before["keys"], "after": after["keys"]}
    if before.get("loaded", {}).keys() != after.get("loaded", {}).keys():
        return _models_change(plan, ctx, before, after, result)
    if result is not None and result.data.get("changed") and "config_file" in result.data:
        told = result.data
        return {
            "kind": "config",
            "path": told["config_file"],
            "key": told["key"],
            "before": told["before"],
            "after": told["after"],
        }
    return None


def _models_change(
    plan: CommandPlan, ctx: Context, before: dict[str, Any], after: dict[str, Any], result: Result | None
) -> dict[str, Any] | None:
    """What this run did to the loaded models: others may load and unload theirs meanwhile."""
    told = {} if result is None else result.data
    own = [told["model_id"]] if plan.command == "models.load" and told.get("changed") else []
    loaded = [model_id for model_id in own if model_id in after["loaded"] and model_id not in before["loaded"]]
    gone = {model_id: load for model_id, load in before["loaded"].items() if model_id not in after["loaded"]}
    if plan.command == "models.unload" and result is not None:
        gone = {model_id: load for model_id, load in gone.items() if model_id in told["unloaded"]}
    if not loaded and not gone:
        return None
    return {
        "kind": "models",
        "instance": ctx.instance,
        "loaded": loaded,
        "unloaded": list(gone.values()),
        "default": {"before": before["default"], "after": after["default"]},
    }


def _load_plan(spec: LoadSpec) -> dict[str, Any]:
    """The plan that loads a model as it is loaded now."""
    from ..planner.plans.models import ModelsLoad

    shared = {field.name for field in fields(type(spec))} & {field.name for field in fields(ModelsLoad)}
    given = {name: value for name in sorted(shared) if (value := getattr(spec, name)) is not None}
    return {"command": "models.load", "model": spec.model_id, **given}
