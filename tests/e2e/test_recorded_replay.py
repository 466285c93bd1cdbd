"""A recording replayed against a live server: equal answers, and why others differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest


def recorded_at(server_at: Any, folder: Path, bodies: list[dict[str, Any]]) -> list[str]:
    """Files with what an echo server answered to the bodies."""
    server = server_at(folder, "--record", str(folder / "recorded"))
    with httpx.Client(base_url=server.url, trust_env=False, timeout=200) as http:
        for body in bodies:
            http.post("/v1/chat/completions", json={"model": "echo", **body})
    assert server.stop() == 0
    return [str(path) for path in sorted((folder / "recorded").glob("*.yaml"))]


def asking(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def replayed(cli: Any, server: Any, files: list[str], *more: str) -> tuple[int, list[dict[str, Any]]]:
    done = cli("replay", *files, *more, "--output", "json", "--stream", "--server", server.url)
    lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    return done.code, [line["data"] for line in lines if line.get("event") == "record"]


@pytest.fixture(scope="module")
def files(tmp_path_factory, echo_server_at) -> list[str]:
    bodies = [asking("hello ${x} there"), asking("hi", seed=3), asking("a ${b}", temperature=0, stream=True), {"n": 0}]
    return recorded_at(echo_server_at, tmp_path_factory.mktemp("recording"), bodies)


def test_the_same_server_answers_the_same(cli, files, echo_server):
    code, records = replayed(cli, echo_server, files)

    assert code == 0
    assert [record["status"] for record in records] == ["passed"] * len(records)
    assert len(records) == 3
    assert {record["comparison"]["verdict"] for record in records} == {"same"}


def test_the_seed_that_was_drawn_is_used_again(cli, files, echo_server):
    _, records = replayed(cli, echo_server, files)

    assert all("sampling" not in record["comparison"]["reasons"] for record in records)


def test_another_answer_is_a_failure_that_shows_where_it_differs(cli, files, echo_server_at, tmp_path):
    script = json.dumps({"script": ["something ", "else"]})
    other = echo_server_at(tmp_path, "--backend-options", script)
    code, records = replayed(cli, other, files)

    assert code == 1
    assert {record["status"] for record in records} == {"failed", "skipped"}
    message = records[0]["problems"][-1]["message"]
    assert "nothing it depends on has changed" in message
    assert "is now 'something else'" in message


def test_a_difference_that_other_sampling_explains_fails_nothing(cli, files, echo_server_at, tmp_path):
    script = json.dumps({"script": ["something ", "else"]})
    other = echo_server_at(tmp_path, "--backend-options", script)
    text = Path(files[0]).read_text().replace('"temperature": 0.8', '"temperature": 0.5')
    changed = tmp_path / "changed.plan.yaml"
    changed.write_text(text)
    _, records = replayed(cli, other, [str(changed)], "--from", "2")

    assert records[0]["comparison"]["reasons"] == ["sampling"]
    assert records[0]["status"] == "passed"


def test_a_step_in_words_says_why_it_may_differ(cli, files, echo_server, tmp_path):
    text = Path(files[0]).read_text().replace(' echo"', ' other"')
    changed = tmp_path / "changed.plan.yaml"
    changed.write_text(text)
    done = cli("replay", str(changed), "--server", echo_server.url)

    assert done.code == 0, done.out
    assert "equal this time, and may differ: numerics" in done.out


def test_an_update_renews_what_was_recorded_and_nothing_else(cli, files, echo_server_at, tmp_path):
    script = json.dumps({"script": ["something ", "else"]})
    other = echo_server_at(tmp_path, "--backend-options", script)
    renewed = tmp_path / "renewed.plan.yaml"
    renewed.write_text(Path(files[0]).read_text() + "# a comment\n")
    before = renewed.read_text().splitlines()
    first, _ = replayed(cli, other, [str(renewed)], "--update")
    after = renewed.read_text().splitlines()
    code, records = replayed(cli, other, [str(renewed)])

    assert (first, code) == (0, 0)
    assert {record["comparison"]["verdict"] for record in records} == {"same"}
    assert [line.partition('"recorded"')[0] for line in after] == [line.partition('"recorded"')[0] for line in before]
    assert all("something " in line for line in after if "chatcmpl" in line)
    assert cli("replay", str(renewed), "--update", "--server", other.url).code == 0
    assert renewed.read_text().splitlines() == after


def test_the_secret_of_a_step_is_kept_nowhere_by_the_server_it_is_sent_to(cli, echo_server_at, tmp_path):
    secret = "hunter2-and-more"
    steps = [
        {"plan": {"command": "chat", "model": "echo", "messages": [{"role": "user", "content": "say ${password}"}]}},
        {"plan": {"command": "models.load", "model": "${password}"}, "expect": {"exit_code": 3}},
    ]
    file = tmp_path / "secret.plan.json"
    variables = {"password": {"$secret": "env:PASSWORD"}}
    file.write_text(json.dumps({"format_version": "1.0", "vars": variables, "steps": steps}))
    server = echo_server_at(tmp_path / "server", "--record", str(tmp_path / "server" / "recorded"))
    done = cli("replay", str(file), "--server", server.url, env={"PASSWORD": secret})
    assert server.stop() == 0
    kept = [path for path in (tmp_path / "server").rglob("*") if path.is_file()]

    assert done.code == 0, done.out + done.err
    assert {"ledger.jsonl"} < {path.name for path in kept}
    assert any("say ***" in path.read_text() for path in kept)
    assert [path.name for path in kept if secret in path.read_text(errors="replace")] == []
