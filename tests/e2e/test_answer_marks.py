from __future__ import annotations

from pathlib import Path

import pytest
from localllm.runtime.backend import open_backend
from localllm.runtime.types import LoadSpec

pytestmark = pytest.mark.model


def test_control_tokens_are_no_text_unless_answers_are_taken_apart_by_them(model_path: Path) -> None:
    backend = open_backend(LoadSpec(model_id="m", path=str(model_path), n_ctx=256))
    try:
        (token,) = backend.tokenize("<|im_start|>")
        (other,) = backend.tokenize("<file_sep>")
        before = backend.piece(token)
        backend.show(["<|im_start|>"])
        after, still, lane = backend.piece(token), backend.piece(other), backend.open_lane()
        in_the_lane = lane.piece(token)
        lane.close()
    finally:
        backend.close()

    assert before == still == b""
    assert after == in_the_lane == b"<|im_start|>"
