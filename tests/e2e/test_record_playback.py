"""What a server answered is recorded, and another server without a model answers the same."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from localllm.planner.files.load import load_plan_files
from openai import OpenAI

HELLO: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "hello ${there} 🙂"}]}
TWICE: dict[str, Any] = {"model": "echo", "messages": [{"role": "user", "content": "again"}]}
KEY = "sk-abcdefghijklmnopqrstuv"


def client_of(server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=200)


def chunks_of(server, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client_of(server) as client:
        return [chunk.model_dump() for chunk in client.chat.completions.create(**body, stream=True)]


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.plan.yaml"))


@pytest.fixture(scope="module")
def session(tmp_path_factory, echo_server_at) -> Iterator[dict[str, Any]]:
    """One recorded session: what was asked and answered, and the recording."""
    folder = tmp_path_factory.mktemp("recording")
    server = echo_server_at(folder / "live", "--record", str(folder / "recorded"))
    session: dict[str, Any] = {"folder": folder / "recorded"}
    with client_of(server) as client:
        session["whole"] = client.chat.completions.create(**HELLO).model_dump()
        session["first"] = client.chat.completions.create(**TWICE).model_dump()
        session["second"] = client.chat.completions.create(**TWICE).model_dump()
        session["text"] = client.completions.create(model="echo", prompt="once upon").model_dump()
    session["chunks"] = chunks_of(server, {**HELLO, "temperature": 0})
    with httpx.Client(
        base_url=server.url, trust_env=False, timeout=200, headers={"authorization": f"Bearer {KEY}"}
    ) as http:
        body = {"model": "echo", "messages": [{"role": "user", "content": f"my key is {KEY} keep it"}]}
        http.post("/v1/chat/completions", json=body)
        session["loaded"] = http.post("/admin/plans", json={"plan": {"command": "models.unload", "all": True}}).text
        http.post("/admin/plans", json={"plan": {"command": "auth.status"}})
        http.post("/v1/chat/completions", json={"model": "nothing", "messages": HELLO["messages"]})
        http.post("/v1/chat/completions", json={"model": "echo", "messages": []})
    assert server.stop() == 0
    return session


@pytest.fixture(scope="module")
def played(tmp_path_factory, echo_server_at, session):
    """A server that plays the session back."""
    files = [item for path in files_of(session["folder"]) for item in ("--playback", str(path))]
    return echo_server_at(tmp_path_factory.mktemp("played"), *files, backend=None)


def test_the_recording_is_a_plan_file_whose_steps_hold_their_outcome(session):
    (path,) = files_of(session["folder"])
    steps = load_plan_files([str(path)])[0].steps
    commands = [step.plan["command"] for step in steps]

    assert commands == ["chat", "chat", "chat", "complete", "chat", "chat", "models.unload", "chat"]
    first = steps[0].recorded
    assert first["result"]["choices"][0]["message"]["content"] == "hello ${there} 🙂"
    assert first["lock"]["sampling"]["seed"] == first["result"]["seed"]
    assert first["lock"]["build"].endswith(" echo")
    assert steps[-1].recorded["error"]["code"] == "model_not_found"
    assert steps[-1].expect == {"ok": False, "exit_code": 3}


def test_no_secret_is_in_the_recording(session):
    text = "".join(path.read_text() for path in files_of(session["folder"]))

    assert KEY not in text
    assert KEY[5:] not in text
    assert "my key is *** keep it" in text
    assert "authorization" not in text.lower()
    assert "auth.status" not in text


def test_only_its_owner_can_read_the_recording(session):
    assert {path.stat().st_mode & 0o777 for path in files_of(session["folder"])} == {0o600}


def test_openais_client_gets_the_recorded_answers(session, played):
    with client_of(played) as client:
        assert client.chat.completions.create(**HELLO).model_dump() == session["whole"]
        assert client.completions.create(model="echo", prompt="once upon").model_dump() == session["text"]


def test_a_stream_is_played_back_chunk_for_chunk(session, played):
    assert chunks_of(played, {**HELLO, "temperature": 0}) == session["chunks"]
    assert len(session["chunks"]) > 3


def test_a_request_that_was_recorded_in_one_piece_can_be_streamed(session, played):
    chunks = chunks_of(played, HELLO)

    text = "".join(chunk["choices"][0]["delta"]["content"] or "" for chunk in chunks if chunk["choices"])
    assert text == session["whole"]["choices"][0]["message"]["content"]


def test_a_repeated_request_gets_its_answers_in_order_and_then_the_last(session, played):
    with client_of(played) as client:
        ids = [client.chat.completions.create(**TWICE).id for _ in range(3)]

    assert ids == [session["first"]["id"], session["second"]["id"], session["second"]["id"]]


def test_a_recorded_error_is_raised_again(played):
    with client_of(played) as client, pytest.raises(openai.NotFoundError, match="nothing"):
        client.chat.completions.create(model="nothing", messages=HELLO["messages"])


def test_an_unmatched_request_is_told_the_nearest_one_and_what_differs(played):
    body = {"model": "echo", "messages": [{"role": "user", "content": "hello ${here} 🙂"}]}
    with client_of(played) as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**body)

    error = caught.value.body
    assert error["code"] == "not_recorded"
    assert "`$.messages[0].content` is" in error["message"]
    assert "hello ${there} 🙂" in error["message"]
    assert ".plan.yaml:5" in error["message"]


def test_another_spelling_of_the_same_request_is_found(session, played):
    body = {**HELLO, "stream_options": None, "user": "somebody", "temperature": 0.8, "top_p": 0.95}
    with client_of(played) as client:
        assert client.chat.completions.create(**body).id == session["whole"]["id"]


def test_it_lists_the_models_that_were_asked_and_is_ready(played):
    with client_of(played) as client:
        ids = [model.id for model in client.models.list()]
        assert client.models.retrieve("echo").id == "echo"
    with httpx.Client(base_url=played.url, trust_env=False, timeout=200) as http:
        assert http.get("/ready").status_code == 200

    assert "echo" in ids


def test_an_administration_plan_is_played_back_and_one_that_is_not_recorded_runs_nowhere(session, played):
    with httpx.Client(base_url=played.url, trust_env=False, timeout=200) as http:
        unload = http.post("/admin/plans", json={"plan": {"command": "models.unload", "all": True}})
        load = http.post("/admin/plans", json={"plan": {"command": "models.load", "model": "echo"}})
        status = http.post("/admin/plans", json={"plan": {"command": "status"}})

    assert json.loads(unload.text.splitlines()[-1]) == json.loads(session["loaded"].splitlines()[-1])
    assert load.json()["error"]["code"] == "not_recorded"
    assert json.loads(status.text)["data"]["models"] == []


def test_a_playback_loads_no_llama(played):
    maps = Path(f"/proc/{played.pid}/maps")
    if not maps.exists():
        pytest.skip("needs /proc")

    assert "llama" not in maps.read_text().replace("localllm", "")


def test_a_playback_takes_no_model_beside_it(cli, session):
    (path,) = files_of(session["folder"])
    done = cli("serve", "--playback", str(path), "--model", "echo")

    assert (done.code, "no place beside it" in done.err) == (2, True)


def test_the_recorded_example_plays_back(echo_server_at, tmp_path):
    example = Path(__file__).parents[2] / "examples" / "recorded.plan.yaml"
    server = echo_server_at(tmp_path, "--playback", str(example), backend=None)
    with client_of(server) as client:
        answer = client.completions.create(
            model="smollm2-135m",
            prompt="One, two, three,",
            max_tokens=8,
            temperature=0,
            extra_body={"determinism": "strict"},
        )

    assert answer.choices[0].text == " four, five, six, seven,"


def test_a_file_without_recordings_cannot_be_played_back(cli, tmp_path):
    path = tmp_path / "empty.plan.yaml"
    path.write_text('format_version: "1.0"\nsteps:\n- plan: {command: status}\n')
    done = cli("serve", "--playback", str(path))

    assert done.code == 2
    assert "nothing is recorded" in done.err


def test_recordings_are_rotated_by_size_and_a_killed_server_leaves_whole_steps(echo_server_at, tmp_path):
    server = echo_server_at(tmp_path, "--record", str(tmp_path / "r"), "--record-max-bytes", "10000")
    with client_of(server) as client:
        for number in range(12):
            client.chat.completions.create(model="echo", messages=[{"role": "user", "content": f"number {number}"}])
        # an answer does not wait for its step: the first one's model is hashed before it is written
        limit = time.monotonic() + 60
        while len(files_of(tmp_path / "r")) < 2 and time.monotonic() < limit:
            time.sleep(0.01)
    server.kill()
    files = load_plan_files([str(path) for path in files_of(tmp_path / "r")])

    assert len(files) > 1
    assert sum(len(file.steps) for file in files) >= len(files)
    assert all(path.stat().st_size <= 10_000 for path in files_of(tmp_path / "r"))


def test_the_oldest_recordings_go_where_a_number_is_given(echo_server_at, tmp_path):
    folder = tmp_path / "r"
    folder.mkdir()
    old, mine = folder / "recorded-20200101-000000-0001.plan.yaml", folder / "kept.plan.yaml"
    for path in (old, mine):
        path.write_text("steps: []\n")
    flags = ("--record", str(folder), "--record-max-bytes", "10000", "--record-max-files", "2")
    server = echo_server_at(tmp_path, *flags)
    with client_of(server) as client:
        for number in range(30):
            client.chat.completions.create(model="echo", messages=[{"role": "user", "content": f"number {number}"}])
    assert server.stop() == 0
    left = files_of(folder)

    assert mine in left
    assert old not in left
    assert len(left) == 3
    assert int(left[-1].name.split("-")[3][:4]) > 2
    assert "number 29" in left[-1].read_text()


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(cli, tmp_path):
    (tmp_path / "file").write_text("")
    done = cli("serve", "--backend", "echo", "--port", "0", "--record", str(tmp_path / "file"))

    assert done.code == 2
    assert "cannot be written" in done.err
