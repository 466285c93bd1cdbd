"""From what was asked to how a model is loaded: every parameter's value, where it comes from, and whether it fits.

Each value is taken from the first that has one: the caller (`flag`, or what `LoadSpec.origins` says), the profile
(`profile NAME`), the model's header (`GGUF`), what fits the machine's memory (`fit`), its CPUs and GPUs (`machine`), a
`default`. Pure: headers, devices and limits are given.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from attrs import evolve, field, frozen

from ...errors import BadInput, OutOfMemory
from ..load_spec import LoadSpec
from .choice import Choice, Fate, given_by
from .device import Device
from .estimate import DeviceMemory, Estimate, Sizing, estimate
from .fit import Alternative, alternatives, auto_layers, context_that_fits, pool_cells
from .header import GGUFHeader
from .machine import CpuLimits
from .offload import settle_offloading
from .positions import settle_positions
from .profiles import profile_named
from .shape import ModelShape, adapter_layer_bytes, model_shape

DEFAULT_CONTEXT: Final = 8192
DEFAULT_SLOTS: Final = 8
DEFAULT_BATCH: Final = 512
GIB: Final = 1 << 30
NOT_QUANTISED: Final = ("f32", "f16", "bf16")


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class LoadParameters:
    """How a model will be loaded. `spec` has every number filled in; `options["n_ctx_pool"]` is the pool's size."""

    spec: LoadSpec
    origins: dict[str, str]
    estimate: Estimate
    fates: dict[str, tuple[Fate, str]] = field(factory=dict)
    """Of parameters that are not simply applied: what is done instead, and why."""
    alternatives: tuple[Alternative, ...] = ()
    """Where it does not fit: parameters that would."""
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every device has the memory it would need, with some left."""
        return self.estimate.fits

    @property
    def too_large_for(self) -> tuple[DeviceMemory, ...]:
        """Devices on which the load would surely fail; weights that are mapped from the file may exceed memory."""
        mapped = self.spec.mmap and not self.spec.mlock
        return tuple(
            device
            for device in self.estimate.devices
            if device.needed_bytes - (device.weights_bytes if mapped and device.type == "cpu" else 0)
            > device.free_bytes
        )

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
    adapters: Sequence[GGUFHeader] = (),
    gpu_kinds: Sequence[str] = (),
) -> LoadParameters:
    """Resolve every load parameter of a model, given the headers of its parts and of its adapters.

    `given` names the parameters the caller asked for; without it those that are set. `gpu_kinds` are the kinds of GPU
    that llama.cpp is built for, so that one that is missing is said. Raises BadInput for a profile, a
    cache type or a GPU that cannot be.
    """
    profile, shape = profile_named(spec.profile), model_shape(headers)
    choice = Choice(spec, profile, given_by(spec) if given is None else given)
    choice.put("profile", profile.name, spec.origins.get("profile", "default" if spec.profile is None else "flag"))
    sizing = evolve(_sizing(choice, shape, cpu), adapter_bytes=adapter_layer_bytes(adapters, shape.n_layers))
    settle_positions(choice, headers[0], shape)
    choice.take("adapters", ())
    choice.take("mmap", True)
    choice.take("mlock", False)
    auto, sizing = settle_offloading(choice, shape, sizing, devices, gpu_kinds)
    sizing = _context(choice, shape, sizing, devices, auto=auto)
    return _resolved(choice, shape, _batch_within_pool(choice, sizing), devices)


def require_memory(parameters: LoadParameters) -> None:
    """Raise OutOfMemory where a load would surely fail, with parameters that would fit."""
    for device in parameters.too_large_for:
        raise OutOfMemory(
            f"`{parameters.spec.model_id}` needs {device.needed_bytes / GIB:.1f} GiB of memory on {device.name}, where "
            f"{device.free_bytes / GIB:.1f} GiB are free",
            hint=_hint(parameters),
            memory=parameters.estimate.as_dict(),
            alternatives=[each.as_dict() for each in parameters.alternatives],
        )


def _sizing(choice: Choice, shape: ModelShape, cpu: CpuLimits) -> Sizing:
    """Settle what needs no device: slots, batches, threads, cache types, flash attention."""
    n_slots = choice.take("n_slots", DEFAULT_SLOTS)
    n_batch = choice.take("n_batch", DEFAULT_BATCH)
    n_ubatch = choice.take("n_ubatch", min(n_batch, DEFAULT_BATCH))
    if n_ubatch > n_batch:
        n_ubatch = _lower(choice, "n_ubatch", n_batch, f"`n_batch` is {n_batch}")
    threads = choice.take("n_threads", cpu.threads, "machine")
    choice.take("n_threads_batch", threads, choice.origins["n_threads"])
    if threads > cpu.allowed:
        choice.warnings.append(f"{threads} threads share {cpu.allowed} CPUs: fewer are faster")
    for name in ("cache_type_k", "cache_type_v"):
        _check_cache_type(name, choice.take(name, "f16"), shape)
    if choice.take("flash_attention", "auto") == "on" and not shape.takes_flash_attention:
        choice.ignore("flash_attention", "off", f"llama.cpp has no flash attention for `{shape.architecture}`")
    flash = choice.values["flash_attention"] != "off" and shape.takes_flash_attention
    if not flash and choice.values["cache_type_v"] not in NOT_QUANTISED:
        raise BadInput(
            f"`cache_type_v` cannot be `{choice.values['cache_type_v']}` without flash attention",
            hint="leave `flash_attention` at `auto`, or take `f16`" if shape.takes_flash_attention else "take `f16`",
            param="cache_type_v",
        )
    return Sizing(
        n_ctx_pool=0,
        n_sequences=n_slots,
        n_ubatch=n_ubatch,
        cache_type_k=choice.values["cache_type_k"],
        cache_type_v=choice.values["cache_type_v"],
        flash_attention=flash,
    )


def _lower(choice: Choice, name: str, value: int, why: str) -> int:
    if choice.asked(name):
        choice.approximate(name, value, why)
    choice.put(name, value, "fit")
    return value


def _batch_within_pool(choice: Choice, sizing: Sizing) -> Sizing:
    """A decode call takes no more tokens than there are cells."""
    pool = sizing.n_ctx_pool
    for name in ("n_batch", "n_ubatch"):
        if choice.values[name] > pool:
            _lower(choice, name, pool, f"the context has {pool} tokens")
    return evolve(sizing, n_ubatch=choice.values["n_ubatch"])


def _check_cache_type(name: str, value: str, shape: ModelShape) -> None:
    if not shape.takes_cache_type(value):
        raise BadInput(
            f"`{name}` cannot be `{value}` for this model: its attention heads are {shape.head_widths[0]} wide",
            hint="`f16` always works",
            param=name,
        )


def _context(choice: Choice, shape: ModelShape, sizing: Sizing, devices: Sequence[Device], *, auto: bool) -> Sizing:
    """Settle `n_ctx`, the pool and, with `auto`, the layers on the GPU."""
    n_slots = choice.values["n_slots"]
    own = shape.context_length or DEFAULT_CONTEXT
    n_ctx = choice.take("n_ctx", DEFAULT_CONTEXT)
    if "n_ctx" in choice.given:
        if shape.context_length and n_ctx > own:
            choice.warnings.append(f"the model was made for {own} tokens; beyond them its answers get worse")
        lowest = n_ctx
    else:
        if n_ctx > own:
            if choice.asked("n_ctx"):
                choice.approximate("n_ctx", own, f"the model was made for {own} tokens")
            n_ctx = choice.put("n_ctx", own, "GGUF")
        lowest = 0
    fitting = context_that_fits(shape, sizing, devices, n_ctx, n_slots, auto=auto)
    if fitting is None or fitting[0] < lowest:  # what was asked for stays, and is reported as not fitting
        fitted = evolve(sizing, n_ctx_pool=n_ctx)
        fitting = n_ctx, evolve(fitted, gpu_layers=auto_layers(shape, fitted, devices)) if auto else fitted
    found, fitted = fitting
    if found < n_ctx:
        if choice.asked("n_ctx"):
            choice.approximate("n_ctx", found, "no more fits the memory")
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


def _resolved(choice: Choice, shape: ModelShape, sizing: Sizing, devices: Sequence[Device]) -> LoadParameters:
    outcome = estimate(shape, sizing, devices)
    if not outcome.fits and outcome.fits_mapped:
        choice.warnings.append(
            "weights and context together exceed the memory: weights will be read from the file over and over"
        )
    spec = evolve(
        choice.spec,
        options={**choice.spec.options, "n_ctx_pool": choice.values["n_ctx_pool"]},
        **{name: value for name, value in choice.values.items() if name != "n_ctx_pool"},
    )
    return LoadParameters(
        spec=spec,
        origins=choice.origins,
        fates=choice.fates,
        estimate=outcome,
        alternatives=() if outcome.fits else _alternatives(choice, shape, sizing, devices),
        warnings=tuple(choice.warnings),
    )


def _alternatives(
    choice: Choice, shape: ModelShape, sizing: Sizing, devices: Sequence[Device]
) -> tuple[Alternative, ...]:
    found = alternatives(shape, sizing, devices, choice.values["n_ctx"], choice.values["n_slots"])
    asked_off = choice.values["flash_attention"] == "off" and choice.asked("flash_attention")
    if asked_off or not shape.takes_flash_attention:
        found = [each for each in found if "cache_type_v" not in each.changes]  # it needs what is off
    return tuple(found)


def _hint(parameters: LoadParameters) -> str:
    if not parameters.alternatives:
        return "no smaller context would fit; a smaller quantisation of the model might"
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in parameters.alternatives[0].changes.items()]
    return f"`{' '.join(flags)}` would fit"
