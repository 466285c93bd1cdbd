"""From a name to a loaded model: which file it means, how to load it, and one load for all who ask at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ..errors import ModelNotFound
from .events import Progress
from .threads import in_thread

if TYPE_CHECKING:
    from ..planner.plans.models import ModelsLoad
    from ..planner.plans.serve import Serve
    from ..runtime.models.catalog import Catalog, Entry
    from ..runtime.types import LoadedModel, LoadSpec
    from .context import Context

DEFAULT_NAME = "local-model"
ECHO_MODEL = "echo"
DEFAULT_HINT = "name a model, or set one with `localllm config set default_model NAME`"


@frozen(kw_only=True)
class Target:
    """What a name means: a model's id, its catalog entry (None on the echo backend), and the names it goes by."""

    model_id: str
    entry: Entry | None
    names: tuple[str, ...]


def scan_models(ctx: Context) -> Catalog:
    """The catalog of the models folder; blocking, about a millisecond for each new file."""
    from ..runtime.models.catalog import scan

    ctx.catalog = scan(ctx.models_dir, aliases=ctx.settings.aliases, previous=ctx.catalog)
    return ctx.catalog


def default_name(ctx: Context) -> str:
    """What `local-model` means now: the model made the default, else the one loaded, else the configured one.

    With several loaded the configured one wins where it is among them, then the one loaded last. Raises
    ModelNotFound where none of these exists: a default is never guessed from the files.
    """
    if ctx.default_model_id:
        return ctx.default_model_id
    configured = ctx.settings.default_model
    loaded = [model for model in ctx.runtime.loaded() if model.state != "unloading"]
    if loaded:
        by_name = [model for model in loaded if configured and configured in (model.model_id, *model.spec.names)]
        return (by_name or loaded)[-1].model_id
    if ctx.backend == "echo":
        return ECHO_MODEL
    if configured and configured != DEFAULT_NAME:
        return configured
    raise ModelNotFound(
        "there is no default model: none is loaded and none is configured", hint=DEFAULT_HINT, param="model"
    )


def resolve(ctx: Context, name: str, *, catalog: Catalog | None = None) -> Target:
    """The model that a name means; `local-model` must have been replaced already.

    Raises ModelNotFound and AmbiguousName; never another model. Blocking, where it has to look at the folder.
    """
    if ctx.backend == "echo":
        known = {ECHO_MODEL, ctx.default_model_id or ECHO_MODEL, *(m.model_id for m in ctx.runtime.loaded())}
        if name in known:
            return Target(model_id=name, entry=None, names=(name,))
        raise ModelNotFound(
            f"model `{name}` does not exist", hint="this server echoes", param="model", available=sorted(known)
        )
    entry = (scan_models(ctx) if catalog is None else catalog).resolve(name)
    names = dict.fromkeys((name, *entry.aliases, entry.id))
    return Target(model_id=entry.id, entry=entry, names=tuple(names))


def load_spec(ctx: Context, target: Target, plan: ModelsLoad | Serve | None = None) -> LoadSpec:
    """How to load the target: the plan's parameters, then the settings', everything else left to the runtime.

    Raises ModelLoadFailed for a damaged file and Unsupported for one that is no model: llama.cpp never sees them; and
    for adapters what `find_adapters` raises.
    """
    from ..runtime.load_spec import LoadSpec

    entry = target.entry
    if entry is not None:
        refuse_unloadable(entry)
    settings, asked = setting_parameters(ctx), {} if plan is None else plan_parameters(plan)
    origins = {name: ctx.settings.origins.get(name, "default") for name in settings}
    given = {**settings, **asked, **_adapters(ctx, entry, asked.get("adapters", ()))}
    return LoadSpec(
        model_id=target.model_id,
        path="" if entry is None else str(entry.path),
        names=target.names,
        origins={**origins, **dict.fromkeys(asked, "plan")},
        **{"backend": ctx.backend, "options": dict(ctx.backend_options), **given},
    )


def setting_parameters(ctx: Context) -> dict[str, Any]:
    """The load parameters that the settings give, under `LoadSpec`'s names; those at None are left out."""
    names = ("profile", "n_ctx", "n_slots", "n_threads")
    return {name: value for name in names if (value := getattr(ctx.settings, name)) is not None}


