"""From what was asked to how a model is loaded: every parameter's value, where it comes from, and whether it fits.

Each value is taken from the first that has one: the caller (`flag`), the profile (`profile NAME`), the model's header
(`GGUF`), what fits the machine's memory (`fit`), its CPUs (`machine`), a `default`. Pure: headers, devices and limits
are given.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from attrs import define, evolve, field, frozen

from ...errors import BadInput, OutOfMemory
from ..load_spec import LoadSpec
from .device import Device, devices_to_offload_to
from .estimate import Estimate, Sizing, estimate
from .fit import Alternative, alternatives, auto_layers, context_that_fits, pool_cells
from .header import GGUFHeader
from .machine import CpuLimits
from .profiles import Profile, profile_named
from .shape import ModelShape, model_shape

DEFAULT_CONTEXT: Final = 8192
DEFAULT_SLOTS: Final = 8
DEFAULT_BATCH: Final = 512
GIB: Final = 1 << 30
_UNSET: Final = {"gpu_layers": "auto", "flash_attention": "auto", "cache_type_k": "f16", "cache_type_v": "f16"}
"""Parameters that have a value even when nobody gave one; that value then counts as not given."""


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class LoadParameters:
    """How a model will be loaded. `spec` has every number filled in; `options["n_ctx_pool"]` is the pool's size."""

    spec: LoadSpec
    origins: dict[str, str]
    estimate: Estimate
    alternatives: tuple[Alternative, ...] = ()
    """Where it does not fit: parameters that would."""
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every device has the memory it would need."""
        return self.estimate.fits

    @property
    def values(self) -> dict[str, Any]:
        """The effective parameters by name, those of `origins`."""
        pool = {"n_ctx_pool": self.spec.options["n_ctx_pool"]}
        return {name: pool[name] if name in pool else getattr(self.spec, name) for name in self.origins}

    def as_dict(self) -> dict[str, Any]:
        """What a report shows of it, as JSON."""
        return {
            "parameters": {name: {"value": value, "origin": self.origins[name]} for name, value in self.values.items()},
            "memory": self.estimate.as_dict(),
            "alternatives": [each.as_dict() for each in self.alternatives],
            "warnings": list(self.warnings),
        }


def load_parameters(
    spec: LoadSpec,
    headers: Sequence[GGUFHeader],
    devices: Sequence[Device],
    cpu: CpuLimits,
    *,
    given: Collection[str] | None = None,
) -> LoadParameters:
    """Resolve every load parameter of a model, given the headers of its parts.

    `given` names the parameters the caller asked for; without it those that differ from `LoadSpec`'s defaults are
    taken for such. Raises BadInput for a profile that does not exist or a cache type the model cannot have.
    """
    profile, shape = profile_named(spec.profile), model_shape(headers)
    choice = _Choice(spec, profile, _given(spec) if given is None else given)
    n_slots = choice.take("n_slots", DEFAULT_SLOTS)
    n_batch = choice.take("n_batch", DEFAULT_BATCH)
    n_ubatch = choice.take("n_ubatch", min(n_batch, DEFAULT_BATCH))
    if n_ubatch > n_batch:
        n_ubatch = choice.put("n_ubatch", n_batch, "fit")
    threads = choice.take("n_threads", cpu.threads, "machine")
    choice.take("n_threads_batch", threads, choice.origins["n_threads"])
    for name in ("cache_type_k", "cache_type_v"):
        _check_cache_type(name, choice.take(name, "f16"), shape)
    flash = choice.take("flash_attention", "auto")
    sizing = Sizing(
        n_ctx_pool=0,
        n_sequences=n_slots,
        n_ubatch=n_ubatch,
        cache_type_k=choice.values["cache_type_k"],
        cache_type_v=choice.values["cache_type_v"],
        flash_attention=flash != "off",
    )
    auto, sizing = _layers(choice, shape, sizing, devices)
    sizing = _context(choice, shape, sizing, devices, n_slots, auto=auto)
    return _resolved(choice, shape, sizing, devices, n_slots)


def require_memory(parameters: LoadParameters) -> None:
    """Raise OutOfMemory where a load would surely fail; weights that are mapped from the file may exceed memory."""
    for device in parameters.estimate.devices:
        needed = device.needed_bytes
        if device.type == "cpu" and parameters.spec.mmap and not parameters.spec.mlock:
            needed -= device.weights_bytes
        if needed > device.free_bytes:
            raise OutOfMemory(
                f"`{parameters.spec.model_id}` needs {needed / GIB:.1f} GiB of memory on {device.name}, where "
                f"{device.free_bytes / GIB:.1f} GiB are free",
                hint=_hint(parameters),
                memory=parameters.estimate.as_dict(),
                alternatives=[each.as_dict() for each in parameters.alternatives],
            )


@define(eq=False, repr=False)  # unused methods would only slow the start
class _Choice:
    """Collects each parameter's value and origin as it is decided."""

    spec: LoadSpec
    profile: Profile
    given: Collection[str]
    values: dict[str, Any] = field(factory=dict)
    origins: dict[str, str] = field(factory=dict)
    warnings: list[str] = field(factory=list)

    def take(self, name: str, fallback: Any, origin: str = "default") -> Any:
        """The caller's value, else the profile's, else the fallback."""
        if name in self.given:
            return self.put(name, getattr(self.spec, name), "flag")
        if name in self.profile.values:
            return self.put(name, self.profile.values[name], f"profile {self.profile.name}")
        return self.put(name, fallback, origin)

    def put(self, name: str, value: Any, origin: str) -> Any:
        self.values[name], self.origins[name] = value, origin
        return value


