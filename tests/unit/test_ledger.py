"""The ledger: every change leaves one entry, no crash and no second writer spoils it, and no secret is in it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import AmbiguousName, ConfigInvalid, LocalLLMError, NotFound
from localllm.executors import recording
from localllm.executors.changes import change_of, state_before
from localllm.executors.context import Context
from localllm.executors.dispatch import dispatch
from localllm.executors.events import Event, Events, Progress, Result
from localllm.executors.ledger import Actor, Entry, Ledger, described, framed, ledger_of, unframed
from localllm.planner.codec import load_plan

MakeContext = Callable[..., Context]
RunPlan = Callable[..., list[Event]]
SET = {"command": "config.set", "key": "port", "value": "9000"}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The ledger of the contexts that `make_context` makes."""
    return ledger_of(tmp_path / "state")


def numbers(ledger: Ledger) -> list[int]:
    return [record["number"] for record in ledger.records()]


def test_a_record_that_was_appended_is_read_back(ledger: Ledger) -> None:
    ledger.append({"number": 1, "text": "line\nbreak \u2028 ü"})
    ledger.append({"number": 2})

    assert [record["number"] for record in ledger.records()] == [1, 2]
    assert next(ledger.records())["text"] == "line\nbreak \u2028 ü"
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_a_crash_at_any_byte_costs_only_the_record_that_was_being_written(tmp_path: Path) -> None:
    whole = framed({"number": 1}) + framed({"number": 2})
    last = framed({"number": 3, "text": "ü" * 5})
    for length in range(len(last)):
        ledger = Ledger(path=tmp_path / f"torn-{length}", durable=False)
        ledger.path.write_bytes(whole + last[:length])
        kept = [1, 2, 3] if length == len(last) - 1 else [1, 2]

        assert numbers(ledger) == kept
        ledger.append({"number": 4})
        assert numbers(ledger) == [*kept, 4]
        assert all(unframed(line) is not None for line in ledger.path.read_bytes().splitlines())


def test_a_torn_line_longer_than_a_block_is_taken_away(ledger: Ledger) -> None:
    ledger.append({"number": 1})
    with ledger.path.open("ab") as file:
        file.write(b"0" * 300_000)

    ledger.append({"number": 2})

    assert numbers(ledger) == [1, 2]
    assert ledger.path.stat().st_size < 1000


def test_a_damaged_line_is_skipped_and_the_others_stay(ledger: Ledger) -> None:
    for number in range(3):
        ledger.append({"number": number})
    content = bytearray(ledger.path.read_bytes())
    content[content.index(b'"number":1') + 9] ^= 1
    ledger.path.write_bytes(bytes(content))

    assert numbers(ledger) == [0, 2]


WRITER = """
import sys
from pathlib import Path
from localllm.executors.ledger import Ledger
ledger, writer = Ledger(path=Path(sys.argv[1]), durable=False), int(sys.argv[2])
for number in range(100):
    ledger.append({"number": writer * 100 + number, "text": "x" * 500})
"""


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(writer)]) for writer in range(4)]

    assert [writer.wait(200) for writer in writers] == [0] * 4
    assert sorted(numbers(Ledger(path=path))) == list(range(400))


def test_a_full_file_takes_the_place_of_the_older_one(tmp_path: Path) -> None:
    one = len(framed({"number": 0}))
    ledger = Ledger(path=tmp_path / "ledger.jsonl", durable=False, most_bytes=3 * one)
    for number in range(8):
        ledger.append({"number": number})

    assert numbers(ledger) == [3, 4, 5, 6, 7]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.jsonl", "ledger.jsonl.1"]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 3 * one


def test_writers_at_the_same_time_lose_nothing_when_the_file_gets_full(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    program = WRITER.replace("durable=False", "durable=False, most_bytes=150_000")
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), str(writer)]) for writer in range(4)]

    assert [writer.wait(200) for writer in writers] == [0] * 4
    assert sorted(numbers(Ledger(path=path))) == list(range(400))
    assert (tmp_path / "ledger.jsonl.1").exists()


