"""How a model's positions (RoPE) are scaled: what was asked, and what of it llama.cpp would use."""

from __future__ import annotations

from typing import Final

from .choice import Choice
from .header import GGUFHeader
from .shape import ModelShape

YARN: Final = ("yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")
ONLY_EXTRAPOLATED: Final = ("yarn_orig_ctx", "yarn_beta_fast", "yarn_beta_slow")
"""What llama.cpp looks at only where some of the positions are extrapolated."""
NAMES: Final = ("rope_scaling", "rope_freq_base", "rope_freq_scale", *YARN)


def settle_positions(choice: Choice, header: GGUFHeader, shape: ModelShape) -> None:
    """Settle every RoPE parameter; None leaves it to the model."""
    if not any(choice.asked(name) for name in NAMES):
        for name in NAMES:
            choice.put(name, None, "GGUF")
        return
    for name in NAMES:
        choice.take(name, None, "GGUF")
    if not any(layer.key_width for layer in shape.attention):
        for name in NAMES:
            _ignore(choice, name, "the model has no rotary positions")
        return
    scaling = choice.values["rope_scaling"] or header.metadata.get(f"{header.architecture}.rope.scaling.type", "linear")
    if scaling == "none":
        _ignore(choice, "rope_freq_scale", "`rope_scaling` is `none`")
    if scaling != "yarn" and not choice.values["yarn_ext_factor"]:
        for name in ONLY_EXTRAPOLATED:
            _ignore(choice, name, f"`rope_scaling` is `{scaling}`, and only `yarn` extrapolates")


def _ignore(choice: Choice, name: str, why: str) -> None:
    if choice.values[name] is not None:
        choice.ignore(name, None, why)
