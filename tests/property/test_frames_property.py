from __future__ import annotations

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from localllm.runtime.frames import BrokenStream, FrameDecoder, encode
from localllm.runtime.messages import Failure, Generate, Message, Outputs
from localllm.runtime.types import (
    Constraint,
    Done,
    Finished,
    GenerateRequest,
    Piece,
    Sampling,
    Started,
    TokenLogprob,
    Usage,
)

FEW = settings(max_examples=60, deadline=None)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
COUNT = st.integers(0, 2**40)
FLOAT = st.floats(allow_nan=False)
LOGPROB = st.builds(
    TokenLogprob, token=st.binary(), logprob=FLOAT, top=st.lists(st.tuples(st.binary(), FLOAT), max_size=2).map(tuple)
)
OUTPUT = st.one_of(
    st.builds(Started, prompt_tokens=COUNT, model_id=st.text(), notes=st.lists(st.text(), max_size=2).map(tuple)),
    st.builds(Piece, index=COUNT, text=st.text(), tokens=COUNT, logprobs=st.lists(LOGPROB, max_size=2).map(tuple)),
    st.builds(Finished, index=COUNT, reason=st.sampled_from(["stop", "length"]), stop_text=st.none() | st.text()),
    st.builds(Done, usage=st.builds(Usage, prompt_tokens=COUNT)),
    st.builds(Failure, error=st.dictionaries(st.text(), JSON, max_size=3)),
)
OUTPUTS = st.builds(Outputs, items=st.lists(st.tuples(st.text(), OUTPUT), max_size=4).map(tuple))
REQUEST = st.builds(
    GenerateRequest,
    request_id=st.text(),
    messages=st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=3).map(tuple),
    prompt=st.none() | st.text() | st.lists(COUNT).map(tuple),
    sampling=st.builds(Sampling, logit_bias=st.lists(st.tuples(COUNT, FLOAT), max_size=3).map(tuple)),
    constraint=st.none() | st.builds(Constraint, kind=st.just("json_schema"), source=JSON),
    template_options=st.dictionaries(st.text(), JSON, max_size=3),
)
MESSAGE: st.SearchStrategy[Message] = OUTPUTS | st.builds(Generate, request=REQUEST)


@FEW
@given(MESSAGE)
def test_decoding_is_the_inverse_of_encoding(message: Message) -> None:
    (back,) = FrameDecoder().feed(encode(message))

    assert back == message
    assert attrs.asdict(back) == attrs.asdict(message)


@FEW
@given(st.lists(MESSAGE, min_size=1, max_size=4), st.data())
def test_any_split_of_the_stream_gives_the_same_messages(messages: list[Message], data: st.DataObject) -> None:
    stream = b"".join(map(encode, messages))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    decoder = FrameDecoder()

    got = [
        message
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for message in decoder.feed(stream[start:end])
    ]
    decoder.close()

    assert got == messages


@FEW
@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_broken_stream(noise: bytes) -> None:
    try:
        messages = FrameDecoder().feed(len(noise).to_bytes(4, "big") + noise)
    except BrokenStream:
        messages = []

    assert len(messages) <= 1
