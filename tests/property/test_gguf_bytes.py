"""Whatever the bytes, the reader ends soon, and with a header or an `InvalidGGUF`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.gguf_bytes import ARRAY, F32, STRING, TensorSpec, Typed, gguf, with_vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st
from localllm.runtime.models.gguf import InvalidGGUF, read_header

WHOLE = [
    gguf(
        [
            ("general.architecture", "llama"),
            ("llama.block_count", 2),
            ("a.list", Typed(ARRAY, [0.5, 1.5], F32)),
            ("a.nest", Typed(ARRAY, [Typed(ARRAY, ["x", "yy"], STRING)], ARRAY)),
            ("tokenizer.ggml.tokens", ["a", "b", "c"]),
        ],
        [TensorSpec(name="one"), TensorSpec(name="two", shape=(32, 2), type=2, n_bytes=36)],
        version=version,
    )
    for version in (1, 2, 3)
] + [with_vocabulary(1100)]


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "m.gguf"


def outcome(path: Path, content: bytes, *, exact: bool = True) -> str | None:
    """None for a readable file, else the reason; anything but those two is a failure, and so is a slow answer."""
    path.write_bytes(content)
    start = time.thread_time()
    header, reason = None, None
    try:
        header = read_header(path, exact=exact)
    except InvalidGGUF as error:
        reason = error.reason
    assert time.thread_time() - start < 2
    if header is None:
        assert reason
        assert len(reason) < 500
        return reason
    for name in ("kind", "quantization", "parameter_count", "split", "context_length", "chat_templates", "tensors"):
        getattr(header, name)
    last = max((header.data_offset + t.offset + t.n_bytes for t in header.tensors), default=0)
    assert last <= len(content)
    return None


@given(st.binary(max_size=400))
@settings(deadline=None, max_examples=200)
def test_arbitrary_bytes_after_the_magic(scratch: Path, tail: bytes) -> None:
    outcome(scratch, b"GGUF\x03\0\0\0" + tail)


@given(st.sampled_from(WHOLE), st.data())
@settings(deadline=None, max_examples=300)
def test_bytes_changed_at_random(scratch: Path, whole: bytes, data: st.DataObject) -> None:
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(4, min(len(changed), 700) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    outcome(scratch, bytes(changed))
    outcome(scratch, bytes(changed), exact=False)


@given(st.sampled_from(WHOLE), st.data())
@settings(deadline=None, max_examples=200)
def test_a_number_of_eight_bytes_replaced_by_a_huge_one(scratch: Path, whole: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(4, min(len(whole), 700) - 8))
    huge = data.draw(st.sampled_from([2**63, 2**64 - 1, 2**32, 2**31 - 1, 10**7])).to_bytes(8, "little")
    outcome(scratch, whole[:at] + huge + whole[at + 8 :])


@given(st.sampled_from(WHOLE), st.data())
@settings(deadline=None, max_examples=150)
def test_every_cut_file_is_refused(scratch: Path, whole: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(whole) - 1))

    assert outcome(scratch, whole[:cut]) is not None
    assert outcome(scratch, whole[:cut], exact=False) is not None