def _given(spec: LoadSpec) -> set[str]:
    names = ("n_ctx", "n_slots", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", *_UNSET)
    return {name for name in names if getattr(spec, name) != _UNSET.get(name)}


def _check_cache_type(name: str, value: str, shape: ModelShape) -> None:
    if not shape.takes_cache_type(value):
        raise BadInput(
            f"`{name}` cannot be `{value}` for this model: its attention heads are {shape.head_widths[0]} wide",
            hint="`f16` always works",
            param=name,
        )


def _layers(choice: _Choice, shape: ModelShape, sizing: Sizing, devices: Sequence[Device]) -> tuple[bool, Sizing]:
    """Settle `gpu_layers` where it is a number or `all`; say whether it is left to what fits."""
    wanted = choice.take("gpu_layers", "auto")
    if not devices_to_offload_to(devices):
        if wanted not in ("auto", 0):
            choice.warnings.append("there is no GPU that llama.cpp can use: all layers run on the CPU")
        choice.put("gpu_layers", 0, choice.origins["gpu_layers"] if wanted == 0 else "machine")
        return False, sizing
    if wanted == "auto":
        return True, sizing
    layers = shape.n_layers + 1 if wanted == "all" else min(int(wanted), shape.n_layers + 1)
    choice.put("gpu_layers", layers, choice.origins["gpu_layers"])
    return False, evolve(sizing, gpu_layers=layers)


def _context(
    choice: _Choice, shape: ModelShape, sizing: Sizing, devices: Sequence[Device], n_slots: int, *, auto: bool
) -> Sizing:
    """Settle `n_ctx`, the pool and, with `auto`, the layers on the GPU."""
    own = shape.context_length or DEFAULT_CONTEXT
    n_ctx = choice.take("n_ctx", DEFAULT_CONTEXT)
    if choice.origins["n_ctx"] == "flag":
        if shape.context_length and n_ctx > own:
            choice.warnings.append(f"the model was made for {own} tokens; beyond them its answers get worse")
        lowest = n_ctx
    else:
        if n_ctx > own:
            n_ctx = choice.put("n_ctx", own, "GGUF")
        lowest = 0
    fitting = context_that_fits(shape, sizing, devices, n_ctx, n_slots, auto=auto)
    if fitting is None or fitting[0] < lowest:  # what was asked for stays, and is reported as not fitting
        fitted = evolve(sizing, n_ctx_pool=n_ctx)
        fitting = n_ctx, evolve(fitted, gpu_layers=auto_layers(shape, fitted, devices)) if auto else fitted
    found, fitted = fitting
    if found < n_ctx:
        choice.put("n_ctx", found, "fit")
        choice.warnings.append(f"the context was lowered from {n_ctx} to {found} tokens, which is what fits the memory")
    choice.put("n_ctx_pool", fitted.n_ctx_pool, "default" if fitted.n_ctx_pool == pool_cells(found, n_slots) else "fit")
    if auto:
        choice.put("gpu_layers", fitted.gpu_layers, "fit")
        if fitted.gpu_layers <= shape.n_layers:
            choice.warnings.append(
                f"{fitted.gpu_layers} of {shape.n_layers + 1} layers fit the GPU: the others run on the CPU"
            )
    return fitted


def _resolved(
    choice: _Choice, shape: ModelShape, sizing: Sizing, devices: Sequence[Device], n_slots: int
) -> LoadParameters:
    outcome = estimate(shape, sizing, devices)
    if not outcome.fits and outcome.fits_mapped:
        choice.warnings.append(
            "weights and context together exceed the memory: weights will be read from the file over and over"
        )
    n_ctx = choice.values["n_ctx"]
    spec = evolve(
        choice.spec,
        profile=choice.profile.name,
        options={**choice.spec.options, "n_ctx_pool": choice.values["n_ctx_pool"]},
        **{name: value for name, value in choice.values.items() if name != "n_ctx_pool"},
    )
    return LoadParameters(
        spec=spec,
        origins=choice.origins,
        estimate=outcome,
        alternatives=() if outcome.fits else tuple(alternatives(shape, sizing, devices, n_ctx, n_slots)),
        warnings=tuple(choice.warnings),
    )


def _hint(parameters: LoadParameters) -> str:
    if not parameters.alternatives:
        return "no smaller context would fit; a smaller quantisation of the model might"
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in parameters.alternatives[0].changes.items()]
    return f"`{' '.join(flags)}` would fit"
