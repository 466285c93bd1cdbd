"""The chat endpoint on a scripted backend: envelope, limits, several answers, silence."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fixtures.waiting import wait_until

sys.path.append(str(Path(__file__).parent.parent / "fixtures"))
from scripted import Scripted, scripted

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "one two three"}], "temperature": 0}
PATIENT = {"keep_alive_s": "600"}
"""The headers of a stream wait for so long, far longer than a test may take, for its request to be taken or refused."""
NO_SAMPLER = {"samplers": ["no sampler"]}
BYTES = ["f09f", "918d", "206f6b20", "e29c85", "85", "656e64", "e29c"]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """An echoing server whose context holds 64 tokens, with its model loaded."""
    folder = tmp_path_factory.mktemp("echo")
    with scripted(folder, {}, settings=PATIENT, n_ctx=64) as server, server.client() as client:
        load(client)
        yield client


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The same, but its answers never end by themselves."""
    with scripted(tmp_path_factory.mktemp("endless"), {"endless": True}, n_ctx=64) as server, server.client() as client:
        yield client


def load(http: httpx.Client) -> None:
    """Have the echo loaded, so that no request waits for it."""
    http.post("/admin/plans", json={"plan": {"command": "models.load", "model": "echo"}})


def frames(answer: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream, once its form is checked."""
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, empty = answer.text.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_a_whole_answer_has_openais_shape(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=ASK).json()

    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "echo"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "one two three"}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


def test_a_stream_says_the_same_in_one_envelope(http: httpx.Client) -> None:
    chunks = frames(http.post(CHAT, json=ASK | {"stream": True}))

    assert text_of(chunks) == "one two three"
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    roles = [choice["delta"].get("role") for chunk in chunks for choice in chunk["choices"]]
    assert roles == ["assistant", *[None] * (len(roles) - 1)]
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_is_streamed_when_asked_for(http: httpx.Client) -> None:
    ask = ASK | {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = frames(http.post(CHAT, json=ask))

    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0


def test_usage_tells_which_tokens_of_the_prompt_were_held_already(tmp_path: Path) -> None:
    ask = {"messages": [{"role": "user", "content": "one two three four five"}], "temperature": 0}
    streamed = ask | {"stream": True, "stream_options": {"include_usage": True}}
    with scripted(tmp_path, {}) as server, server.client() as http:
        usages = [http.post(CHAT, json=ask).json()["usage"] for _ in range(2)]
        usages.append(frames(http.post(CHAT, json=streamed))[-1]["usage"])
        apart = [http.post(CHAT, json=ask | {"cache_prompt": False}).json()["usage"]]
        apart.append(frames(http.post(CHAT, json=streamed | {"cache_prompt": False}))[-1]["usage"])

    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[0] == 0
    assert 0 < cached[1] < usages[1]["prompt_tokens"]
    assert cached[2] == cached[1]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in apart] == [0, 0]


def test_several_answers_are_told_apart(http: httpx.Client) -> None:
    ask = ASK | {"n": 3, "seed": 5, "temperature": 1}
    whole = http.post(CHAT, json=ask).json()
    chunks = frames(http.post(CHAT, json=ask | {"stream": True}))

    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert [text_of(chunks, index) for index in range(3)] == [c["message"]["content"] for c in whole["choices"]]
    ended = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.parametrize(
    ("limit", "tokens"),
    [({"max_tokens": 7}, 7), ({"max_tokens": 1}, 1), ({"max_completion_tokens": 7}, 7)],
)
def test_a_token_limit_is_kept_exactly(endless: httpx.Client, limit: dict[str, int], tokens: int) -> None:
    answer = endless.post(CHAT, json=ASK | limit).json()

    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("limit", [{}, {"max_tokens": None}, {"max_tokens": -1}])
def test_without_a_limit_the_context_ends_the_answer(endless: httpx.Client, limit: dict[str, Any]) -> None:
    answer = endless.post(CHAT, json=ASK | limit).json()

    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == pytest.approx(64, abs=1)


def test_a_prompt_beyond_the_context_is_a_400_also_for_a_stream(http: httpx.Client) -> None:
    ask = {"messages": [{"role": "user", "content": "word " * 500}], "stream": True}
    answer = http.post(CHAT, json=ask)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_dry_run_gives_the_report_of_the_plan(http: httpx.Client) -> None:
    report = http.post(f"{CHAT}?dry_run=true", json=ASK | {"stream": True}).json()

    assert report["plan"]["command"] == "chat"
    assert report["plan_id"].startswith("sha256:")
    assert http.post(f"{CHAT}?dry_run=perhaps", json=ASK).status_code == 400


def test_the_same_request_has_the_same_plan_id_on_the_command_line(http: httpx.Client, cli: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    report = http.post(f"{CHAT}?dry_run=true", json=body).json()
    done = cli("--dry-run", "--output", "json", "chat", "--model", "m", "--max-tokens", "5", "hi")

    assert json.loads(done.out)["plan_id"] == report["plan_id"]


def test_requests_in_a_pipeline_are_answered_in_order(http: httpx.Client) -> None:
    import socket

    def raw(word: str) -> bytes:
        body = json.dumps({"messages": [{"role": "user", "content": word}]}).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        return head.encode() + b"\r\n\r\n" + body

    with socket.create_connection(("127.0.0.1", http.base_url.port or 0), timeout=100) as connection:
        connection.sendall(raw("first") + raw("second"))
        got = b""
        while b"second" not in got:
            part = connection.recv(65536)
            assert part
            got += part

    assert got.index(b"first") < got.index(b"second")
    assert got.count(b"HTTP/1.1 200") == 2


def test_split_characters_and_stray_bytes_survive_the_wire(tmp_path: Path) -> None:
    with scripted(tmp_path, {"script": [{"hex": piece} for piece in BYTES]}) as server, server.client() as http:
        whole = http.post(CHAT, json=ASK).json()["choices"][0]
        chunks = frames(http.post(CHAT, json=ASK | {"stream": True}))

    text = whole["message"]["content"]
    assert text.startswith("👍 ok ✅\ufffdend")
    assert text.removeprefix("👍 ok ✅\ufffdend") in ("", "\ufffd")
    assert text_of(chunks) == text
    assert whole["finish_reason"] == "stop"


def test_headers_come_before_the_prefill_and_the_silence_is_filled_with_comments(tmp_path: Path) -> None:
    with scripted(tmp_path, {"prefill_delay_s": 600}, settings={"keep_alive_s": "1"}) as server:
        with server.client() as http:
            load(http)
            with http.stream("POST", CHAT, json=ASK | {"stream": True}) as answer:
                lines = filter(None, answer.iter_lines())
                got = [next(lines) for _ in range(3)]

        assert answer.headers["content-type"].startswith("text/event-stream")
        assert '"role":"assistant"' in got[0]
        assert got[1:] == [": keep-alive"] * 2
        assert server.sampled() == 0


def test_behind_a_long_prefill_a_stream_begins_and_a_refusal_has_its_status(tmp_path: Path) -> None:
    """The engine is in one decode all the time."""
    options = {"prefill_delay_s": 600}
    long = {"messages": [{"role": "user", "content": "word " * 500}]}
    with (
        scripted(tmp_path, options, settings=PATIENT, n_ctx=64, n_slots=1) as server,
        server.client() as http,
        server.client() as other,
    ):
        load(http)
        with other.stream("POST", CHAT, json=ASK | {"stream": True}) as running:
            first = running.iter_lines()  # closes the stream when it is collected
            next(first)
            wait_until(lambda: server.status()["requests_running"] == 1, "the request")
            refused = [
                http.post(CHAT, json={**ASK, "stream": True, **ask})
                for ask in (long, {"guided_regex": "("}, NO_SAMPLER)
            ]
            with http.stream("POST", CHAT, json=ASK | {"stream": True}) as queued:
                line = next(filter(None, queued.iter_lines()))

        assert [answer.status_code for answer in refused] == [400] * 3
        assert [answer.json()["error"]["param"] for answer in refused] == ["messages", "guided_regex", "samplers"]
        assert '"role":"assistant"' in line
        assert server.sampled() == 0


def test_a_check_that_takes_too_long_is_bridged_by_comments(tmp_path: Path) -> None:
    with scripted(tmp_path, {}, settings={"keep_alive_s": "1"}) as server, server.client() as http:
        load(http)
        worker = server.status()["pid"]
        os.kill(worker, signal.SIGSTOP)  # it takes as long as this test wants
        with http.stream("POST", CHAT, json=ASK | {"stream": True}) as answer:
            lines = answer.iter_lines()
            before = [next(lines) for _ in range(4)]
            os.kill(worker, signal.SIGCONT)
            after = list(lines)

    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert [line[:1] for line in before] == [":", "", ":", ""]
    assert after[-2:] == ["data: [DONE]", ""]


def test_a_worker_that_dies_ends_the_stream_with_one_error_and_the_next_request_is_answered(tmp_path: Path) -> None:
    with scripted(tmp_path, {"step_delay_s": 0.02, "endless": True}) as server, server.client() as http:
        with http.stream("POST", CHAT, json=ASK | {"stream": True}) as answer:
            lines: list[str] = []
            for line in filter(None, answer.iter_lines()):
                lines.append(line)
                if len(lines) == 4:
                    kill_worker(server)
        after = http.post(CHAT, json=ASK | {"max_tokens": 3})

    assert "error" in json.loads(lines[-1].removeprefix("data: "))
    assert sum('"error"' in line for line in lines) == 1
    assert "data: [DONE]" not in lines
    assert after.status_code == 200, after.text


def kill_worker(server: Scripted) -> None:
    os.kill(server.status()["pid"], signal.SIGKILL)


def test_a_second_request_does_not_cut_a_stream_short(tmp_path: Path) -> None:
    long = ASK | {"max_tokens": 200, "stream": True, "stream_options": {"include_usage": True}}
    with (
        scripted(tmp_path, {"step_delay_s": 0.01, "endless": True}) as server,
        server.client() as http,
        server.client() as other,
        other.stream("POST", CHAT, json=long) as first,
    ):
        lines = filter(None, first.iter_lines())
        begun = [next(lines), next(lines)]
        second = http.post(CHAT, json=ASK | {"max_tokens": 5}).json()
        *events, done = [*begun, *lines]

    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert done == "data: [DONE]"
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]] == ["length"]
    assert text_of(chunks) == "one two three" * 66 + "one two"
    assert chunks[-1]["usage"]["completion_tokens"] == 200
    assert second["usage"]["completion_tokens"] == 5


def test_a_second_request_does_not_cut_the_first_short(tmp_path: Path) -> None:
    with scripted(tmp_path, {"step_delay_s": 0.01, "endless": True}) as server, server.client() as http:
        http.post(CHAT, json=ASK | {"max_tokens": 1})
        got: list[dict[str, Any]] = []

        def first() -> None:
            with server.client() as own:
                got.append(own.post(CHAT, json=ASK | {"max_tokens": 100}).json())

        thread = threading.Thread(target=first)
        thread.start()
        time.sleep(0.3)
        second = http.post(CHAT, json=ASK | {"max_tokens": 5}).json()
        thread.join(100)

    assert got[0]["usage"]["completion_tokens"] == 100
    assert second["usage"]["completion_tokens"] == 5
