from __future__ import annotations

import os
import threading

import pytest
from localllm.errors import DecodeFailed
from localllm.runtime.frames import MAX_FRAME_BYTES, BrokenStream, FrameDecoder, FrameReader, encode, write_all
from localllm.runtime.messages import (
    AskStatus,
    Cancel,
    Failure,
    Generate,
    Hello,
    Load,
    Loaded,
    Loading,
    LoadRefused,
    Log,
    Outputs,
    Shutdown,
    Status,
)
from localllm.runtime.types import (
    Constraint,
    Done,
    Finished,
    GenerateRequest,
    LoadSpec,
    Piece,
    Sampling,
    SlotStatus,
    Started,
    Timings,
    TokenLogprob,
    Usage,
)

LOGPROB = TokenLogprob(token=b"\xf0", logprob=-1.0, top=((b"a", -2.0),))
MESSAGES = [
    Load(LoadSpec(model_id="m", path="/m.gguf", gpu_layers=3, names=("a", "b"), options={"script": ["x", [1, 2]]})),
    Load(LoadSpec(model_id="m", path="", gpu_layers="all", n_ctx=2**31 - 1)),
    Generate(GenerateRequest(request_id="r", messages=({"role": "user", "content": [{"type": "text"}]},))),
    Generate(
        GenerateRequest(
            request_id="r",
            prompt=(1, 2, 3),
            sampling=Sampling(logit_bias=((7, -1.5),), samplers=("top_k",), seed=0),
            constraint=Constraint(kind="json_schema", source={"maximum": 10**40, "enum": [None, True]}),
            tool_choice={"type": "function"},
        )
    ),
    Generate(GenerateRequest(request_id="r", prompt="half a pair: \ud83d")),
    Cancel("r"),
    AskStatus(3),
    Shutdown(),
    Hello(pid=1),
    Loading("weights", 0.5),
    Loaded({"n_ctx": 8}, {"n_ctx": "flag"}, ("warned",), {"total_bytes": 2**40}),
    LoadRefused({"code": "model_load_failed", "message": "no"}),
    Outputs(
        (
            ("r", Started(prompt_tokens=4, model_id="m", notes=("folded",))),
            ("r", Piece(index=0, text="héllo 👍", logprobs=(LOGPROB,))),
            ("s", Failure(DecodeFailed("no", hint="h", slots=[1]).as_dict())),
            ("r", Finished(index=0, reason="stop", stop_text="\n")),
            ("r", Done(usage=Usage(prompt_tokens=4), timings=Timings(queue_s=0.25))),
        )
    ),
    Status(3, (SlotStatus(request_id="r", state="decode", prompt_tokens=1, completion_tokens=2),), {"batch": [1]}),
    Log("error", "Traceback"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was_sent(message: object) -> None:
    assert FrameDecoder().feed(encode(message)) == [message]


def test_an_oversized_frame_is_an_error_as_soon_as_its_length_is_there() -> None:
    decoder = FrameDecoder()

    with pytest.raises(BrokenStream, match="more than"):
        decoder.feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(BrokenStream, match="broke before"):
        decoder.feed(encode(Shutdown()))


def test_a_stream_that_ends_inside_a_frame_is_an_error() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(encode(Log("info", "whole")) + encode(Log("info", "torn"))[:-1]) == [Log("info", "whole")]

    with pytest.raises(BrokenStream, match="inside a frame"):
        decoder.close()


NO_MESSAGES = {
    "empty": b"",
    "no msgpack": b"\xc1",
    "an int": b"\x01",
    "no tag": b"\x90",
    "unknown tag": b"\x91\x63",
    "too many fields": b"\x93\x02\x01\x02",
    "a map": b"\x81\x01\x01",
    "nil tag": b"\x91\xc0",
}


@pytest.mark.parametrize("body", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_bytes_that_are_no_message_are_an_error(body: bytes) -> None:
    with pytest.raises(BrokenStream):
        FrameDecoder().feed(len(body).to_bytes(4, "big") + body)


def test_native_prints_in_the_stream_are_an_error_and_not_a_wait() -> None:
    with pytest.raises(BrokenStream):
        FrameDecoder().feed(b"llama_model_load: loading model\n")


def test_what_no_frame_can_hold_is_refused_before_a_byte_is_written() -> None:
    nested: list[object] = []
    for _ in range(2000):
        nested = [nested]

    with pytest.raises(ValueError, match="cannot be sent"):
        encode(Generate(GenerateRequest(request_id="r", tool_choice=nested)))
    with pytest.raises(ValueError, match="cannot be sent"):
        encode(Generate(GenerateRequest(request_id="r", tool_choice=object())))
    with pytest.raises(ValueError, match="more than"):
        encode(Generate(GenerateRequest(request_id="r", prompt="x" * (MAX_FRAME_BYTES + 1))))


def test_a_blocking_reader_gets_a_frame_larger_than_the_pipe_and_then_the_end() -> None:
    read_fd, write_fd = os.pipe()
    large = Generate(GenerateRequest(request_id="r", prompt="x" * 3_000_000))

    def write() -> None:
        write_all(write_fd, encode(large) + encode(Shutdown()))
        os.close(write_fd)

    writer = threading.Thread(target=write)
    writer.start()
    reader = FrameReader(read_fd)
    got = [message for messages in iter(reader.read, []) for message in messages]
    writer.join()
    os.close(read_fd)

    assert got == [large, Shutdown()]


def test_a_reader_whose_writer_dies_inside_a_frame_raises() -> None:
    read_fd, write_fd = os.pipe()
    os.write(write_fd, encode(Log("info", "torn"))[:-2])
    os.close(write_fd)

    with pytest.raises(BrokenStream):
        FrameReader(read_fd).read()
    os.close(read_fd)