def test_what_does_not_fit_on_the_disk_leaves_nothing_behind(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.append({"number": 1})
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:10]))

    with pytest.raises(OSError, match="bytes fit"):
        ledger.append({"number": 2})
    assert ledger.path.read_bytes() == framed({"number": 1})


def test_a_change_is_one_entry_with_what_it_was_before(run_plan: RunPlan, ledger: Ledger, tmp_path: Path) -> None:
    run_plan(SET)

    (entry,) = ledger.entries()
    assert (entry.command, entry.outcome) == ("config.set", "done")
    assert entry.record["plan"] == SET
    assert entry.record["actor"]["door"] == "cli"
    assert entry.record["actor"]["pid"] == os.getpid()
    assert entry.undo == {
        "kind": "config",
        "path": str(tmp_path / "config.toml"),
        "key": "port",
        "before": None,
        "after": 9000,
    }
    assert entry.record["result"].startswith("sha256:")


def test_an_entry_is_one_line_and_nothing_else_stays(run_plan: RunPlan, ledger: Ledger) -> None:
    for port in ("1", "2", "3"):
        run_plan({**SET, "value": port})

    assert len(ledger.path.read_bytes().splitlines()) == 3
    assert list(ledger.running.iterdir()) == []
    for record in ledger.records():
        assert {"entry", "actor", "effects", "result", "time", "ended", "outcome", "plan_id"} <= record.keys()


def begun_by(ledger: Ledger, name: str, started: str | None = None) -> dict[str, Any]:
    """A plan that this process has begun, or one that is gone."""
    record = {"plan": SET, "actor": described(Actor()), "effects": ["update"], "time": f"2026-01-01T00:00:0{name}Z"}
    if started is not None:
        record["actor"]["started"] = started
    ledger.begin(name, record)
    return record


def outcomes(ledger: Ledger) -> dict[str, str]:
    return {entry.id: entry.outcome for entry in ledger.entries()}


def test_a_plan_whose_process_died_is_interrupted_and_its_line_is_made_by_the_next(ledger: Ledger) -> None:
    begun_by(ledger, "1", started="earlier")
    assert outcomes(ledger) == {"1": "interrupted"}
    assert ledger.path.read_bytes() == b""

    record = begun_by(ledger, "2")
    assert outcomes(ledger) == {"1": "interrupted", "2": "running"}
    assert [each["entry"] for each in ledger.records()] == ["1"]
    assert [path.name for path in ledger.running.iterdir()] == ["2"]

    ledger.end("2", {**record, "outcome": "done"})
    assert outcomes(ledger) == {"1": "interrupted", "2": "done"}
    assert list(ledger.running.iterdir()) == []


def test_a_crash_between_the_line_and_the_end_of_its_marker_makes_no_second_entry(ledger: Ledger) -> None:
    record = begun_by(ledger, "1", started="earlier")
    marker = (ledger.running / "1").read_bytes()
    ledger.end("1", {**record, "outcome": "done"})
    (ledger.running / "1").write_bytes(marker)
    assert outcomes(ledger) == {"1": "done"}

    begun_by(ledger, "2")
    assert outcomes(ledger) == {"1": "done", "2": "running"}
    assert len(ledger.path.read_bytes().splitlines()) == 1


def test_a_crash_at_any_byte_of_a_beginning_leaves_no_entry(ledger: Ledger) -> None:
    begun_by(ledger, "1")
    whole = (ledger.running / "1").read_bytes()
    for length in range(len(whole) - 1):
        (ledger.running / "1").write_bytes(whole[:length])
        assert outcomes(ledger) == {}
    begun_by(ledger, "2")

    assert outcomes(ledger) == {"2": "running"}
    assert [path.name for path in ledger.running.iterdir()] == ["2"]


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from localllm.executors.context import Context
from localllm.executors.events import Progress
from localllm.executors.ledger import Actor
from localllm.executors.recording import recorded
from localllm.planner.codec import load_plan
from localllm.planner.settings import resolve_settings

