"""What turns a batch of tokens into logits: llama.cpp, or the echo that ships as its fake.

A backend belongs to one thread. It holds a pool of KV cells that its sequences share; which sequence holds which
cells is the scheduler's business, and every backend refuses a batch whose positions do not continue their sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field, frozen

from ..types import BackendName, LoadSpec, Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LoadProgress = Callable[[str, float], None]
"""Called with a stage (`weights`, `context`, `warmup`) and a fraction 0..1."""

LogLine = Callable[[str, str], None]
"""Called with a level (`debug`, `info`, `warning`, `error`) and one line of the native library's log."""


@frozen(kw_only=True)
class BackendInfo:
    """Facts of a loaded model that the engine and the worker decide by."""

    name: BackendName
    model_id: str
    n_vocab: int
    n_ctx: int
    """Tokens one request may use, prompt and answer together."""
    n_ctx_pool: int
    """KV cells that all sequences share."""
    n_slots: int
    """Requests that may run at once."""
    n_sequences: int
    """Sequence ids there are; those beyond `n_slots` hold cached prefixes."""
    n_batch: int
    """Most rows of one decode."""
    n_outputs: int
    """Most rows of one decode that may ask for logits."""
    shares_prefixes: bool = True
    """Whether `copy` hands a part of one sequence to another."""
    rewinds: bool = True
    """Whether `remove` may cut a sequence's tail."""
    idle_cells: int | None = None
    """Cells that prefixes nobody uses may keep in the pool; None leaves it to the scheduler."""
    parked_cells: int = 0
    """Cells' worth of such prefixes that `save` may hold outside the pool."""
    end_tokens: tuple[int, ...] = ()
    """Tokens that end a generation."""
    speculation: bool = True
    """Whether answers may be guessed ahead."""
    step_seconds: dict[int, float] = field(factory=dict)
    """Seconds of a decode by its number of rows, where they were measured while loading."""
    add_bos: bool = False
    bos_token: int | None = None
    eos_token: int | None = None
    bos_text: str = ""
    eos_text: str = ""
    control_texts: tuple[str, ...] = ()
    """Texts that the tokenizer reads as control tokens where it is told to."""
    metadata: dict[str, str] = field(factory=dict)
    """The GGUF's own metadata as text, arrays left out."""
    applied: dict[str, Any] = field(factory=dict)
    origins: dict[str, str] = field(factory=dict)
    warnings: tuple[str, ...] = ()
    memory: dict[str, Any] = field(factory=dict)


@define
class Batch:
    """The rows of one decode; row i computes `tokens[i]` at `positions[i]` of `sequences[i]`."""

    tokens: list[int] = field(factory=list)
    positions: list[int] = field(factory=list)
    sequences: list[int] = field(factory=list)
    outputs: list[bool] = field(factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int], start: int, sequence: int, n_outputs: int) -> int:
        """Add a run that starts at position `start`; its last `n_outputs` rows get logits. Returns its first row."""
        first, count = len(self.tokens), len(tokens)
        self.tokens.extend(tokens)
        self.positions.extend(range(start, start + count))
        self.sequences.extend([sequence] * count)
        self.outputs.extend([False] * (count - n_outputs) + [True] * n_outputs)
        return first


class Decoded(Enum):
    """How a decode ended; after anything but DONE nothing of the batch counts."""

    DONE = "done"
    NO_ROOM = "no room"
    """The pool lacks free KV cells for the batch."""
    INTERRUPTED = "interrupted"


class TokenSampler(Protocol):
    """One answer's sampler chain with its memory of what was chosen."""

    def sample(self, row: int) -> int:
        """Choose a token from the logits of a row of the last decode, and remember it."""
        ...

    def accept(self, token: int) -> None:
        """Remember a token that was chosen elsewhere, such as a forced one."""
        ...

    def close(self) -> None:
        """Free native memory; the sampler must not be used again."""
        ...


class Backend(Protocol):
    """A loaded model. Only `tokenize`, `piece` and what says so may be called from any thread."""

    info: BackendInfo

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of a text, without a BOS; `special` False reads control tokens' names as plain text."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to an answer; control tokens add none, but for those that `show` named."""
        ...

    def show(self, texts: Collection[str]) -> None:
        """Give these control tokens as text: calls and thoughts are written with them. Before the first request."""
        ...

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None = None) -> Decoded:
        """Compute a batch; logits of its output rows stay valid until the next call.

        Where it does not end with DONE, what it may have written past each sequence's end must be removed.
        Raises DecodeFailed.
        """
        ...

    def logits(self, row: int) -> NDArray[np.float32]:
        """A writable view of one output row's logits."""
        ...

    def check_sampling(self, sampling: Sampling) -> None:
        """Raises the BadInput that `open_sampler` would raise. From any thread."""
        ...

    def open_sampler(self, sampling: Sampling, seed: int, prompt: Sequence[int]) -> TokenSampler:
        """A sampler chain for one answer. Raises BadInput on a sampler, penalty or token that cannot be."""
        ...

    def copy(self, source: int, target: int, end: int) -> None:
        """Hand the first `end` cells of `source` to `target`, which must be empty."""
        ...

    def remove(self, sequence: int, start: int) -> None:
        """Drop a sequence's cells from position `start` on; 0 forgets the sequence."""
        ...

    def save(self, sequence: int) -> Any:
        """A copy of a sequence's cells outside the pool."""
        ...

    def restore(self, saved: Any, sequence: int) -> bool:
        """Put saved cells into an empty sequence. False, with the sequence left empty, where there is no room."""
        ...

    def open_lane(self) -> Backend:
        """A second, private context on the same weights with one slot, for requests that must repeat bit by bit."""
        ...

    def grammar_tokenizer(self) -> Any:
        """The `llguidance.LLTokenizer` of this vocabulary, made once. From any thread."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


def open_backend(spec: LoadSpec, on_progress: LoadProgress | None = None, on_log: LogLine | None = None) -> Backend:
    """Load a model. Raises ModelLoadFailed, OutOfMemory, Unsupported."""
    progress = on_progress or (lambda stage, fraction: None)
    log = on_log or (lambda level, line: None)
    if spec.backend == "echo":
        from .echo import EchoBackend

        return EchoBackend(spec, progress)
    from .llama import open_llama

    return open_llama(spec, progress, log)
