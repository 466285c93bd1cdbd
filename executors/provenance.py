"""What a load would take on this machine: each effective parameter, where it comes from, and the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from ..errors import LocalLLMError

if TYPE_CHECKING:
    from ..planner.plans.loading import Loading
    from ..runtime.models.parameters import LoadParameters
    from ..runtime.types import LoadSpec
    from .context import Context


@frozen(kw_only=True)
class LoadFacts:
    """The part of a load's report that the machine decides."""

    provenance: dict[str, dict[str, Any]] = field(factory=dict)
    memory: dict[str, Any] = field(factory=dict)
    warnings: tuple[str, ...] = ()


def load_facts(plan: Loading, ctx: Context, spec: LoadSpec) -> LoadFacts:
    """Resolve the load as the worker would, without loading; what would fail is a warning."""
    from ..runtime.models.parameters import require_memory
    from ..runtime.models.placement import parameters_here

    try:
        parameters = parameters_here(spec, probe=True)
    except LocalLLMError as error:
        return LoadFacts(provenance=_rejected(error, plan), warnings=(f"would fail here: {error.message}",))
    warnings = list(parameters.warnings)
    try:
        require_memory(parameters)
    except LocalLLMError as error:
        warnings.append(f"would fail here: {error.message}")
    provenance = {name: _row(name, value, parameters) for name, value in parameters.values.items()}
    return LoadFacts(provenance=provenance, memory=_memory(parameters), warnings=tuple(warnings))


def _row(name: str, value: Any, parameters: LoadParameters) -> dict[str, Any]:
    fate, why = parameters.fates.get(name, ("applied", ""))
    row = {"value": as_json(value), "origin": parameters.origins[name], "fate": fate}
    return {**row, "reason": why} if why else row


def _rejected(error: LocalLLMError, plan: Loading) -> dict[str, dict[str, Any]]:
    """The row of the parameter that the load would be refused for."""
    value = getattr(plan, error.param or "", None)
    if value in (None, ()):
        return {}
    row = {"value": as_json(value), "origin": "plan", "fate": "rejected", "reason": error.message}
    return {str(error.param): row}


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
