"""What a replayed answer depended on, asked of where it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from localllm.executors.context import Context
from localllm.executors.replay.outcome import Outcome
from localllm.executors.replay.recorded import compare

PLAN = {"command": "chat", "model": "echo", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = {"model": "echo", "seed": 3, "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]}


def test_nothing_is_said_of_a_server_that_answered_and_is_gone(make_context: Callable[..., Context]) -> None:
    ctx = make_context()
    lock: dict[str, Any] = {"model": "echo", "build": "another", "machine": "another", "strict": False}
    recorded = {"ok": True, "exit_code": 0, "result": ANSWER, "error": None, "events": [], "lock": lock}
    outcome = Outcome(ok=True, exit_code=0, http_status=200, result=ANSWER)

    async def compared() -> Any:
        try:
            return await compare(PLAN, recorded, outcome, ctx)
        finally:
            await ctx.aclose()

    comparison, now = asyncio.run(compared())

    assert {"build", "machine"}.isdisjoint(now)
    assert comparison.equal
    assert comparison.verdict == "may differ"
    assert not comparison.failed
