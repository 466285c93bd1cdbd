"""What a load would take on this machine: each effective parameter, where it comes from, and the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from ..errors import LocalLLMError

if TYPE_CHECKING:
    from ..planner.plans.models import ModelsLoad
    from ..runtime.models.parameters import LoadParameters
    from ..runtime.types import LoadSpec
    from .context import Context


@frozen(kw_only=True)
class LoadFacts:
    """The part of a load's report that the machine decides."""

    provenance: dict[str, dict[str, Any]] = field(factory=dict)
    memory: dict[str, Any] = field(factory=dict)
    warnings: tuple[str, ...] = ()


def load_facts(plan: ModelsLoad, ctx: Context, spec: LoadSpec) -> LoadFacts:
    """Resolve the load as the worker would, without loading; what would fail is a warning."""
    from ..runtime.models.parameters import require_memory
    from ..runtime.models.placement import parameters_here

    try:
        parameters = parameters_here(spec, probe=True)
    except LocalLLMError as error:
        return LoadFacts(warnings=(f"would fail here: {error.message}",))
    warnings = list(parameters.warnings)
    try:
        require_memory(parameters)
    except LocalLLMError as error:
        warnings.append(f"would fail here: {error.message}")
    provenance = {name: _row(name, value, parameters, plan, ctx) for name, value in parameters.values.items()}
    return LoadFacts(provenance=provenance, memory=_memory(parameters), warnings=tuple(warnings))


def _row(name: str, value: Any, parameters: LoadParameters, plan: ModelsLoad, ctx: Context) -> dict[str, Any]:
    asked = getattr(plan, name, None)
    origin = parameters.origins[name]
    if origin == "flag":
        origin = "plan" if asked is not None else ctx.settings.origins.get(name, "plan")
    changed = asked not in (None, "auto", value)
    # layers asked for where there is no GPU: nothing of it is done
    fate = "applied" if not changed else "ignored" if value == 0 else "approximated"
    return {"value": value, "origin": origin, "fate": fate}


def _memory(parameters: LoadParameters) -> dict[str, Any]:
    """The estimate by device, whether it fits, and what would where it does not.

    The bytes that are free at this moment are left out: equal plans give equal reports.
    """
    parts = ("name", "type", "layers", "weights_bytes", "kv_bytes", "compute_bytes", "output_bytes")
    devices = [{part: getattr(device, part) for part in parts} for device in parameters.estimate.devices]
    return {
        "needed_bytes": parameters.estimate.needed_bytes,
        "devices": devices,
        "fits": parameters.fits,
        "alternatives": [each.as_dict() for each in parameters.alternatives],
    }