settings = resolve_settings({"state_dir": sys.argv[1]}, {}, config_file=Path(sys.argv[2]), must_exist=False)

async def half_way():
    os.kill(os.getpid(), signal.SIGKILL)
    yield Progress(stage="never")

async def run():
    plan = load_plan({"command": "config.set", "key": "port", "value": "9000"})
    async for _ in recorded(plan, Context(settings=settings), half_way(), Actor()):
        pass

asyncio.run(run())
"""


def test_a_plan_that_is_killed_half_way_is_told_as_interrupted(
    run_plan: RunPlan, ledger: Ledger, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", KILLED, str(tmp_path / "state"), str(tmp_path / "other.toml")]
    done = subprocess.run(argv, capture_output=True, timeout=250)
    assert done.returncode == -9, done.stderr
    assert list(outcomes(ledger).values()) == ["interrupted"]

    run_plan(SET)
    assert list(outcomes(ledger).values()) == ["interrupted", "done"]
    assert len(ledger.path.read_bytes().splitlines()) == 2


def test_a_line_that_cannot_be_written_leaves_the_plan_begun(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    record = begun_by(ledger, "1")
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:10]))

    with pytest.raises(OSError, match="bytes fit"):
        ledger.end("1", {**record, "outcome": "done"})
    with pytest.raises(OSError, match="bytes fit"):
        ledger.begin("2", record)
    assert outcomes(ledger) == {"1": "running"}


@pytest.mark.parametrize("raw", [{"command": "version"}, {"command": "config.get", "key": "port"}])
def test_what_only_reads_leaves_no_entry(run_plan: RunPlan, ledger: Ledger, raw: dict[str, Any]) -> None:
    run_plan(raw)

    assert not ledger.path.exists()


def test_a_dry_run_leaves_no_entry(run_plan: RunPlan, ledger: Ledger) -> None:
    run_plan(SET, dry_run=True)

    assert not ledger.path.exists()


def test_an_applied_plan_is_one_entry(run_plan: RunPlan, ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(SET))
    run_plan({"command": "apply", "file": str(tmp_path / "plan.json")})

    (entry,) = ledger.entries()
    assert (entry.command, entry.record["actor"]["door"]) == ("config.set", "apply")


def test_a_change_on_the_server_names_the_run_of_the_server(run_plan: RunPlan, ledger: Ledger) -> None:
    run_plan({"command": "models.load", "model": "echo"}, backend="echo", on_server=True, instance="run1")

    (entry,) = ledger.entries()
    assert entry.record["instance"] == "run1"
    assert entry.record["actor"]["door"] == "server"
    assert entry.undo is not None
    assert entry.undo["loaded"] == ["echo"]


def test_a_change_that_fails_is_an_entry_that_says_so(run_plan: RunPlan, ledger: Ledger) -> None:
    with pytest.raises(ConfigInvalid):
        run_plan({**SET, "value": "many"})

    (entry,) = ledger.entries()
    assert (entry.outcome, entry.undo) == ("failed", None)
    assert entry.record["error"]["code"] == "config_invalid"


def test_no_secret_is_in_the_ledger(run_plan: RunPlan, ledger: Ledger) -> None:
    enabled = run_plan({"command": "auth.enable"})[-1]
    assert isinstance(enabled, Result)
    with pytest.raises(ConfigInvalid):
        run_plan({"command": "config.set", "key": "api_key", "value": "correct horse"})
    with pytest.raises(LocalLLMError):
        run_plan({**SET, "key": "server", "value": "http://sk-abcdefghijklmnopqrstuv@host"})
    run_plan({**SET, "key": "default_model", "value": "swordfish"}, env={"LOCALLLM_API_KEY": "swordfish"})

    text = ledger.path.read_text()
    for secret in (enabled.data["key"], "correct horse", "sk-abcdefghijklmnopqrstuv", "swordfish"):
        assert secret not in text


async def first_event(events: Events) -> None:
    async with aclosing(events) as running:  # type: ignore[type-var]
        async for _ in running:
            return


def test_a_reader_who_leaves_at_the_result_leaves_a_whole_entry(make_context: MakeContext, ledger: Ledger) -> None:
    asyncio.run(first_event(dispatch(load_plan(SET), make_context())))

    assert [entry.outcome for entry in ledger.entries()] == ["done"]


def test_a_change_that_is_cancelled_is_interrupted(make_context: MakeContext, ledger: Ledger) -> None:
    async def slow() -> Events:
        yield Progress(stage="waiting")
        await asyncio.sleep(60)

    async def leave() -> None:
        plan = load_plan(SET)
        await first_event(recording.recorded(plan, make_context(), slow(), Actor()))

    asyncio.run(leave())

    assert [entry.outcome for entry in ledger.entries()] == ["interrupted"]


def test_a_change_that_is_cancelled_while_its_entry_begins_is_no_running_one(
    make_context: MakeContext, ledger: Ledger
) -> None:
    ran: list[str] = []

    async def never() -> Events:
        ran.append("ran")
        yield Result(data={})

    async def leave() -> None:
        events = recording.recorded(load_plan(SET), make_context(), never(), Actor())
        task = asyncio.ensure_future(anext(aiter(events)))
        await asyncio.sleep(0.05)  # it waits for the lock, or has not come to it
        task.cancel()
        await asyncio.sleep(0.05)
        fcntl.flock(held, fcntl.LOCK_UN)
        await asyncio.wait([task])
        assert task.cancelled()

    ledger.append({"number": 1})
    with ledger.path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        asyncio.run(leave())

    assert [entry.outcome for entry in ledger.entries()] in (["interrupted"], [])
    assert ran == []


def test_what_others_load_and_unload_meanwhile_is_not_the_change_of_a_plan(
    make_context: MakeContext, ledger: Ledger
) -> None:
    async def work() -> None:
        ctx = make_context(on_server=True, backend="echo", instance="run1")
        load = load_plan({"command": "models.load", "model": "echo"})
        unload = load_plan({"command": "models.unload", "model": "echo"})
        nothing = state_before(load, ctx)
        async with aclosing(dispatch(load, ctx)) as events:
            (own,) = [event async for event in events if isinstance(event, Result)]
        loaded = state_before(load, ctx)
        other = Result(data={"model_id": "other", "changed": True})

        assert change_of(load, ctx, nothing, own)["loaded"] == ["echo"]
        assert change_of(load, ctx, nothing, other) is None
        assert change_of(unload, ctx, nothing, Result(data={"unloaded": [], "changed": False})) is None
        await ctx.runtime.unload("echo")
        assert change_of(unload, ctx, loaded, Result(data={"unloaded": ["other"], "changed": True})) is None
        gone = change_of(unload, ctx, loaded, Result(data={"unloaded": ["echo"], "changed": True}))
        assert [each["model"] for each in gone["unloaded"]] == ["echo"]

    asyncio.run(work())


def test_an_entry_without_an_end_tells_whether_its_process_lives(run_plan: RunPlan, ledger: Ledger) -> None:
    run_plan(SET)
    (entry,) = ledger.entries()
    actor = entry.record["actor"]

    begun = {name: value for name, value in entry.record.items() if name != "outcome"}

    assert Entry(id="e", record=begun).outcome == "running"
    assert Entry(id="e", record={**begun, "actor": {**actor, "started": "earlier"}}).outcome == "interrupted"


def test_a_ledger_that_cannot_be_written_is_said_and_stops_nothing(run_plan: RunPlan, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")

    events = run_plan(SET)

    assert isinstance(events[0], Progress)
    assert "not in the ledger" in events[0].message
    assert isinstance(events[-1], Result)


def test_an_entry_is_found_by_the_unique_beginning_of_its_id(ledger: Ledger) -> None:
    for name in ("aab", "aac", "b"):
        ledger.append({"entry": name, "plan": SET})

    assert ledger.entry("aab").id == "aab"
    assert ledger.entry("b").id == "b"
    with pytest.raises(AmbiguousName):
        ledger.entry("aa")
    with pytest.raises(NotFound):
        ledger.entry("c")
