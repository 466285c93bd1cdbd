"""The worker process by itself, spoken to in frames."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from localllm.runtime.frames import FrameReader, encode
from localllm.runtime.messages import (
    AskStatus,
    Cancel,
    Failure,
    Generate,
    Hello,
    Load,
    Loaded,
    Message,
    Outputs,
    Shutdown,
    Status,
)
from localllm.runtime.types import Done, GenerateRequest, LoadSpec, Piece

WORKER = [sys.executable, "-m", "localllm.runtime.worker"]


class Talk:
    """Frames to and from one worker."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.stdin = process.stdin
        self.reader = FrameReader(process.stdout.fileno())

    def send(self, *messages: Message) -> None:
        self.stdin.write(b"".join(map(encode, messages)))
        self.stdin.flush()

    def until(self, kind: type[Any]) -> tuple[Any, list[Message]]:
        """The first message of that kind, and what was read up to it."""
        seen: list[Message] = []
        while True:
            messages = self.reader.read()
            assert messages, f"the worker ended before a {kind.__name__}"
            seen += messages
            for message in messages:
                if isinstance(message, kind):
                    return message, seen

    def outputs_of(self, request_id: str) -> list[Any]:
        """Everything about one request up to its end."""
        found: list[Any] = []
        while not found or not isinstance(found[-1], Done | Failure):
            _, seen = self.until(Outputs)
            found += [
                item
                for message in seen
                if isinstance(message, Outputs)
                for name, item in message.items
                if name == request_id
            ]
        return found


@pytest.fixture
def worker() -> Iterator[Talk]:
    pipe = subprocess.PIPE
    with subprocess.Popen(WORKER, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        yield Talk(process)
        process.kill()


def echo(**options: Any) -> Load:
    return Load(LoadSpec(model_id="m", path="", backend="echo", options=options))


def test_it_says_hello_loads_answers_and_ends_when_told(worker: Talk) -> None:
    hello, _ = worker.until(Hello)
    worker.send(echo())
    loaded, _ = worker.until(Loaded)
    worker.send(Generate(GenerateRequest(request_id="r", prompt="one two")))
    outputs = worker.outputs_of("r")
    worker.send(Shutdown())

    assert hello.pid == worker.process.pid
    assert loaded.applied["n_slots"] == 8
    assert "".join(output.text for output in outputs if isinstance(output, Piece)) == "one two"
    assert worker.process.wait(100) == 0


@pytest.mark.parametrize("phase", ["idle", "load", "decode"])
def test_it_ends_at_once_when_its_stdin_closes(worker: Talk, phase: str) -> None:
    worker.until(Hello)
    if phase == "load":
        worker.send(echo(load_delay_s=600))
    if phase == "decode":
        worker.send(echo(step_delay_s=600))
        worker.until(Loaded)
        worker.send(Generate(GenerateRequest(request_id="r", prompt="x")))
        time.sleep(0.2)
    worker.stdin.close()

    assert worker.process.wait(100) == 0


def test_garbage_on_stdin_ends_it_with_a_reason(worker: Talk) -> None:
    worker.until(Hello)
    worker.stdin.write(b"GET / HTTP/1.1\r\n\r\n")
    worker.stdin.close()

    assert worker.process.wait(100) == 1
    assert worker.process.stderr is not None
    assert b"frames broke" in worker.process.stderr.read()


def test_a_request_before_the_load_is_one_error(worker: Talk) -> None:
    worker.send(Generate(GenerateRequest(request_id="early", prompt="x")))

    (failure,) = worker.outputs_of("early")
    assert failure.error["code"] == "model_load_failed"


def test_a_cancel_right_behind_its_request_is_never_lost(worker: Talk) -> None:
    worker.send(echo(endless=True, step_delay_s=0.002))
    worker.until(Loaded)
    for number in range(30):
        request = GenerateRequest(request_id=f"gone-{number}", prompt="x y z")
        worker.send(Generate(request), Cancel(request.request_id))
    worker.send(Generate(GenerateRequest(request_id="stays", prompt="a b", max_tokens=20)))
    assert isinstance(worker.outputs_of("stays")[-1], Done)
    worker.send(AskStatus(1))
    status, _ = worker.until(Status)

    assert status.slots == ()


def test_native_prints_on_stdout_never_reach_the_frames() -> None:
    program = (
        "import os\n"
        "from localllm.runtime.worker import take_stdout\n"
        "frames = take_stdout()\n"
        "os.write(1, b'native')\n"
        "print('python', flush=True)\n"
        "os.write(frames, b'frame')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=100)

    assert done.stdout == b"frame"
    assert done.stderr == b"nativepython\n"


def test_only_what_a_worker_needs_is_imported_before_the_model() -> None:
    program = "import sys, localllm.runtime.worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    loaded = set(done.stdout.split())

    assert not loaded & {"asyncio", "cattrs", "cyclopts", "httpx", "jinja2", "jsonschema", "llama_cpp", "numpy"}
