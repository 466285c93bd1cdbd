"""`localllm models …`: what lies in the models folder, and what the running server has loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LocalLLMError, ModelNotFound
from ..planner.report import Facts
from .events import Progress, Result
from .loading import (
    DEFAULT_NAME,
    default_name,
    ensure_loaded,
    find_loaded,
    loading,
    plan_parameters,
    refuse_unloadable,
    resolve,
    scan_models,
)
from .preconditions import file_preconditions
from .preview import ASK_SERVER, previewed
from .provenance import LoadFacts, planned_load, would_fail
from .threads import in_thread

if TYPE_CHECKING:
    from ..planner.fields import Effect
    from ..planner.plans.models import ModelsList, ModelsLoad, ModelsScan, ModelsShow, ModelsUnload
    from ..runtime.models.catalog import Catalog, Entry
    from ..runtime.types import LoadedModel
    from .context import Context
    from .events import Events

__all__ = ["ensure_loaded", "list_models", "load", "scan", "show", "unload"]


def preview_folder(_plan: ModelsScan | ModelsList, ctx: Context) -> Facts:
    """Reading the folder is all there is; how many files there are is told by running it."""
    exists = ctx.models_dir.is_dir()
    warnings = () if exists else (f"the models folder `{ctx.models_dir}` does not exist",)
    return Facts(effects=("read",), resolved={"models_dir_exists": exists}, warnings=warnings)


@previewed(preview_folder)
async def scan(_plan: ModelsScan, ctx: Context) -> Events:
    """Every GGUF file of the folder, the unusable ones with their reason."""
    catalog = await in_thread(scan_models, ctx)
    rows = [entry_row(entry) for entry in catalog.entries]
    invalid = sum(not row["valid"] for row in rows)
    yield Result(data={**_folder(ctx, catalog), "files": rows, "total": len(rows), "invalid": invalid})


@previewed(preview_folder)
async def list_models(plan: ModelsList, ctx: Context) -> Events:
    """The valid files of one kind; by default those that can be loaded."""
    catalog = await in_thread(scan_models, ctx)
    rows = [entry_row(e) for e in catalog.entries if e.valid and plan.kind in (e.kind, "all")]
    yield Result(data={**_folder(ctx, catalog), "models": rows})


def preview_named(plan: ModelsShow, ctx: Context) -> Facts:
    """What the name means here, without more than the header read."""
    return _named_facts(plan.model, ctx)


@previewed(preview_named)
async def show(plan: ModelsShow, ctx: Context) -> Events:
    """One model's header in words, how it is loaded where it is, and its fingerprint where that is asked for."""
    name = _name_or_default(plan.model, ctx)
    target = await in_thread(resolve, ctx, name)
    loaded = find_loaded(ctx, target.model_id) if ctx.on_server else None
    if target.entry is None and not plan.fingerprint:
        raise ModelNotFound(f"`{name}` has no file to show", param="model")
    row = _row_without_file(target.model_id) if target.entry is None else entry_row(target.entry)
    if target.entry is not None and target.entry.valid:
        row["header"] = await in_thread(_header, Path(target.entry.path))
        from .measured import last_measurement

        row["measured"] = await in_thread(last_measurement, ctx.settings.state_dir, target.model_id)
    if ctx.on_server:
        row["loaded"] = None if loaded is None else loaded_row(loaded)
    if plan.fingerprint:
        from .fingerprint import served_fingerprint

        row["fingerprint"] = await in_thread(served_fingerprint, ctx, target.model_id, loaded)
    yield Result(data=row)


def preview_load(plan: ModelsLoad, ctx: Context) -> Facts:
    """The file, the effective parameters with their origin, and what must still hold when the plan is applied."""
    found = _named_facts(plan.model, ctx)
    taken, spec, resolved = LoadFacts(), None, dict(found.resolved)
    preconditions = found.preconditions
    if "model_id" in resolved:
        target = resolve(ctx, _name_or_default(plan.model, ctx), catalog=ctx.catalog)
        taken, spec, adapters = planned_load(plan, ctx, target)
        preconditions += tuple(fact for entry in adapters for fact in file_preconditions(entry, ctx.models_dir))
    diff, unknown, warnings = None, list(found.unknown), (*found.warnings, *taken.warnings)
    effects: tuple[Effect, ...] = ("read", "create", "gpu", "exec")
    if taken.memory:
        resolved["memory"] = taken.memory
    if ctx.on_server:
        evicted: tuple[str, ...] = ()
        if spec is not None:
            admission = ctx.runtime.admission(spec)
            evicted = admission.evict
            if admission.refusal is not None:
                resolved["no_room"] = admission.refusal.as_dict()
        resolved["would_evict"] = list(evicted)
        resolved["limits"] = {name: getattr(ctx.settings, name) for name in LIMITS}
        diff = _load_diff(plan, ctx, None if "no_room" in resolved else resolved.get("model_id"), evicted)
        there = find_loaded(ctx, resolved.get("model_id", ""))
        if there is not None:
            effects = ("read",) if diff["before"] == diff["after"] else ("read", "update")
            warnings += _kept_as_it_is(plan, there)
    else:
        unknown += [
            f"which models the server has loaded already, its limits, and which would be evicted: {ASK_SERVER}",
            f"how much memory is free where the server runs: {ASK_SERVER}",
        ]
    return Facts(
        effects=effects,
        resolved=resolved,
        provenance=taken.provenance,
        preconditions=preconditions,
        unknown=tuple(unknown),
        warnings=warnings,
        diff=diff,
    )


