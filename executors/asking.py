"""What every plan that asks a model shares: its dry run, and the way to a server or to a model loaded here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ..errors import InternalError, LocalLLMError, ServerUnreachable
from ..planner.report import Facts
from .events import Progress
from .loading import DEFAULT_NAME, loading, refuse_unloadable, resolve
from .preconditions import file_preconditions
from .provenance import would_fail

if TYPE_CHECKING:
    from ..planner.plans.chat import Chat
    from ..planner.plans.complete import Complete
    from ..runtime.models.catalog import Entry
    from ..runtime.types import LoadedModel
    from .context import Context
    from .events import Events

Ask = Callable[[str], "Events"]
"""Asks a loaded model, by its id."""


def asking_facts(plan: Chat | Complete, ctx: Context) -> tuple[Facts, Entry | None]:
    """Which file the name means here, and what a dry run cannot know; whether a server answers is not asked."""
    unknown = (
        [] if ctx.on_server else [f"whether a server listens at `{ctx.settings.server}`; without one it runs here"]
    )
    resolved: dict[str, Any] = {}
    preconditions: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    entry: Entry | None = None
    name = _configured(plan.model, ctx)
    if name is None:
        unknown.append("what `local-model` means: none is configured, so it is the model that is loaded")
    else:
        try:
            target = resolve(ctx, name)
            resolved["model_id"] = target.model_id
            if target.entry is not None:
                refuse_unloadable(target.entry)
                resolved["path"] = target.entry.relative_path
                preconditions = file_preconditions(target.entry, ctx.models_dir)
                entry = target.entry
        except LocalLLMError as error:
            warnings = (would_fail(error),)
    provenance = {}
    if plan.seed is None and plan.temperature > 0:
        unknown.append("the seed, which is drawn when the plan runs")
    if plan.max_tokens is None:
        provenance["max_tokens"] = {"value": None, "origin": "default"}
        unknown.append("the number of tokens the context leaves for the answer")
    facts = Facts(
        effects=("read", "gpu", "exec") if ctx.on_server else ("read", "network", "gpu", "exec"),
        where="server" if ctx.on_server else "either",
        resolved=resolved,
        provenance=provenance,
        preconditions=preconditions,
        unknown=tuple(unknown),
        warnings=warnings,
    )
    return facts, entry


async def asked(plan: Chat | Complete, ctx: Context, ask: Ask) -> Events:
    """Send the plan to the server that answers; on a server or without one, load the model here and ask it.

    Raises ServerUnreachable where something listens and does not answer.
    """
    if not ctx.on_server:
        if await server_answers(ctx):
            from .client import send_plan

            async with aclosing(send_plan(plan, ctx)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
            return
        yield Progress(stage="note", message=f"no server at `{ctx.settings.server}`, so this process loads the model")
    ready = {model.model_id for model in ctx.runtime.loaded() if model.state == "ready"}
    model: LoadedModel | None = None
    async for step in loading(ctx, plan.model):
        if isinstance(step, Progress):
            yield step
        else:
            model = step
    if model is None:
        raise InternalError("loading ended without a model")
    if model.model_id not in ready:
        for warning in model.warnings:
            yield Progress(stage="warning", message=f"model `{model.model_id}`: {warning}")
    async with aclosing(ask(model.model_id)) as events:  # type: ignore[type-var]
        async for event in events:
            yield event


async def server_answers(ctx: Context) -> bool:
    """Whether a localllm server answers at the setting `server`; False only where nothing listens.

    Raises ServerUnreachable for a server that is slow and for a stranger: nobody's answer may come from another place
    than was meant.
    """
    from .client import find_server

    try:
        await find_server(ctx)
    except ServerUnreachable as error:
        if error.data.get("found") != "nothing":
            raise
        return False
    return True


def _configured(name: str, ctx: Context) -> str | None:
    """The name, or what `local-model` means as far as a dry run can tell."""
    if name != DEFAULT_NAME:
        return name
    return ctx.default_model_id or ctx.settings.default_model
