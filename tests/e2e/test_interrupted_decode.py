"""llama.cpp is told to stop in the middle of a decode: it does, and no sequence is the worse for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import define
from fixtures.asking import Asking, Told
from fixtures.bare_loop import TIE, BareAnswer, agreeing
from fixtures.tiny_models import write_gemma, write_hybrid, write_llama, write_mamba
from localllm.errors import Interrupted
from localllm.runtime.backend import Backend, Batch, Decoded, open_backend
from localllm.runtime.engine.engine import Engine
from localllm.runtime.types import LoadSpec

WRITERS: dict[str, Callable[..., Path]] = {
    "llama": write_llama,
    "mamba": write_mamba,
    "hybrid": write_hybrid,
    "gemma": write_gemma,
}
LONG = [1, *(40 + i * 7 % 200 for i in range(511))]
SHORT = [1, *range(60, 100)]


@define
class Hangup:
    """A client that leaves when it was looked for so often."""

    after: int
    asked: int = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked > self.after


@pytest.fixture(params=list(WRITERS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    path = WRITERS[request.param](tmp_path / "m.gguf", context_length=1024)
    spec = LoadSpec(
        model_id="m", path=str(path), n_ctx=1024, n_slots=2, n_threads=1, n_batch=512, n_ubatch=128, gpu_layers=0
    )
    loaded = open_backend(spec)
    yield loaded
    loaded.close()


def computed(backend: Backend, sequence: int, tokens: list[int], start: int = 0) -> np.ndarray[Any, Any]:
    """The logits after these tokens of a sequence."""
    batch = Batch()
    batch.extend(tokens, start, sequence, 1)
    assert backend.decode(batch) is Decoded.DONE
    return backend.logits(len(tokens) - 1).copy()


def test_a_decode_of_512_rows_stops_in_its_middle_and_the_sequence_can_be_computed_anew(backend: Backend) -> None:
    expected = computed(backend, 0, LONG)
    backend.remove(0, 0)
    counting = Hangup(after=10**9)
    batch = Batch()
    batch.extend(LONG, 0, 0, 1)
    assert backend.decode(batch, counting) is Decoded.DONE
    backend.remove(0, 0)

    for after in (0, counting.asked // 2, counting.asked - 1):
        assert backend.decode(batch, Hangup(after)) is Decoded.INTERRUPTED
        backend.remove(0, 0)
    assert counting.asked > 100
    assert float(np.abs(computed(backend, 0, LONG) - expected).max()) < TIE


def test_a_short_decode_is_not_watched(backend: Backend) -> None:
    watching = Hangup(after=0)
    batch = Batch()
    batch.extend(SHORT, 0, 0, 1)

    assert backend.decode(batch, watching) is Decoded.DONE
    assert watching.asked == 0


class _Leaving:
    """The backend of an engine whose client hangs up in the middle of the next decode that is watched."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.leave: Callable[[], None] | None = None
        self.interruptions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def decode(self, batch: Batch, interrupted: Callable[[], bool]) -> Decoded:
        asked = 0

        def watched() -> bool:
            nonlocal asked
            asked += 1
            if self.leave is not None and asked > 100:
                self.leave()
            return interrupted()

        outcome = self.backend.decode(batch, watched)
        self.interruptions += outcome is Decoded.INTERRUPTED
        return outcome


def test_an_answer_beside_an_interrupted_prompt_says_what_it_says_alone(backend: Backend) -> None:
    alone = Asking(backend, Engine(backend)).ask(SHORT, max_tokens=30, logprobs=2)
    for sequence in range(backend.info.n_sequences):
        backend.remove(sequence, 0)
    leaving = _Leaving(backend)
    asking = Asking(leaving, Engine(leaving))  # type: ignore[arg-type]
    beside = asking.submit(SHORT, max_tokens=30, logprobs=2)
    for _ in range(8):
        asking.engine.step()
    gone = asking.submit(LONG, request_id="gone", max_tokens=4)
    leaving.leave = lambda: asking.engine.cancel("gone")
    asking.run()

    assert leaving.interruptions == 1
    assert isinstance(gone.error, Interrupted)
    assert agreeing([text for text, _gap in led(beside)], led(alone)) > 15
    assert asking.engine.status()["slots"] == ()


def led(told: Told) -> BareAnswer:
    """The tokens of an answer, and by how much each led."""
    tokens = [each for piece in told.pieces for each in piece.logprobs]
    return [(each.token, each.top[0][1] - each.top[1][1]) for each in tokens]
