"""How a load parameter is decided: who asked for which value, and what becomes of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

from attrs import define, field

from ..load_spec import LoadSpec
from .profiles import Profile

Fate = Literal["applied", "approximated", "ignored"]
SETTABLE: Final = (
    *("n_ctx", "n_slots", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "cache_type_k", "cache_type_v"),
    *("flash_attention", "mmap", "mlock", "gpu_layers", "split_mode", "tensor_split", "main_gpu", "kv_offload"),
    *("rope_scaling", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor"),
    *("yarn_beta_fast", "yarn_beta_slow", "adapters"),
)
"""Names of the parameters that decide how llama.cpp loads a model."""


@define(eq=False, repr=False)  # unused methods would only slow the start
class Choice:
    """Collects each parameter's value, origin and fate as it is decided."""

    spec: LoadSpec
    profile: Profile
    given: Collection[str]
    values: dict[str, Any] = field(factory=dict)
    origins: dict[str, str] = field(factory=dict)
    fates: dict[str, tuple[Fate, str]] = field(factory=dict)
    """Of parameters that are not simply applied: what is done instead, and why."""
    warnings: list[str] = field(factory=list)

    def take(self, name: str, fallback: Any, origin: str = "default") -> Any:
        """The caller's value, else the profile's, else the fallback."""
        if name in self.given:
            return self.put(name, getattr(self.spec, name), self.spec.origins.get(name, "flag"))
        if name in self.profile.values:
            return self.put(name, self.profile.values[name], f"profile {self.profile.name}")
        return self.put(name, fallback, origin)

    def put(self, name: str, value: Any, origin: str) -> Any:
        """Settle a value."""
        self.values[name], self.origins[name] = value, origin
        return value

    def asked(self, name: str) -> bool:
        """Whether the caller or the profile has a say about it."""
        return name in self.given or name in self.profile.values

    def approximate(self, name: str, value: Any, why: str) -> Any:
        """Settle for the nearest value that works; where it comes from stays what was asked."""
        self.fates[name] = ("approximated", why)
        self.values[name] = value
        return value

    def ignore(self, name: str, value: Any, why: str) -> Any:
        """Leave out what was asked for, and say so; what nobody asked for is left out silently."""
        if self.asked(name) and self.values[name] != value:
            self.fates[name] = ("ignored", why)
            self.warnings.append(f"`{name}` is ignored: {why}")
        self.values[name] = value
        return value


def given_by(spec: LoadSpec) -> set[str]:
    """Names of the parameters that the spec sets."""
    return {name for name in SETTABLE if getattr(spec, name) not in (None, ())}
