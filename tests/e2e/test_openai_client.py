"""OpenAI's own client against a real server with the real model."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from attrs import define
from openai import OpenAI

sys.path.append(str(Path(__file__).parent.parent / "fixtures"))
from scripted import scripted

MODEL = "SmolLM2-135M-Instruct.Q4_1"
QUESTION = [{"role": "user", "content": "Write a Python function that adds two numbers. Explain it briefly."}]
WORDS = ("apple", "bridge", "candle", "dragon", "engine", "forest", "guitar", "hammer")


def client_of(server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=250)


@pytest.fixture
def client(model_server):
    with client_of(model_server) as client:
        yield client


def test_it_chats(client):
    answer = client.chat.completions.create(model="local-model", messages=QUESTION, max_tokens=12, temperature=0)

    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_it_streams_what_it_would_answer_in_one_piece(client):
    options = {"model": MODEL, "messages": QUESTION, "max_tokens": 24, "temperature": 0, "seed": 1}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))

    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert text[:20] == whole.choices[0].message.content[:20]
    assert reasons == ["length"]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(choice.delta.role is None for chunk in chunks[1:] for choice in chunk.choices)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24


def test_it_lists_and_retrieves_models(client):
    ids = [model.id for model in client.models.list()]

    assert MODEL in ids
    assert client.models.retrieve(MODEL).id == MODEL


def test_an_unknown_model_is_its_not_found_error(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-nope", messages=QUESTION)

    assert caught.value.code == "model_not_found"
    assert "gpt-nope" in caught.value.message
    assert MODEL in caught.value.body["hint"]


def test_a_wrong_parameter_is_its_bad_request_error(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=-1)

    assert caught.value.param == "temperature"


def test_eight_clients_at_once_each_get_their_own_answer(model_server):
    """Each is asked to repeat a word of its own: the answer holds that word and no other client's."""

    def ask(word: str) -> str:
        with client_of(model_server) as client:
            text = f"Write one short sentence with the word {word}. The sentence is about a {word}."
            stream = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=40, temperature=0, stream=True
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    with ThreadPoolExecutor(len(WORDS)) as pool:
        answers = dict(zip(WORDS, pool.map(ask, WORDS), strict=True))

    for word, answer in answers.items():
        held = [other for other in WORDS if other in answer.lower()]
        assert held == [word], f"the client that asked for `{word}` got: {answer}"


def test_on_echo_eight_clients_at_once_get_what_they_would_get_one_after_the_other(echo_server):
    def ask(number: int) -> str:
        with client_of(echo_server) as client:
            words = " ".join(f"{WORDS[number]}-{turn}" for turn in range(40))
            stream = client.chat.completions.create(
                model="local-model", messages=[{"role": "user", "content": words}], stream=True
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    alone = [ask(number) for number in range(len(WORDS))]
    with ThreadPoolExecutor(len(WORDS)) as pool:
        together = list(pool.map(ask, range(len(WORDS))))

    assert together == alone
    assert len(set(together)) == len(WORDS)


@define
class Watched(httpx.SyncByteStream):
    """A stream of frames that wakes a stopped process when the second comment passes."""

    frames: httpx.SyncByteStream
    pid: int
    comments: int = 0

    def __iter__(self) -> Iterator[bytes]:
        for part in self.frames:
            before, self.comments = self.comments, self.comments + part.count(b": keep-alive\n\n")
            if before < 2 <= self.comments:
                os.kill(self.pid, signal.SIGCONT)
            yield part

    def close(self) -> None:
        self.frames.close()


def test_comments_in_a_silence_are_nothing_to_it(tmp_path):
    watched: list[Watched] = []
    with scripted(tmp_path, {}, settings={"keep_alive_s": "1"}) as server:
        with server.client() as http:
            http.post("/admin/plans", json={"plan": {"command": "models.load", "model": "echo"}})
        worker = server.status()["pid"]

        def watch(answer: httpx.Response) -> None:
            watched.append(Watched(answer.stream, worker))
            answer.stream = watched[-1]

        passing = httpx.Client(trust_env=False, timeout=100, event_hooks={"response": [watch]})
        with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, http_client=passing) as client:
            os.kill(worker, signal.SIGSTOP)
            chunks = list(client.chat.completions.create(model="echo", messages=QUESTION, stream=True))

    assert watched[0].comments >= 2
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == QUESTION[0]["content"]
    assert chunks[-1].choices[0].finish_reason == "stop"
