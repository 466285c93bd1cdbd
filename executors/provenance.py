"""What a load would take on this machine: each effective parameter, where it comes from, and the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from ..errors import LocalLLMError

if TYPE_CHECKING:
    from ..planner.plans.models import ModelsLoad
    from ..runtime.models.catalog import Entry
    from ..runtime.models.parameters import LoadParameters
    from ..runtime.types import LoadSpec
    from .context import Context
    from .loading import Target


@frozen(kw_only=True)
class LoadFacts:
    """The part of a load's report that the machine decides."""

    provenance: dict[str, dict[str, Any]] = field(factory=dict)
    memory: dict[str, Any] = field(factory=dict)
    warnings: tuple[str, ...] = ()


def planned_load(
    plan: ModelsLoad, ctx: Context, target: Target
) -> tuple[LoadFacts, LoadSpec | None, tuple[Entry, ...]]:
    """What a load of the target would take, its spec, and its adapters; none where the plan cannot be meant here.

    Raises BadInput for a profile that does not exist, which is so everywhere.
    """
    from .loading import load_spec, require_profile

    require_profile(plan.profile or ctx.settings.profile)
    try:
        spec = load_spec(ctx, target, plan)
    except LocalLLMError as error:
        return _refused(error, plan), None, ()
    if target.entry is None:
        return LoadFacts(), spec, ()
    adapters: tuple[Entry, ...] = ()
    if plan.adapters and ctx.catalog is not None:
        from .adapters import find_adapters

        adapters = find_adapters(plan.adapters, target.entry, ctx.catalog).entries
    return load_facts(plan, ctx, spec), spec, adapters


def load_facts(plan: ModelsLoad, ctx: Context, spec: LoadSpec) -> LoadFacts:
    """Resolve the load as the worker would, without loading; what would fail is a warning."""
    from ..runtime.models.parameters import require_memory
    from ..runtime.models.placement import parameters_here

    try:
        parameters = parameters_here(spec, probe=True)
    except LocalLLMError as error:
        return _refused(error, plan)
    warnings = list(parameters.warnings)
    try:
        require_memory(parameters)
    except LocalLLMError as error:
        warnings.append(would_fail(error))
    provenance = {name: _row(name, value, parameters) for name, value in parameters.values.items()}
    return LoadFacts(provenance=provenance, memory=_memory(parameters), warnings=tuple(warnings))


def _row(name: str, value: Any, parameters: LoadParameters) -> dict[str, Any]:
    fate, why = parameters.fates.get(name, ("applied", ""))
    row = {"value": as_json(value), "origin": parameters.origins[name], "fate": fate}
    return {**row, "reason": why} if why else row


def _refused(error: LocalLLMError, plan: ModelsLoad) -> LoadFacts:
    """What would fail here, with the row of the parameter that it would fail for."""
    value, rows = getattr(plan, error.param or "", None), {}
    if value not in (None, ()):
        row = {"value": as_json(value), "origin": "plan", "fate": "rejected", "reason": error.message}
        rows[str(error.param)] = row
    return LoadFacts(provenance=rows, warnings=(would_fail(error),))


def would_fail(error: LocalLLMError) -> str:
    """The warning of a dry run that found this error, with what would help."""
    return f"would fail here: {error.message}" + (f" ({error.hint})" if error.hint else "")


def as_json(value: Any) -> Any:
    """Tuples as the lists they are in JSON."""
    return [as_json(item) for item in value] if isinstance(value, tuple) else value


def _memory(parameters: LoadParameters) -> dict[str, Any]:
    """The estimate by device, whether it fits, and what would where it does not.

    The bytes that are free at this moment are left out: equal plans give equal reports.
    """
    parts = ("name", "type", "layers", "weights_bytes", "kv_bytes", "compute_bytes", "output_bytes", "adapter_bytes")
    too_small = {device.name for device in parameters.too_large_for}
    devices = [
        {part: getattr(device, part) for part in parts} | {"fits": device.name not in too_small}
        for device in parameters.estimate.devices
    ]
    return {
        "needed_bytes": parameters.estimate.needed_bytes,
        "devices": devices,
        "fits": not too_small,
        "alternatives": [each.as_dict() for each in parameters.alternatives],
    }
