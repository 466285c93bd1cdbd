"""A report of a changing plan is good for one application: the mark that an application leaves, and the claim to it.

Reports hold no time and no random name, so that equal dry runs print equal bytes. What tells an applied one from a
fresh one is the mark of the last application of its plan, which a report carries as a precondition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..errors import InUse, StalePlan

KIND = "applied"


def applied_precondition(plan_id: str, state_dir: str | Path) -> dict[str, Any]:
    """What a report says about earlier applications of its plan; only reads."""
    mark = _mark(_file(plan_id, state_dir))
    return {"kind": KIND, "last": None if mark is None else mark["mark"]}


def failed_applied(preconditions: Iterable[Mapping[str, Any]], plan_id: str, state_dir: str | Path) -> list[str]:
    """A sentence where the plan was applied since the report was made."""
    return [words for item in preconditions if item.get("kind") == KIND and (words := _since(item, plan_id, state_dir))]


@contextmanager
def claim(
    plan_id: str, preconditions: Iterable[Mapping[str, Any]], state_dir: str | Path
) -> Iterator[Callable[[], None]]:
    """Hold the one application of a report while it runs; call what it gives once the plan has ended.

    Raises InUse while another process applies it, and StalePlan where one has. An application that ended in an error
    gives the report free again; one that was killed does not, because nobody knows how far it got.
    """
    wanted = [item for item in preconditions if item.get("kind") == KIND]
    if not wanted:
        yield lambda: None
        return
    import secrets  # here, with the ledger: a dry run, which only reads the mark, does without them

    from .ledger import now
    from .state import locked

    path = _file(plan_id, state_dir)
    with ExitStack() as held:
        try:
            held.enter_context(locked(path, timeout_s=0))
        except InUse:
            raise InUse("the report is being applied by another process", hint="wait until it has ended") from None
        words = _since(wanted[0], plan_id, state_dir)
        if words:
            raise StalePlan(
                f"the report no longer holds: {words}", hint="make a fresh one with `--dry-run`", failed=[words]
            )
        before = _mark(path)
        mark = {"mark": secrets.token_hex(8), "time": now(), "ended": False}
        _write(path, mark)
        try:
            yield lambda: _write(path, mark | {"ended": True})
        except Exception:
            path.unlink() if before is None else _write(path, before)
            raise


def _since(item: Mapping[str, Any], plan_id: str, state_dir: str | Path) -> str | None:
    mark = _mark(_file(plan_id, state_dir))
    if (None if mark is None else mark["mark"]) == item.get("last"):
        return None
    if mark is None:
        return "the plan's applications were forgotten since"
    ended = "was applied already" if mark.get("ended") else "was applied already, and interrupted"
    return f"it {ended} ({mark.get('time')})"


def _file(plan_id: str, state_dir: str | Path) -> Path:
    return Path(state_dir) / "applied" / f"{plan_id.rpartition(':')[2]}.json"


def _mark(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) and isinstance(raw.get("mark"), str) else None


def _write(path: Path, mark: dict[str, Any]) -> None:
    from .state import write_atomically

    write_atomically(path, json.dumps(mark).encode() + b"\n", mode=0o600)
