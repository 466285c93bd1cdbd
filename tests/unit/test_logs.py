"""The log: bounded, one event a line, without secrets; and how it is read back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from localllm.executors.context import Context
from localllm.executors.dispatch import dispatch
from localllm.executors.events import Record, Result
from localllm.executors.keys import make_key
from localllm.executors.logbook import LogBook, open_logbook
from localllm.executors.logs import Follower, newest_lines
from localllm.planner.codec import load_plan

Run = Callable[..., Result]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "log" / "server.jsonl"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_event_is_one_line_whatever_a_name_holds(path: Path) -> None:
    LogBook(path).write("request", model="a\nb\x1b[2J\u2028\udcff")

    (line,) = lines_of(path)
    assert line["event"] == "request"
    assert line["model"] == "a\nb\x1b[2J\u2028\udcff"
    assert b"\x1b" not in path.read_bytes()


def test_the_log_stays_within_its_bounds(path: Path) -> None:
    book = LogBook(path, max_bytes=10_000, keep=2)
    for number in range(2000):
        book.write("request", number=number, filler="x" * 60)

    files = sorted(each.name for each in path.parent.iterdir())
    assert files == ["server.jsonl", "server.jsonl.1", "server.jsonl.2"]
    assert all(each.stat().st_size <= 10_000 for each in path.parent.iterdir())
    newest = [line["number"] for line in newest_lines(path, 2000, "info")]
    assert len(newest) > 100
    assert newest == list(range(2000 - len(newest), 2000))


def test_no_old_parts_are_kept_where_none_are_wanted(path: Path) -> None:
    book = LogBook(path, max_bytes=1000, keep=0)
    for _ in range(100):
        book.write("request", filler="x" * 60)

    assert [each.name for each in path.parent.iterdir()] == ["server.jsonl"]


def test_a_line_longer_than_the_log_is_shortened(path: Path) -> None:
    LogBook(path, max_bytes=1000).write("fault", traceback="x\n" * 5000)

    (line,) = lines_of(path)
    assert len(path.read_bytes()) <= 1000
    assert "x" in line["shortened"]


@pytest.mark.parametrize(
    "fields",
    [
        {"authorization": "Bearer KEY"},
        {"headers": {"Authorization": "Bearer KEY", "x-api-key": "KEY"}},
        {"api_key": "KEY"},
        {"text": "sent `Authorization: bearer KEY`"},
        {"argv": ["--x", "KEY"]},
        {"token": "KEY"},
    ],
    ids=repr,
)
def test_no_key_reaches_the_log(path: Path, fields: dict[str, Any]) -> None:
    key = make_key()
    filled = json.loads(json.dumps(fields).replace("KEY", key))

    LogBook(path, level="debug").write("request", **filled)

    assert key not in path.read_text()
    assert "***" in path.read_text()


def test_a_key_of_any_form_is_hidden_once_it_is_known(path: Path) -> None:
    LogBook(path, secrets=("hunter2",)).write("request", text="the key hunter2 is wrong")

    assert "hunter2" not in path.read_text()


def test_counts_of_tokens_are_no_secrets(path: Path) -> None:
    LogBook(path).write("request", prompt_tokens=5, token=7)

    assert lines_of(path)[0]["prompt_tokens"] == 5
    assert lines_of(path)[0]["token"] == 7


def test_a_log_that_cannot_be_written_stops_nothing(path: Path) -> None:
    path.mkdir(parents=True)
    book = LogBook(path)

    book.write("request")

    assert book.lost == 1


def test_the_level_is_kept(path: Path) -> None:
    book = LogBook(path, level="warning")
    for level in ("debug", "info", "warning", "error"):
        book.write("x", level=level)  # type: ignore[arg-type]

    assert [line["level"] for line in lines_of(path)] == ["warning", "error"]


def test_fields_cannot_replace_the_events_own(path: Path) -> None:
    LogBook(path).write("request", **{"event": "forged", "time": "never"})

    assert lines_of(path)[0]["event"] == "request"


def test_logs_shows_the_newest_lines_of_a_level(run_result: Run, make_context: Callable[..., Context]) -> None:
    book = open_logbook(make_context().settings)
    for number in range(10):
        book.write("request", number=number, level="error" if number % 2 else "info")

    shown = run_result({"command": "logs", "lines": 3, "level": "error"}).data["lines"]

    assert [line["number"] for line in shown] == [5, 7, 9]


def test_no_log_is_no_fault(run_result: Run) -> None:
    assert run_result({"command": "logs"}).data["lines"] == []
    assert run_result({"command": "logs", "lines": 0}).data["lines"] == []


def test_a_line_of_another_program_is_shown_as_text(run_result: Run, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"oops \xff\n")

    assert run_result({"command": "logs"}).data["lines"][0]["text"] == "oops \ufffd"


def test_following_goes_through_rotations(make_context: Callable[..., Context]) -> None:
    ctx = make_context(flags={"log_max_bytes": 1000, "log_keep": 50})
    book = open_logbook(ctx.settings)
    book.write("request", number=0)
    seen: list[int] = []

    async def follow() -> None:
        plan = load_plan({"command": "logs", "follow": True})
        async for event in dispatch(plan, ctx):
            assert isinstance(event, Record)
            seen.append(event.data["number"])
            if len(seen) == 60:
                return

    async def write() -> None:
        for number in range(1, 60):
            book.write("request", number=number, filler="x" * 100)
            await asyncio.sleep(0.02)

    async def both() -> None:
        await asyncio.wait_for(asyncio.gather(follow(), write()), 200)

    asyncio.run(both())

    assert seen == list(range(60))


def test_half_a_line_waits_for_its_rest(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"event": "a"}\n{"eve')
    follower = Follower(path, at_end=False)

    assert [row["event"] for row in follower.read()] == ["a"]

    with path.open("ab") as file:
        file.write(b'nt": "b"}\n')
    assert [row["event"] for row in follower.read()] == ["b"]
    follower.close()
