"""A report of a changing plan is good for one application: the mark that an application leaves, and the claim to it.

Reports hold no time and no random name, so that equal dry runs print equal bytes. What tells an applied one from a
fresh one is the mark of the last application of its plan, which a report carries as a precondition. Where there are too
many marks the oldest are forgotten, and with them every report of a plan that has no mark: such a report carries the
mark of the last forgetting, and no longer holds after the next, because its plan may be among the forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import InUse, StalePlan

KIND = "applied"
MOST_MARKS = 1000
"""Applied plans that are remembered before the older half is forgotten."""


def applied_precondition(plan_id: str, state_dir: str | Path) -> dict[str, Any]:
    """What a report says about earlier applications of its plan; only reads."""
    return {"kind": KIND, "last": _last(plan_id, state_dir)}


def failed_applied(preconditions: Iterable[Mapping[str, Any]], plan_id: str, state_dir: str | Path) -> list[str]:
    """A sentence where the plan was applied since the report was made."""
    return [words for item in preconditions if item.get("kind") == KIND and (words := _since(item, plan_id, state_dir))]


@contextmanager
def claim(
    plan_id: str, preconditions: Iterable[Mapping[str, Any]], state_dir: str | Path, *, most: int = MOST_MARKS
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

    path = _file(plan_id, state_dir)
    with _held(path):
        words = _since(wanted[0], plan_id, state_dir)
        if words:
            raise StalePlan(
                f"the report no longer holds: {words}", hint="make a fresh one with `--dry-run`", failed=[words]
            )
        before = _mark(path)
        mark = {"mark": secrets.token_hex(8), "time": now(), "ended": False}
        _write(path, mark)
        _forget_older(path.parent, most)
        try:
            yield lambda: _write(path, mark | {"ended": True})
        except Exception:
            path.unlink(missing_ok=True) if before is None else _write(path, before)
            raise


def _last(plan_id: str, state_dir: str | Path) -> str | None:
    """The mark of the plan's last application; without one that of the last forgetting, which it may be part of."""
    mark = _mark(_file(plan_id, state_dir)) or _mark(_forgetting(_folder(state_dir)))
    return None if mark is None else str(mark["mark"])


def _since(item: Mapping[str, Any], plan_id: str, state_dir: str | Path) -> str | None:
    if _last(plan_id, state_dir) == item.get("last"):
        return None
    mark = _mark(_file(plan_id, state_dir))
    if mark is None:
        return "so many plans were applied since that it is not known whether this one was"
    ended = "was applied already" if mark.get("ended") else "was applied already, and interrupted"
    return f"it {ended} ({mark.get('time')})"


def _forget_older(folder: Path, most: int) -> None:
    """Keep the newer half of the marks where there are too many.

    The mark of the forgetting is on the disk before the first goes, so a crash at any point makes no report good again.
    """
    times = {}
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):  # another process forgets it too, or its application failed
            times[path] = path.stat().st_mtime_ns
    if len(times) <= most:
        return
    import secrets

    _write(_forgetting(folder), {"mark": secrets.token_hex(8)})
    for path in sorted(times, key=lambda each: times[each])[: len(times) - most // 2]:
        # one that is being applied is left alone, and so is one that a process begins to apply meanwhile
        with suppress(InUse), _held(path):
            path.unlink(missing_ok=True)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold the mark of one plan. Raises InUse where another process does."""
    from .state import locked

    with ExitStack() as held:
        try:
            held.enter_context(locked(path, timeout_s=0, passing=True))
        except InUse:
            raise InUse("the report is being applied by another process", hint="wait until it has ended") from None
        yield


def _folder(state_dir: str | Path) -> Path:
    return Path(state_dir) / "applied"


def _file(plan_id: str, state_dir: str | Path) -> Path:
    return _folder(state_dir) / f"{plan_id.rpartition(':')[2]}.json"


def _forgetting(folder: Path) -> Path:
    return folder / "forgotten"


def _mark(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) and isinstance(raw.get("mark"), str) else None


def _write(path: Path, mark: dict[str, Any]) -> None:
    from .state import write_atomically

    write_atomically(path, json.dumps(mark).encode() + b"\n", mode=0o600)
