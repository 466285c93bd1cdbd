"""What reaches stdout and stderr, in both forms, on and off a terminal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
from collections.abc import AsyncIterator

import pytest
from localllm.errors import InvalidPlan, LocalLLMError, ModelNotFound, WorkerDied
from localllm.executors import render
from localllm.executors.events import Delta, Event, Progress, Record, Result
from localllm.executors.render import Renderer

ENVELOPE = Record(data={"id": "chatcmpl-1", "created": 1, "model": "m"})
COMPLETION = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}}]}


def stream_of(encoding: str = "utf-8") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")


def text_in(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(stream.encoding)


def shown(
    command: str, events: list[Event | LocalLLMError], *, encoding: str = "utf-8", **options: object
) -> tuple[int, str, str]:
    """Render the events; the exit code, stdout and stderr."""
    out, err = stream_of(encoding), stream_of(encoding)

    async def source() -> AsyncIterator[Event]:
        for event in events:
            if isinstance(event, LocalLLMError):
                raise event
            yield event

    renderer = Renderer(command, stdout=out, stderr=err, **options)  # type: ignore[arg-type]
    code = asyncio.run(renderer.run(source()))
    return code, text_in(out), text_in(err)


def answer(*texts: str) -> list[Event | LocalLLMError]:
    deltas: list[Event | LocalLLMError] = [Delta(delta={"content": text}) for text in texts]
    return [ENVELOPE, Delta(delta={"role": "assistant"}), *deltas, Result(data=COMPLETION)]


def test_json_is_one_document_and_progress_is_not_in_it() -> None:
    code, out, _ = shown("models.load", [Progress(stage="loading"), Result(data={"a": 1})], output="json")

    assert code == 0
    assert json.loads(out) == {"a": 1}


def test_json_of_an_answer_is_the_whole_completion() -> None:
    _, out, _ = shown("chat", answer("H", "i"), output="json")

    assert json.loads(out) == COMPLETION


def test_json_lines_are_all_events_in_order() -> None:
    _, out, _ = shown("chat", answer("H", "i"), output="json", stream=True)

    kinds = [json.loads(line)["event"] for line in out.splitlines()]
    assert kinds == ["record", "delta", "delta", "delta", "result"]


def test_a_followed_log_is_lines_in_json() -> None:
    events: list[Event | LocalLLMError] = [Record(data={"event": "a"}), Record(data={"event": "b"})]
    code, out, _ = shown("logs", [*events, WorkerDied("gone")], output="json")

    assert [json.loads(line)["event"] for line in out.splitlines()] == ["record", "record", "error"]
    assert code == 6


@pytest.mark.parametrize("interactive", [False, True])
def test_a_note_stays_on_the_screen(monkeypatch: pytest.MonkeyPatch, interactive: bool) -> None:
    monkeypatch.setattr(render, "is_interactive", lambda _stream: interactive)
    notes: list[Event | LocalLLMError] = [Progress(stage="note", message=text) for text in ("here", "there")]

    code, _, err = shown("chat", [Progress(stage="loading"), *notes, Result(data=COMPLETION)])

    assert code == 0
    assert "note: here\nnote: there\n" in err


@pytest.mark.parametrize("output", ["text", "json"])
def test_no_is_exit_1_in_both_forms(output: str) -> None:
    code, _, err = shown("status", [Result(ok=False, data={"running": False, "server": "s"})], output=output)

    assert code == 1
    assert err == ""


def test_an_error_in_text_goes_to_stderr_with_its_hint() -> None:
    code, out, err = shown("chat", [ModelNotFound("no model `x`", hint="look here")])

    assert code == 3
    assert out == ""
    assert err == "error: no model `x`\nhint: look here\n"


def test_an_error_in_json_is_the_document() -> None:
    code, out, err = shown("chat", [ModelNotFound("no model `x`", available=["a"])], output="json")

    assert code == 3
    assert json.loads(out)["error"]["data"] == {"available": ["a"]}
    assert err == ""


def test_every_problem_of_a_plan_is_shown() -> None:
    problems = [{"path": "$.a", "message": "is wrong"}, {"path": "$.b", "message": "is missing"}]
    _, _, err = shown("chat", [InvalidPlan("the plan is invalid", problems=problems)])

    assert "$.a: is wrong" in err
    assert "$.b: is missing" in err


def test_an_answer_grows_and_ends_with_one_line_break() -> None:
    assert shown("chat", answer("Hel", "lo"))[1] == "Hello\n"
    assert shown("chat", answer("Hello\n"))[1] == "Hello\n"


def test_without_streaming_the_answer_comes_from_the_result() -> None:
    assert shown("chat", answer("ignored"), stream=False)[1] == "Hi\n"


def test_a_fault_within_an_answer_starts_its_own_line() -> None:
    code, out, err = shown("chat", [ENVELOPE, Delta(delta={"content": "Hel"}), WorkerDied("the worker died")])

    assert code == 6
    assert out == "Hel\n"
    assert err.startswith("error: the worker died")


def test_several_answers_are_told_apart() -> None:
    events: list[Event | LocalLLMError] = [
        ENVELOPE,
        Delta(index=0, delta={"content": "a"}),
        Delta(index=1, delta={"content": "b"}),
        Result(data=COMPLETION),
    ]

    assert shown("chat", events)[1] == "a\n[1] b\n"


def test_a_models_escape_codes_never_reach_the_terminal() -> None:
    _, out, _ = shown("chat", answer("a\x1b]0;x\x07b\x9bc\r\nd\te"))

    assert out == "a\\x1b]0;x\\x07b\\x9bc\nd\te\n"


def test_a_name_cannot_forge_a_line() -> None:
    _, _, err = shown("chat", [ModelNotFound("no model `a\x1b[2Jb`")])

    assert "\x1b" not in err


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_no_encoding_is_too_narrow(encoding: str) -> None:
    row = {"model_id": "模型👍", "state": "ready", "applied": {}, "memory": {}}
    data = {"running": True, "server": "s", "models": [row]}
    code, out, _ = shown("status", [Result(data=data)], encoding=encoding)

    assert code == 0
    assert ("模型👍" if encoding == "utf-8" else "\\u6a21\\u578b\\U0001f44d") in out


def test_json_is_the_same_bytes_in_every_encoding() -> None:
    outs = {shown("x", [Result(data={"n": "模型"})], output="json", encoding=name)[1] for name in ("ascii", "utf-8")}

    assert len(outs) == 1


def test_no_escape_code_off_a_terminal() -> None:
    events: list[Event | LocalLLMError] = [
        Progress(stage="loading", current=0.1, total=1),
        Progress(stage="loading", current=0.9, total=1),
        Result(data={"unloaded": ["a"]}),
    ]
    _, out, err = shown("models.unload", events)

    assert "\x1b" not in out + err
    assert err == "loading\n"


def test_quiet_says_nothing_on_the_way() -> None:
    _, _, err = shown("models.unload", [Progress(stage="loading"), Result(data={"unloaded": []})], verbosity=-1)

    assert err == ""


@pytest.mark.parametrize(("env", "escapes"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_only_a_willing_terminal_gets_a_bar(
    env: dict[str, str], escapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        renderer = Renderer("models.load", stdout=stream_of(), stderr=terminal)
        renderer.show(Progress(stage="loading", message="weights", current=0.5, total=1.0))
        renderer.result(Result(data={"model_id": "m"}))
        renderer.show(Progress(stage="more"))
        renderer.error(LocalLLMError("over"))
        terminal.flush()
        written = os.read(ours, 100_000)
    os.close(ours)

    assert (b"\x1b" in written) is escapes
    assert b"loading" in written


@pytest.mark.parametrize(
    ("effects", "detailed", "code"),
    [(["read"], True, 0), (["read", "create"], True, 10), (["update"], False, 0), (["gpu", "exec"], True, 0)],
)
def test_a_dry_run_tells_by_its_exit_code_whether_it_would_change_something(
    effects: list[str], detailed: bool, code: int
) -> None:
    report = {"summary": "localllm x", "effects": effects, "where": "local", "plan_id": "sha256:0"}

    assert shown("x", [Result(data=report)], dry_run=True, detailed_exitcode=detailed)[0] == code


def test_an_executor_that_forgets_its_result_is_a_fault() -> None:
    code, _, err = shown("chat", [Progress(stage="a")])

    assert code == 70
    assert "without a result" in err


def test_an_applied_plan_is_shown_in_its_own_form() -> None:
    events: list[Event | LocalLLMError] = [
        Record(data={"applying": "config.set", "plan_id": "sha256:0"}),
        Result(data={"key": "port", "before": None, "after": 1, "changed": True}),
    ]

    assert shown("apply", events)[1] == "port: unset -> 1\n"


def test_the_executor_is_closed_when_the_reader_leaves() -> None:
    closed = []

    class Gone(io.TextIOWrapper):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    async def source() -> AsyncIterator[Event]:
        try:
            yield Delta(delta={"content": "a"})
            yield Delta(delta={"content": "b"})
        finally:
            closed.append(True)

    renderer = Renderer("chat", stdout=Gone(io.BytesIO(), encoding="utf-8"), stderr=stream_of())
    with pytest.raises(BrokenPipeError):
        asyncio.run(renderer.run(source()))

    assert closed == [True]


@pytest.mark.parametrize("stream", [None, False])
def test_tool_calls_are_shown_a_line_each(stream: bool | None) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": "\x1b"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = Result(data={"choices": [{"index": 0, "message": message}]})
    events: list[Event | LocalLLMError] = [ENVELOPE, Delta(delta={"tool_calls": [call]}), result]

    assert shown("chat", events, stream=stream)[1] == 'call look_up {"a": "\\x1b"}\n'


def test_what_a_model_thinks_is_not_its_answer() -> None:
    events: list[Event | LocalLLMError] = [ENVELOPE, Delta(delta={"reasoning_content": "hmm"}), *answer("Hi")[1:]]

    assert shown("chat", events)[1] == "Hi\n"
    assert shown("chat", events, verbosity=1)[2] == "hmm"