LIMITS = ("max_loaded", "memory_budget_bytes", "idle_ttl_s")
"""Settings that decide which models make room for another; null is no limit."""


def _load_diff(plan: ModelsLoad, ctx: Context, model_id: str | None, evicted: tuple[str, ...]) -> dict[str, Any]:
    """The server's models before and after; the default one too where it would become another."""
    before: dict[str, Any] = {"loaded": [model.model_id for model in ctx.runtime.loaded()]}
    left = [each for each in before["loaded"] if each not in evicted]
    after: dict[str, Any] = {"loaded": list(dict.fromkeys([*left, *filter(None, [model_id])]))}
    if plan.make_default and model_id is not None and model_id != ctx.default_model_id:
        before, after = before | {"default_model": ctx.default_model_id}, after | {"default_model": model_id}
    return {"before": before, "after": after}


def _kept_as_it_is(plan: ModelsLoad, model: LoadedModel) -> tuple[str, ...]:
    """The warning that a loaded model keeps parameters which the plan asks otherwise."""
    other = _differing(plan, model)
    return (f"loaded already, with another {', '.join(other)}: unload it first",) if other else ()


@previewed(preview_load)
async def load(plan: ModelsLoad, ctx: Context) -> Events:
    """Load the model into this process; a model that is loaded already is left as it is."""
    name = _name_or_default(plan.model, ctx)
    ready = {model.model_id for model in ctx.runtime.loaded() if model.state == "ready"}
    model: LoadedModel | None = None
    async for step in loading(ctx, name, plan):
        if isinstance(step, Progress):
            yield step
        else:
            model = step
    assert model is not None  # loading ends with the model or raises
    if plan.make_default:
        ctx.default_model_id = model.model_id
    changed = model.model_id not in ready
    row = loaded_row(model)
    if not changed:
        row["warnings"] = [*row["warnings"], *_kept_as_it_is(plan, model)]
    yield Result(data={**row, "changed": changed, "default_model": ctx.default_model_id})


def preview_unload(plan: ModelsUnload, ctx: Context) -> Facts:
    """What would go; only the server knows whether it is there."""
    if not ctx.on_server:
        unknown = (f"which models the server has loaded, and so which would go: {ASK_SERVER}",)
        return Facts(effects=("delete",), unknown=unknown)
    before = [model.model_id for model in ctx.runtime.loaded()]
    try:
        gone = _to_unload(plan, ctx)
    except LocalLLMError as error:
        return Facts(effects=("read",), warnings=(f"would fail: {error.message}",))
    diff: dict[str, dict[str, Any]] = {
        "before": {"loaded": before},
        "after": {"loaded": [model_id for model_id in before if model_id not in gone]},
    }
    if ctx.default_model_id in gone:
        diff["before"]["default_model"], diff["after"]["default_model"] = ctx.default_model_id, None
    return Facts(effects=("delete",) if gone else ("read",), resolved={"model_ids": gone}, diff=diff)


@previewed(preview_unload)
async def unload(plan: ModelsUnload, ctx: Context) -> Events:
    """Unload one model or all; without `force` a model with running requests is refused."""
    gone = _to_unload(plan, ctx)
    for model_id in gone:
        yield Progress(stage="unloading", message=model_id)
        await ctx.runtime.unload(model_id, force=plan.force)
        if ctx.default_model_id == model_id:
            ctx.default_model_id = None
    left = [model.model_id for model in ctx.runtime.loaded()]
    yield Result(data={"unloaded": gone, "loaded": left, "changed": bool(gone)})


def entry_row(entry: Entry) -> dict[str, Any]:
    """A catalog entry as JSON; its path is relative to the models folder, so that no report shows where a home lies."""
    return {
        "id": entry.id,
        "path": entry.relative_path,
        "parts": len(entry.parts),
        "size_bytes": entry.size_bytes,
        "modified": round(entry.mtime, 3),
        "kind": entry.kind,
        "valid": entry.valid,
        "reason": entry.reason,
        "architecture": entry.architecture,
        "name": entry.name,
        "context_length": entry.context_length,
        "quantization": entry.quantization,
        "parameter_count": entry.parameter_count,
        "aliases": list(entry.aliases),
        "duplicate_of": entry.duplicate_of,
    }


