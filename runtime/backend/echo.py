"""A backend without a model: it answers with the user's own words, or from a script, and always the same.

It keeps real sequences of tokens, so a wrong position, a crossed sequence or a cell too many shows as a wrong answer or
a DecodeFailed, as it would with llama.cpp. `LoadSpec.options` scripts it:

    tokens           "words" (default) or "bytes": what one token of a text is
    script           answer with these pieces instead, one token each: text, or {"hex": "f09f"} for raw bytes
    endless          repeat the answer and never end it
    prefer           text that is chosen wherever a constraint allows it
    load_delay_s     seconds a load takes, told as progress
    step_delay_s     seconds each decode takes
    prefill_delay_s  seconds the prompt of each request takes; interruptible
    fail_load        message of a ModelLoadFailed
    fail_after       decodes after which DecodeFailed is raised
    exit_after       decodes after which the process dies, as a native abort would
    count_file       file that gets the number of sampled tokens, for watching from outside
    pool             KV cells (default n_ctx x n_slots)
    shares_prefixes  False plays a recurrent model
    idle_cells       cells that unused prefixes may keep in the pool (default three quarters of it)
    parked_cells     cells' worth of them that may lie outside (default 0)
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from ...errors import BadInput, DecodeFailed, ModelLoadFailed
from ..types import LoadSpec, Sampling
from . import Backend, BackendInfo, Batch, Decoded, LoadProgress, TokenSampler

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
IM_START, IM_END, END = 256, 257, 258
FIRST_WORD = 259
N_VOCAB = 16384
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPLIT_SPECIALS = re.compile("(" + "|".join(re.escape(name) for name in SPECIALS) + ")")
_WORD = re.compile(rb"\s*[^\s<]+|\s+|<")


@define
class Vocabulary:
    """Bytes, three control tokens, and words that get an id when first seen."""

    words: list[bytes] = field(factory=list)
    ids: dict[bytes, int] = field(factory=dict)

    def word(self, piece: bytes) -> list[int]:
        """The token of a piece, or its bytes once the vocabulary is full."""
        if piece not in self.ids:
            if FIRST_WORD + len(self.words) >= N_VOCAB:
                return list(piece)
            self.ids[piece] = FIRST_WORD + len(self.words)
            self.words.append(piece)
        return [self.ids[piece]]

    def piece(self, token: int) -> bytes:
        """The bytes of a token; empty for control tokens and for ids not given out."""
        if token < 256:
            return bytes((token,))
        at = token - FIRST_WORD
        return self.words[at] if 0 <= at < len(self.words) else b""


@define
class EchoBackend:
    """See the module's docstring."""

    spec: LoadSpec
    progress: LoadProgress
    info: BackendInfo = field(init=False)
    sampled: int = 0
    """Tokens sampled since the load."""
    decodes: int = 0
    vocabulary: Vocabulary = field(factory=Vocabulary)
    _stored: dict[int, list[tuple[int, object]]] = field(factory=dict)
    """Sequence to its cells: token and the cell's identity, which shared cells have in common."""
    _holders: dict[int, int] = field(factory=dict)
    _rows: list[tuple[int, int]] = field(factory=list)
    _preferred: frozenset[int] = frozenset()
    _logits: dict[int, NDArray[np.float32]] = field(factory=dict)
    _prompt_end: dict[int, int] = field(factory=dict)
    """Where a sequence first asked for logits."""

    def __attrs_post_init__(self) -> None:
        options = self.spec.options
        delay = float(options.get("load_delay_s", 0.0))
        for i in range(1, 11):
            time.sleep(delay / 10)
            self.progress("weights", i / 10)
        if "fail_load" in options:
            raise ModelLoadFailed(str(options["fail_load"]))
        n_ctx, n_slots = self.spec.n_ctx or 4096, self.spec.n_slots or 8
        pool = int(options.get("pool", n_ctx * n_slots))
        n_batch = self.spec.n_batch or 512
        applied = {"n_ctx": n_ctx, "n_ctx_pool": pool, "n_slots": n_slots, "n_batch": n_batch}
        self.info = BackendInfo(
            name="echo",
            model_id=self.spec.model_id,
            n_vocab=N_VOCAB,
            n_ctx=n_ctx,
            n_ctx_pool=pool,
            n_slots=n_slots,
            n_sequences=n_slots + 32,
            n_batch=n_batch,
            n_outputs=min(64, n_batch),
            shares_prefixes=bool(options.get("shares_prefixes", True)),
            rewinds=bool(options.get("shares_prefixes", True)),
            idle_cells=options.get("idle_cells"),
            parked_cells=int(options.get("parked_cells", 0)),
            speculation=bool(options.get("speculation", True)),
            end_tokens=(IM_END, END),
            eos_token=END,
            eos_text=SPECIALS[2],
            control_texts=SPECIALS,
            metadata={"general.name": "echo", "general.architecture": "echo", "tokenizer.chat_template": CHAT_TEMPLATE},
            applied=applied,
            origins={
                name: "flag" if name != "n_ctx_pool" and getattr(self.spec, name) is not None else "default"
                for name in applied
            },
        )
        self._preferred = frozenset(self.tokenize(str(options.get("prefer", "")), special=False))
        for piece in options.get("script", ()):
            self.vocabulary.word(_script_piece(piece))

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        tokens: list[int] = []
        for part in _SPLIT_SPECIALS.split(text) if special else [text]:
            if special and part in SPECIALS:
                tokens.append(IM_START + SPECIALS.index(part))
            elif self.spec.options.get("tokens") == "bytes":
                tokens.extend(part.encode())
            else:
                for word in _WORD.findall(part.encode()):
                    tokens.extend(self.vocabulary.word(word))
        return tokens

    def piece(self, token: int) -> bytes:
        return self.vocabulary.piece(token)

    def show(self, texts: Collection[str]) -> None:
        pass  # its words are text; the three control tokens only frame a prompt

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None = None) -> Decoded:
        if len(batch) > self.info.n_batch or sum(batch.outputs) > self.info.n_outputs:
            raise DecodeFailed("the batch is larger than the backend allows")
        self.decodes += 1
        self._misbehave()
        ended = self._wait(self._delay_of(batch), interrupted)
        room = self.info.n_ctx_pool - len(self._holders)
        if not ended:
            self._store(batch, min(room, (len(batch) + 1) // 2))  # what llama.cpp has done by then stays, too
            return Decoded.INTERRUPTED
        if len(batch) > room:
            return Decoded.NO_ROOM
        self._store(batch, len(batch))
        return Decoded.DONE

    def _store(self, batch: Batch, count: int) -> None:
        self._rows, self._logits = [], {}
        rows = zip(batch.tokens, batch.positions, batch.sequences, strict=True)
        for token, position, sequence in islice(rows, count):
            cells = self._stored.setdefault(sequence, [])
            if position != len(cells):
                raise DecodeFailed(f"sequence {sequence} holds {len(cells)} cells and was continued at {position}")
            cell = object()
            cells.append((token, cell))
            self._holders[id(cell)] = 1
            self._rows.append((sequence, position))

    def logits(self, row: int) -> NDArray[np.float32]:
        import numpy as np

        if row not in self._logits:
            out = -np.arange(N_VOCAB, dtype=np.float32) * np.float32(1e-3)
            out[32] = 5.0  # what is left to say where the end is forbidden
            out[self.next_token(row, self._end_of_prompt(*self._rows[row]))] = 10.0
            out[list(self._preferred)] = 20.0
            self._logits[row] = out
        return self._logits[row]

    def choose(self, row: int, n_prompt: int) -> int:
        """The token a sampler takes from a row: the likeliest where somebody looked at or changed the logits."""
        if row in self._logits or self._preferred:
            return int(self.logits(row).argmax())
        return self.next_token(row, n_prompt)

    def _end_of_prompt(self, sequence: int, position: int) -> int:
        """Where the answer begins: after the chat's last opened turn, else where logits were first asked for."""
        tokens = [token for token, _ in self._stored[sequence][: position + 1]]
        opened = max((i for i, token in enumerate(tokens) if token == IM_START), default=None)
        if opened is None:
            return self._prompt_end[sequence]
        return next(i for i in range(opened, len(tokens)) if b"\n" in self.piece(tokens[i])) + 1

    def next_token(self, row: int, n_prompt: int) -> int:
        """The token that follows a row of the last decode in an answer to the first `n_prompt` tokens."""
        sequence, position = self._rows[row]
        tokens = [token for token, _ in self._stored[sequence][: position + 1]]
        reply = self._reply(tokens[:n_prompt])
        # what was said only because it is preferred is no part of the reply
        at = sum(token not in self._preferred for token in tokens[n_prompt:])
        if self.spec.options.get("endless"):
            return reply[at % len(reply)] if reply else 32
        return reply[at] if at < len(reply) else END

    def check_sampling(self, sampling: Sampling) -> None:
        if unknown := [name for name in sampling.samplers if not name.isidentifier()]:
            raise BadInput(f"there is no sampler `{unknown[0]}`", param="samplers")

    def open_sampler(self, sampling: Sampling, seed: int, prompt: Sequence[int]) -> TokenSampler:
        self.check_sampling(sampling)
        return EchoSampler(self, len(prompt))

    def copy(self, source: int, target: int, end: int) -> None:
        if not self.info.shares_prefixes:
            raise DecodeFailed("this model cannot share prefixes")
        if self._stored.get(target):
            raise DecodeFailed(f"sequence {target} is not empty")
        cells = self._stored.get(source, [])[:end]
        if len(cells) < end:
            raise DecodeFailed(f"sequence {source} holds {len(cells)} cells, {end} were to be shared")
        for _, cell in cells:
            self._holders[id(cell)] += 1
        self._stored[target] = list(cells)

    def remove(self, sequence: int, start: int) -> None:
        if start and not self.info.rewinds and start < len(self._stored.get(sequence, [])):
            raise DecodeFailed("this model cannot rewind")
        cells = self._stored.get(sequence, [])
        for _, cell in cells[start:]:
            self._holders[id(cell)] -= 1
            if not self._holders[id(cell)]:
                del self._holders[id(cell)]
        del cells[start:]
        if not cells:
            self._prompt_end.pop(sequence, None)

    def save(self, sequence: int) -> Any:
        return list(self._stored.get(sequence, []))

    def restore(self, saved: Any, sequence: int) -> bool:
        if self.cells_used + len(saved) > self.info.n_ctx_pool:
            return False
        self._stored[sequence] = [(token, object()) for token, _ in saved]
        for _, cell in self._stored[sequence]:
            self._holders[id(cell)] = 1
        return True

    @property
    def cells_used(self) -> int:
        """KV cells that some sequence holds."""
        return len(self._holders)

    def open_lane(self) -> Backend:
        options = {**self.spec.options, "pool": self.info.n_ctx, "load_delay_s": 0.0}
        spec = evolve(self.spec, n_ctx=self.info.n_ctx, n_slots=1, options=options)
        lane = EchoBackend(spec, self.progress)
        lane.vocabulary = self.vocabulary
        return lane

    def grammar_tokenizer(self) -> Any:
        import llguidance

        return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_GrammarVocabulary(self)), n_vocab=N_VOCAB)

    def close(self) -> None:
        self._stored.clear()
        self._holders.clear()

    def count_sampled(self) -> None:
        """Note one more sampled token, where `count_file` asks for it also on disk."""
        self.sampled += 1
        if (path := self.spec.options.get("count_file")) is not None:
            Path(path).write_text(str(self.sampled))

    def _reply(self, prompt: list[int]) -> list[int]:
        if (script := self.spec.options.get("script")) is not None:
            return [token for piece in script for token in self.vocabulary.word(_script_piece(piece))]
        text = self._last_user_text(prompt)
        return self.tokenize(text.decode("utf-8", "replace"), special=False)

    def _last_user_text(self, prompt: list[int]) -> bytes:
        turns = [i for i, token in enumerate(prompt) if token == IM_START]
        for start, end in reversed(list(pairwise([*turns, len(prompt)]))):
            stop = next((i for i in range(start, end) if prompt[i] == IM_END), end)
            role, _, text = b"".join(map(self.piece, prompt[start + 1 : stop])).partition(b"\n")
            if role == b"user":
                return text
        return b"".join(map(self.piece, prompt))

    def _delay_of(self, batch: Batch) -> float:
        options = self.spec.options
        delay = float(options.get("step_delay_s", 0.0))
        fresh = 0
        for sequence, position, output in zip(batch.sequences, batch.positions, batch.outputs, strict=True):
            if output and sequence not in self._prompt_end:
                self._prompt_end[sequence] = position + 1
                fresh += 1
        return delay + fresh * float(options.get("prefill_delay_s", 0.0))

    def _wait(self, seconds: float, interrupted: Callable[[], bool] | None) -> bool:
        """Whether the time passed without an interruption; it is looked for once where there is no time to wait."""
        end = time.monotonic() + seconds
        while interrupted is None or not interrupted():
            left = end - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, 0.01))
        return False

    def _misbehave(self) -> None:
        options = self.spec.options
        if self.decodes > options.get("exit_after", self.decodes):
            os._exit(134)
        if self.decodes > options.get("fail_after", self.decodes):
            raise DecodeFailed("the echo backend was told to fail")


@define
class EchoSampler:
    """Chooses the echo's next token; knows where its prompt ends."""

    backend: EchoBackend
    n_prompt: int

    def sample(self, row: int) -> int:
        self.backend.count_sampled()
        return self.backend.choose(row, self.n_prompt)

    def accept(self, token: int) -> None:
        pass

    def close(self) -> None:
        pass


class _GrammarVocabulary:
    """What llguidance asks of a tokenizer. Words that are not known yet cannot be chosen under a constraint."""

    def __init__(self, backend: EchoBackend) -> None:
        self.eos_token_id = END
        self.bos_token_id: int | None = None
        self.special_token_ids = [IM_START, IM_END, END]
        self.tokens = [
            SPECIALS[token - IM_START].encode() if token in self.special_token_ids else backend.piece(token)
            for token in range(N_VOCAB)
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _script_piece(piece: str | dict[str, str]) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes.fromhex(piece["hex"])
