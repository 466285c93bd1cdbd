"""A recorded request whose secrets were taken out is found again, with the same secret, another one or none known."""

from __future__ import annotations

import asyncio
import fcntl
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from localllm.errors import NotRecorded
from localllm.executors.context import Context
from localllm.executors.dispatch import dispatch
from localllm.executors.events import Result
from localllm.executors.ledger import Actor
from localllm.executors.logbook import HIDDEN
from localllm.executors.playback import Playback, Recorded, fits, load_playback
from localllm.executors.recorder import Recorder, plan_to_match
from localllm.planner.codec import load_plan

MakeContext = Callable[..., Context]
SECRET = "swordfish"


def chat(text: str) -> dict[str, Any]:
    return {"command": "chat", "model": "echo", "messages": [{"role": "user", "content": text}]}


async def answered(raw: dict[str, Any], ctx: Context, *secrets: str) -> dict[str, Any]:
    actor = Actor(door="http", secrets=secrets)
    async for event in dispatch(load_plan(raw), ctx, actor=actor):
        if isinstance(event, Result):
            return event.data
    raise AssertionError("no result")


@pytest.fixture
def recorded(make_context: MakeContext, tmp_path: Path) -> Callable[..., list[str]]:
    """Record these texts, asked by somebody with these secrets; the files."""

    def record(*texts: str, secrets: tuple[str, ...] = (), env: dict[str, str] | None = None) -> list[str]:
        async def session() -> None:
            ctx = make_context(backend="echo", on_server=True, env=env)
            ctx.recorder = Recorder(tmp_path / "recorded")
            try:
                for text in texts:
                    await answered(chat(text), ctx, *secrets)
            finally:
                await ctx.recorder.close()
                await ctx.aclose()

        asyncio.run(session())
        files = sorted((tmp_path / "recorded").glob("*.plan.yaml"))
        assert SECRET not in "".join(path.read_text() for path in files)
        return [str(path) for path in files]

    return record


@pytest.mark.parametrize("most, left", [(None, 4), (1, 2), (3, 3)])
def test_the_oldest_recordings_go_but_none_that_grows_and_nothing_else(
    make_context: MakeContext, tmp_path: Path, most: int | None, left: int
) -> None:
    folder = tmp_path / "recorded"
    folder.mkdir()
    names = ("recorded-20200101-000000-9999", "recorded-20200101-000000-10000", "recorded-20200102-000000-0001")
    for name in (*names, "recorded-20200101-000000-0001-kept"):
        (folder / f"{name}.plan.yaml").write_text("steps: []\n")

    async def session() -> None:
        ctx = make_context(backend="echo", on_server=True)
        ctx.recorder = Recorder(folder, max_files=most)
        await answered(chat("hello"), ctx)
        await ctx.recorder.close()
        await ctx.aclose()

    with (folder / f"{names[1]}.plan.yaml").open() as grows:
        fcntl.flock(grows, fcntl.LOCK_SH)
        asyncio.run(session())
    found = sorted(path.name.removesuffix(".plan.yaml") for path in folder.iterdir())

    assert "recorded-20200101-000000-0001-kept" in found
    assert names[1] in found
    assert (names[0] in found) is (most is None)
    assert len(found) == left + 1


@pytest.fixture
def play(make_context: MakeContext) -> Callable[..., str]:
    """Ask a playback of files; the answer's text."""

    def ask(files: list[str], text: str, secrets: tuple[str, ...] = ()) -> str:
        ctx = make_context(on_server=True)
        ctx.playback = load_playback(files, ctx)
        data = asyncio.run(answered(chat(text), ctx, *secrets))
        return str(data["choices"][0]["message"]["content"])

    return ask


@pytest.mark.parametrize("known", [(), (SECRET,)], ids=["a secret nobody names", "a secret that is named"])
@pytest.mark.parametrize("by", ["actor", "setting"])
def test_a_request_with_a_secret_finds_its_recording(
    recorded: Callable[..., list[str]], play: Callable[..., str], known: tuple[str, ...], by: str
) -> None:
    how: dict[str, Any] = {"secrets": (SECRET,)} if by == "actor" else {"env": {"LOCALLLM_API_KEY": SECRET}}
    files = recorded("one plain", f"the word is {SECRET}, friend", **how)

    assert HIDDEN in play(files, f"the word is {SECRET}, friend", known)


