"""What a GGUF header says, as facts: architecture, sizes, tokens, tensors, split set."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from attrs import frozen

from .ggml_types import FILE_TYPE_GUESSED, FILE_TYPES, TYPES

Kind = Literal["model", "projector", "adapter", "vocabulary"]

RawTensor = tuple[bytes, tuple[int, ...], int, int, int]
"""Name, shape, type number, offset from the data's start, bytes: kept raw because most are never looked at."""


@frozen
class LargeArray:
    """An array too long to be worth Python objects: its element type, length and place in the file."""

    element_type: str
    count: int
    offset: int


@frozen(kw_only=True)
class Tensor:
    """One tensor of the file; `shape` as ggml has it, fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        """How many numbers it holds."""
        total = 1
        for length in self.shape:
            total *= length
        return total


@frozen(kw_only=True)
class SplitInfo:
    """Where a file stands in a split set; `number` counts from 0 as the header does."""

    number: int
    count: int
    tensors: int | None = None


@frozen(kw_only=True, slots=False)
class GGUFHeader:
    """A checked header. Every tensor lies inside the file, in order, with known type and alignment."""

    version: int
    metadata: dict[str, Any]
    raw_tensors: tuple[RawTensor, ...]
    alignment: int
    data_offset: int
    file_size: int

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensor table, in file order."""
        return tuple(
            Tensor(name=_text(name), shape=shape, type=TYPES[kind][0], offset=offset, n_bytes=n_bytes)
            for name, shape, kind, offset, n_bytes in self.raw_tensors
        )

    @property
    def tensor_count(self) -> int:
        """How many tensors this file holds (of a split set: this part alone)."""
        return len(self.raw_tensors)

    @property
    def architecture(self) -> str | None:
        """`general.architecture`, the prefix of the model's own keys."""
        return self._string("general.architecture")

    @property
    def name(self) -> str | None:
        """`general.name`, which people wrote and nobody checked."""
        return self._string("general.name")

    @property
    def kind(self) -> Kind:
        """What the file is for, by its metadata alone; a first part without tensors is still a model."""
        general, architecture = self._string("general.type"), self.architecture
        if general == "mmproj" or architecture == "clip":
            return "projector"
        if general == "adapter" or architecture == "controlvector" or "adapter.type" in self.metadata:
            return "adapter"
        if not self.raw_tensors and (self.split is None or self.split.count <= 1):
            return "vocabulary"
        return "model"

    @property
    def split(self) -> SplitInfo | None:
        """The split set the file says it belongs to; None for an ordinary file."""
        count = self.integer("split.count")
        if count is None:
            return None
        return SplitInfo(number=self.integer("split.no") or 0, count=count, tensors=self.integer("split.tensors.count"))

    @property
    def chat_template(self) -> str | None:
        """The default Jinja chat template."""
        return self._string("tokenizer.chat_template")

    @property
    def chat_templates(self) -> dict[str, str]:
        """Every template by its name; the default one is `default`."""
        prefix = "tokenizer.chat_template."
        found = {"default": self.chat_template} if self.chat_template is not None else {}
        for key, value in self.metadata.items():
            if key.startswith(prefix) and isinstance(value, str):
                found[key.removeprefix(prefix)] = value
        return found

    @property
    def quantization(self) -> str | None:
        """The file type's usual name (`Q4_K_M`); without one, the type that most bytes have."""
        file_type = self.integer("general.file_type")
        if file_type is not None and (named := FILE_TYPES.get(file_type & ~FILE_TYPE_GUESSED)):
            return named
        weights: dict[int, int] = {}
        for _name, _shape, kind, _offset, n_bytes in self.raw_tensors:
            weights[kind] = weights.get(kind, 0) + n_bytes
        return TYPES[max(weights, key=lambda kind: weights[kind])][0].upper() if weights else None

    @property
    def parameter_count(self) -> int:
        """Numbers in this file's tensors; of a split set, sum the parts."""
        total = 0
        for _name, shape, _kind, _offset, _n_bytes in self.raw_tensors:
            product = 1
            for length in shape:
                product *= length
            total += product
        return total

    @property
    def tensor_bytes(self) -> int:
        """Bytes of this file's tensors."""
        return sum(raw[4] for raw in self.raw_tensors)

    @property
    def context_length(self) -> int | None:
        """Tokens the model was made for."""
        return self.parameter("context_length")

    @property
    def n_layers(self) -> int:
        """Blocks of the network; 0 where the header does not say."""
        return self.parameter("block_count") or 0

    @property
    def n_embd(self) -> int:
        """Width of the network."""
        return self.parameter("embedding_length") or 0

    @property
    def vocabulary_size(self) -> int | None:
        """How many tokens the tokenizer has."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, LargeArray):
            return tokens.count
        return len(tokens) if isinstance(tokens, tuple) else self.parameter("vocab_size")

    @property
    def bos_id(self) -> int | None:
        """Token that starts a text."""
        return self.integer("tokenizer.ggml.bos_token_id")

    @property
    def eos_id(self) -> int | None:
        """Token that ends a text."""
        return self.integer("tokenizer.ggml.eos_token_id")

    @property
    def add_bos(self) -> bool | None:
        """Whether the tokenizer puts `bos` first; None leaves it to the tokenizer's kind."""
        value = self.metadata.get("tokenizer.ggml.add_bos_token")
        return value if isinstance(value, bool) else None

    def parameter(self, name: str) -> int | None:
        """An integer of the model's own architecture, e.g. `parameter("block_count")`."""
        return self.integer(f"{self.architecture}.{name}")

    def per_layer(self, name: str, default: int) -> tuple[int, ...]:
        """A parameter that may be one number or one a layer, always as one a layer."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            padded = tuple(int(item) for item in value) + (default,) * self.n_layers
            return padded[: self.n_layers]
        number = value if isinstance(value, int) and not isinstance(value, bool) else default
        return (number,) * self.n_layers

    def integer(self, key: str) -> int | None:
        """A whole number of the metadata; None where it is missing or something else."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _string(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