def plan_parameters(plan: ModelsLoad | Serve) -> dict[str, Any]:
    """The plan's fields that a `LoadSpec` has too, under the same names; those that say nothing are left out."""
    from attrs import fields

    from ..runtime.load_spec import LoadSpec

    shared = {field.name for field in fields(LoadSpec)} & {field.name for field in fields(type(plan))}
    return {name: value for name in sorted(shared) if (value := getattr(plan, name)) not in (None, ())}


def _adapters(ctx: Context, entry: Entry | None, texts: tuple[str, ...]) -> dict[str, Any]:
    """The spec's fields of the adapters that a plan names; the echo backend has no use for any."""
    if not texts or entry is None:
        return {"adapters": ()} if texts else {}
    from .adapters import find_adapters

    found = find_adapters(texts, entry, ctx.catalog if ctx.catalog is not None else scan_models(ctx))
    return {"adapters": found.scales, "adapter_paths": tuple(each.path for each in found.entries)}


def first_load(plan: Serve) -> ModelsLoad:
    """The load that `serve --model` asks for."""
    from attrs import fields

    from ..planner.plans.loading import Loading
    from ..planner.plans.models import ModelsLoad

    assert plan.model is not None
    shared = {item.name: getattr(plan, item.name) for item in fields(Loading)}
    return ModelsLoad(model=plan.model, make_default=True, **shared)


def require_profile(name: str | None) -> None:
    """Raise BadInput, with the nearest name, for a profile that does not exist; None always does."""
    from ..runtime.models.profiles import profile_named

    profile_named(name)


def refuse_unloadable(entry: Entry) -> None:
    """Raise for an entry that cannot be loaded: ModelLoadFailed with the reason, Unsupported for its kind."""
    from ..runtime.models.catalog import require_loadable

    require_loadable(entry)


def find_loaded(ctx: Context, name: str) -> LoadedModel | None:
    """The loaded model that goes by this name, without a look at the folder."""
    for model in ctx.runtime.loaded():
        if model.state in ("ready", "loading") and name in (model.model_id, *model.spec.names):
            return model
    return None


async def ensure_loaded(ctx: Context, name: str, plan: ModelsLoad | Serve | None = None) -> LoadedModel:
    """The model of that name, loaded now if it is not yet; callers at the same time share one load.

    `plan` gives parameters to a load that has to start. Raises ModelNotFound, AmbiguousName, and what loading raises.
    """
    async for step in loading(ctx, name, plan):
        if not isinstance(step, Progress):
            return step
    raise AssertionError("loading ends with the model")


async def loading(
    ctx: Context, name: str, plan: ModelsLoad | Serve | None = None
) -> AsyncIterator[Progress | LoadedModel]:
    """Like `ensure_loaded`, with the progress of the load before the model itself.

    Without a plan to load by, it is a request that waits: it takes a place in the model's queue, or raises QueueFull.
    """
    wanted = default_name(ctx) if name == DEFAULT_NAME else name
    found = find_loaded(ctx, wanted)
    if found is not None and found.state == "ready":
        yield found
        return
    if found is not None:
        spec = found.spec  # join the load that runs
    else:
        target = await in_thread(resolve, ctx, wanted)
        known = find_loaded(ctx, target.model_id)
        if known is not None and known.state == "ready":
            yield known
            return
        spec = load_spec(ctx, target, plan)
    async for step in load_with_progress(ctx, spec, queued=plan is None):
        yield step


async def load_with_progress(
    ctx: Context, spec: LoadSpec, *, queued: bool = False
) -> AsyncIterator[Progress | LoadedModel]:
    """Load by a spec: progress as it comes, then the model, last. Closing it early leaves the load to others.

    `queued` as in the runtime's `load`.
    """
    import asyncio  # not above: a dry run imports this module without an event loop

    from .measured import remember_measurement

    steps: asyncio.Queue[Progress | None] = asyncio.Queue()

    def on_progress(stage: str, fraction: float) -> None:
        steps.put_nowait(Progress(stage="loading", message=f"{spec.model_id}: {stage}", current=fraction, total=1.0))

    before = any(model.model_id == spec.model_id for model in ctx.runtime.loaded())
    task = asyncio.ensure_future(ctx.runtime.load(spec, on_progress, queued=queued))
    task.add_done_callback(lambda _: steps.put_nowait(None))
    try:
        while (step := await steps.get()) is not None:
            yield step
        model = await task
        if not before:
            await in_thread(remember_measurement, ctx.settings.state_dir, model)
        yield model
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
