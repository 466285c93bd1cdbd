"""The numbers of a model that decide how much memory it takes, gathered from its headers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from .ggml_types import row_bytes, type_named
from .header import GGUFHeader

_LAYER: Final = re.compile(rb"blk\.(\d+)\.")
_SWA_PERIOD: Final = {"gemma2": 2, "gpt-oss": 2, "cohere2": 4, "exaone4": 4, "llama4": 4, "gemma3n": 5, "gemma3": 6}
"""Every n-th layer sees everything, the others a window: known to llama.cpp by architecture, not by the file."""


@frozen(kw_only=True, repr=False)
class AttentionLayer:
    """What one layer keeps for each token of the context, in numbers: keys and values."""

    key_width: int
    value_width: int
    windowed: bool = False

    def cell_bytes(self, type_k: str, type_v: str) -> int:
        """Bytes of one KV cell in this layer."""
        return row_bytes(type_k, self.key_width) + row_bytes(type_v, self.value_width)


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class ModelShape:
    """A model as its memory sees it; `layer_bytes` are the weights of each repeating layer."""

    architecture: str
    context_length: int | None
    n_embd: int
    n_ff: int
    """Width of the widest intermediate row: of all experts used at once, where there are experts."""
    n_heads: int
    n_vocab: int
    input_bytes: int
    layer_bytes: tuple[int, ...]
    output_bytes: int
    tied_embeddings: bool
    """The output layer uses the input's weights; on another device than the CPU it needs a copy of them."""
    attention: tuple[AttentionLayer, ...]
    """One a layer; a layer without attention has widths of 0."""
    head_widths: tuple[int, int]
    """Key and value numbers of one attention head; a quantised cache needs whole blocks of them."""
    state_bytes: tuple[int, ...]
    """Bytes a sequence's recurrent state takes in each layer, 0 for layers without one."""
    window: int = 0

    @property
    def n_layers(self) -> int:
        """Repeating layers; llama.cpp counts one more, the output layer, when it offloads."""
        return len(self.layer_bytes)

    def takes_cache_type(self, name: str) -> bool:
        """Whether llama.cpp accepts this type for the KV cache of this model."""
        block, _size = type_named(name)
        return all(width % block == 0 for width in self.head_widths)

    @property
    def takes_flash_attention(self) -> bool:
        """Whether llama.cpp ever computes its attention the flash way; else plainly, whatever was asked for."""
        return self.architecture != "grok"

    @property
    def weight_bytes(self) -> int:
        """All weights, once."""
        return self.input_bytes + sum(self.layer_bytes) + self.output_bytes


def model_shape(headers: Sequence[GGUFHeader]) -> ModelShape:
    """The shape of a model, given the headers of its parts in order; the first one has the metadata."""
    first = headers[0]
    n_layers = first.n_layers
    by_layer, outside, output, tied = [0] * n_layers, 0, 0, True
    for header in headers:
        for name, _shape, _kind, _offset, n_bytes in header.raw_tensors:
            match = _LAYER.match(name)
            if match is not None and int(match[1]) < n_layers:
                by_layer[int(match[1])] += n_bytes
            elif name.startswith(b"output"):
                output += n_bytes
                tied = tied and name != b"output.weight"
            else:
                outside += n_bytes
    return ModelShape(
        architecture=first.architecture or "",
        context_length=first.context_length,
        n_embd=first.n_embd,
        n_ff=_feed_forward_width(first),
        n_heads=max(first.per_layer("attention.head_count", 0), default=0),
        n_vocab=first.vocabulary_size or 0,
        input_bytes=outside,
        layer_bytes=tuple(by_layer),
        output_bytes=output,
        tied_embeddings=tied,
        attention=_attention(first),
        head_widths=_head_widths(first),
        state_bytes=_states(first),
        window=first.parameter("attention.sliding_window") or 0,
    )


def adapter_layer_bytes(headers: Sequence[GGUFHeader], n_layers: int) -> tuple[int, ...]:
    """Bytes of all the adapters together by layer, and last what belongs to no layer."""
    found = [0] * (n_layers + 1)
    for header in headers:
        for name, _shape, _kind, _offset, n_bytes in header.raw_tensors:
            match = _LAYER.match(name)
            found[min(int(match[1]), n_layers) if match is not None else n_layers] += n_bytes
    return tuple(found)


def _feed_forward_width(header: GGUFHeader) -> int:
    dense = max(header.per_layer("feed_forward_length", 0), default=0)
    used, expert = header.parameter("expert_used_count") or 0, header.parameter("expert_feed_forward_length") or dense
    return max(dense, used * expert)


def _attention(header: GGUFHeader) -> tuple[AttentionLayer, ...]:
    heads = header.per_layer("attention.head_count", 0)
    key, value = _head_widths(header)
    kv_heads = header.per_layer("attention.head_count_kv", 0)
    if header.parameter("attention.head_count_kv") is None and not any(kv_heads):
        kv_heads = heads
    windowed = _windowed(header)
    return tuple(
        AttentionLayer(key_width=count * key, value_width=count * value, windowed=windowed[layer])
        for layer, count in enumerate(kv_heads)
    )


def _head_widths(header: GGUFHeader) -> tuple[int, int]:
    heads = header.per_layer("attention.head_count", 0)
    per_head = header.n_embd // max(1, max(heads, default=1))
    key = header.parameter("attention.key_length") or per_head
    value = header.parameter("attention.value_length") or per_head
    if header.parameter("attention.key_length_mla") is not None:
        value = 0  # the compressed keys hold the values too
    return key, value


def _windowed(header: GGUFHeader) -> tuple[bool, ...]:
    """Which layers see only the sliding window."""
    if not header.parameter("attention.sliding_window"):
        return (False,) * header.n_layers
    pattern = header.metadata.get(f"{header.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        return tuple(bool(flag) for flag in (*pattern, *[False] * header.n_layers)[: header.n_layers])
    period = pattern if isinstance(pattern, int) else _SWA_PERIOD.get(header.architecture or "", 1)
    return tuple(layer % period < period - 1 for layer in range(header.n_layers)) if period > 0 else ()


def _states(header: GGUFHeader) -> tuple[int, ...]:
    """A sequence's recurrent state in each layer: f32 numbers of the convolution and of the state itself."""
    inner, state = header.parameter("ssm.inner_size") or 0, header.parameter("ssm.state_size") or 0
    convolution = max(0, (header.parameter("ssm.conv_kernel") or 0) - 1)
    groups = header.parameter("ssm.group_count") or 0
    numbers = convolution * (inner + 2 * groups * state) + inner * state
    if head := header.parameter("wkv.head_size") or 0:
        numbers = header.n_embd * (head + (header.parameter("token_shift_count") or 2))
    if cache := header.parameter("shortconv.l_cache") or 0:
        numbers = header.n_embd * (cache - 1)
    if not numbers:
        return (0,) * header.n_layers
    kv_heads = header.per_layer("attention.head_count_kv", 0)
    interval = header.parameter("full_attention_interval") or 0
    hybrid_by_heads = any(kv_heads) and not all(kv_heads)
    return tuple(
        0 if (hybrid_by_heads and kv_heads[layer]) or (interval and (layer + 1) % interval == 0) else numbers * 4
        for layer in range(header.n_layers)
    )