def test_another_secret_in_its_place_finds_it_too(recorded: Callable[..., list[str]], play: Callable[..., str]) -> None:
    files = recorded(f"the word is {SECRET}, friend", secrets=(SECRET,))

    assert HIDDEN in play(files, "the word is mellon, friend", ("mellon",))
    assert HIDDEN in play(files, "the word is mellon, friend")


@pytest.mark.parametrize("text", ["the word is , friend", "the word is swordfish, foe", "the swordfish", ""])
def test_what_differs_elsewhere_is_not_recorded(
    recorded: Callable[..., list[str]], play: Callable[..., str], text: str
) -> None:
    files = recorded(f"the word is {SECRET}, friend", secrets=(SECRET,))

    with pytest.raises(NotRecorded):
        play(files, text)


def test_the_very_request_wins_over_one_with_a_gap(
    recorded: Callable[..., list[str]], play: Callable[..., str]
) -> None:
    files = recorded(f"say {SECRET}", "say hello", secrets=(SECRET,))

    assert "hello" in play(files, "say hello")
    assert HIDDEN in play(files, "say mellon")


def test_stars_that_somebody_wrote_stand_for_themselves(
    recorded: Callable[..., list[str]], play: Callable[..., str]
) -> None:
    files = recorded(f"above {HIDDEN} below")

    assert HIDDEN in play(files, f"above {HIDDEN} below")
    with pytest.raises(NotRecorded):
        play(files, "above all below")


def test_many_recorded_answers_take_little_more_memory_than_their_text() -> None:
    def one(number: int) -> Recorded:
        deltas = [{"event": "delta", "index": 0, "delta": {"content": f" {number + at}"}} for at in range(100)]
        outcome = {"ok": True, "result": {"model": "m", "created": 7}, "events": deltas, "times_ms": [0.5] * 100}
        return Recorded(name="a", place="f:1", plan={"command": "chat", "model": f"m{number % 3}"}, outcome=outcome)

    size = 300 * len(json.dumps(one(0).outcome))
    playback = Playback()
    playback.add(one(0))  # what is imported on the way is no part of it
    tracemalloc.start()
    for number in range(300):
        playback.add(one(number))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert playback.count == 301
    assert playback.models == {"m": 7, "m0": 7, "m1": 7, "m2": 7}
    assert held < 2 * size


def test_repeated_requests_get_their_answers_in_order_then_the_last(make_context: MakeContext) -> None:
    playback, ctx = Playback(), make_context(on_server=True)
    plan = load_plan(chat("again"))
    for number in range(3):
        answer = {"ok": True, "result": {"number": number}}
        playback.add(Recorded(name="a", place="f:1", plan=plan_to_match(plan, ctx), outcome=answer))

    async def asked() -> int:
        [result] = [event async for event in playback.played(plan, ctx)]
        assert isinstance(result, Result)
        return int(result.data.pop("number"))

    assert [asyncio.run(asked()) for _ in range(5)] == [0, 1, 2, 2, 2]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab*", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3),
    max_leaves=8,
)


def filled(value: Any, text: str) -> Any:
    if isinstance(value, str):
        return value.replace(HIDDEN, text)
    if isinstance(value, dict):
        return {name.replace(HIDDEN, text): filled(item, text) for name, item in value.items()}
    return [filled(item, text) for item in value] if isinstance(value, list) else value


@given(JSON, st.text("ab", min_size=1, max_size=3))
def test_a_value_fits_itself_and_what_fills_its_gaps(value: Any, text: str) -> None:
    assert fits(value, filled(value, text))
    assert fits(filled(value, "x"), filled(value, "x"))
    assert not fits({"a": value}, {"a": value, "b": value})


@pytest.mark.parametrize(
    "recorded, asked, same",
    [
        ("***", "", False),
        ("***", 1, False),
        ("a***b***c", "axbyc", True),
        ("a***b***c", "abc", False),
        ("a***a", "aa", False),
        ("a***a", "aaa", True),
        ({"***": 1, "a": 2}, {"a": 2, "b": 1}, True),
        ({"***": 1, "a": 2}, {"a": 2, "b": 3}, False),
        ([1, "***"], [1, "x"], True),
        (1, True, False),
    ],
)
def test_what_stands_in_a_gap(recorded: Any, asked: Any, same: bool) -> None:
    assert fits(recorded, asked) is same


def test_many_gaps_take_no_time() -> None:
    assert not fits("a".join([HIDDEN] * 200) + "z", "a" * 200_000)