def _row_without_file(model_id: str) -> dict[str, Any]:
    """The row of what the echo backend calls a model."""
    unknown = ("reason", "architecture", "name", "context_length", "quantization", "parameter_count", "duplicate_of")
    known = {"id": model_id, "path": "", "parts": 0, "size_bytes": 0, "modified": 0.0, "kind": "model", "valid": True}
    return {**known, **dict.fromkeys(unknown), "aliases": []}


def loaded_row(model: LoadedModel) -> dict[str, Any]:
    """A loaded model as JSON, without the place of its file."""
    from attrs import asdict

    row: dict[str, Any] = asdict(model)
    for place in ("path", "adapter_paths"):
        row["spec"].pop(place)
    return row


def _differing(plan: ModelsLoad, model: LoadedModel) -> list[str]:
    """Names of the parameters the plan asks for that the loaded model does not have; `auto` is whatever came of it."""
    asked = {name: value for name, value in plan_parameters(plan).items() if value != "auto"}
    if "adapters" in asked:
        from .adapters import scale_of

        # what a name means is asked of the folder at a load only: names as they were given are compared
        asked["adapters"] = tuple(scale_of(text) for text in asked["adapters"])
    return [name for name, value in asked.items() if value not in (getattr(model.spec, name), model.applied.get(name))]


def _folder(ctx: Context, catalog: Catalog) -> dict[str, Any]:
    shown = {} if ctx.on_server else {"models_dir": str(ctx.models_dir)}
    return {**shown, "warnings": [str(warning) for warning in catalog.warnings]}


def _header(path: Path) -> dict[str, Any]:
    """The header's metadata as JSON; long arrays are told by their length alone."""
    from ..runtime.models.gguf import read_header

    header = read_header(path)
    return {
        "version": header.version,
        "tensors": header.tensor_count,
        "metadata": {name: _plain(value) for name, value in header.metadata.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, (tuple, list)) and len(value) <= 64:
        return [_plain(item) for item in value]
    count = len(value) if isinstance(value, (tuple, list, bytes)) else getattr(value, "count", None)
    return {"array_of": count}


def _name_or_default(name: str, ctx: Context) -> str:
    """The name, `local-model` replaced; outside the server only the configured default can be known."""
    if name != DEFAULT_NAME:
        return name
    if ctx.on_server:
        return default_name(ctx)
    if ctx.settings.default_model:
        return ctx.settings.default_model
    raise ModelNotFound(
        "no default model is configured",
        hint="set one with `localllm config set default_model NAME`",
        param="model",
    )


def _named_facts(name: str, ctx: Context) -> Facts:
    """What a name means, as far as the local folder tells; a name that means nothing is a warning, not an error,
    because the server's folder may be another one."""
    try:
        target = resolve(ctx, _name_or_default(name, ctx))
        if target.entry is not None:
            refuse_unloadable(target.entry)
    except LocalLLMError as error:
        return Facts(unknown=(f"what `{name}` means where the plan runs",), warnings=(would_fail(error),))
    if target.entry is None:
        return Facts(resolved={"model_id": target.model_id, "backend": ctx.backend})
    resolved = {"model_id": target.model_id, **entry_row(target.entry)}
    resolved.pop("id")
    preconditions = file_preconditions(target.entry, ctx.models_dir)
    resolved["header_hash"] = preconditions[0]["header_hash"]
    return Facts(resolved=resolved, preconditions=preconditions)


def _to_unload(plan: ModelsUnload, ctx: Context) -> list[str]:
    """Ids of the loaded models the plan means. Raises ModelNotFound where the one it names is not loaded."""
    loaded = ctx.runtime.loaded()
    if plan.all:
        return [model.model_id for model in loaded]
    name = str(plan.model)
    if name == DEFAULT_NAME and loaded:
        name = default_name(ctx)
    by_name = [model.model_id for model in loaded if name in (model.model_id, *model.spec.names)]
    if not by_name and ctx.backend != "echo":
        try:
            target = resolve(ctx, name)
        except ModelNotFound:
            target = None
        by_name = [m.model_id for m in loaded if target is not None and m.model_id == target.model_id]
    if by_name:
        return by_name[:1]
    available = [model.model_id for model in loaded]
    listed = ", ".join(f"`{model_id}`" for model_id in available) or "nothing"
    raise ModelNotFound(f"model `{name}` is not loaded", hint=f"loaded is {listed}", param="model", available=available)
