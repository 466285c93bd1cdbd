"""`serve --record`: every answered request becomes a step of a plan file, with its outcome, chunk for chunk.

The request's own task only collects its events. One thread does the rest: it takes secrets out, tells what the answer
depended on, and appends one line a request. A recording that cannot be written costs no answer.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..errors import InternalError, LocalLLMError
from ..planner.files.recorded import ANSWERS, sampling_of
from ..planner.files.recordings import LARGEST_STEP_BYTES, recording_head, recording_line
from .events import Delta, Event, Progress, Record, Result, event_to_dict
from .logbook import hidden, redacted

if TYPE_CHECKING:
    from ..planner.plan_union import CommandPlan
    from ..runtime.types import LoadedModel
    from .context import Context
    from .events import Events
    from .ledger import Actor

MOST_EVENTS = 100_000
MOST_WAITING = 1000
"""Requests that may wait to be written before further ones are lost."""
LAST_WORDS_S = 10.0
"""How long the end of the server waits for what is still to be written."""
_RECORDING = re.compile(r"recorded-([0-9]{8}-[0-9]{6})-([0-9]{4,})[.]plan[.]yaml")
"""The names that recordings are given: when their server began to record, and a number."""
UNRECORDED = ("auth.", "logs")
"""Plans whose results are secrets, or have no end."""

WriteLog = Callable[[str, dict[str, Any]], None]


@define(kw_only=True)
class Taken:
    """One request and what came of it, as the writer gets it."""

    plan: CommandPlan
    ctx: Context
    began: float
    at: float = field(factory=time.time)
    events: list[Event] = field(factory=list)
    times_ms: list[float] = field(factory=list)
    result: Result | None = None
    error: LocalLLMError | None = None
    duration_ms: float = 0.0
    loaded: LoadedModel | None = None
    given_secrets: tuple[str, ...] = ()
    """What whoever asked wants to be kept nowhere."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every text that must not be written."""
        return (*self.given_secrets, *_secrets(self.ctx))

    def take(self, event: Record | Delta) -> None:
        """Keep one event with its time."""
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
            self.times_ms.append(self._elapsed_ms())

    def end(self, *, result: Result | None = None, error: LocalLLMError | None = None) -> None:
        """The request is answered."""
        self.result, self.error = result, error
        self.duration_ms = self._elapsed_ms()
        if result is not None and self.plan.command in ANSWERS and "model" in result.data:
            from .loading import find_loaded

            # here and not by the writer: the runtime belongs to the event loop
            self.loaded = find_loaded(self.ctx, str(result.data["model"]))

    def _elapsed_ms(self) -> float:
        return round((time.monotonic() - self.began) * 1000, 3)


class Recorder:
    """Records into one folder; `close` writes what is left. `log` is told when writing begins to fail."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 4_000_000,
        max_files: int | None = None,
        log: WriteLog = lambda _event, _fields: None,
    ) -> None:
        """Raises OSError where the folder cannot be made or written."""
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied", str(folder))
        self.lost = 0
        """Requests that could not be written."""
        self._log = log
        self._files = _Files(folder, max_bytes, max_files)
        self._facts: dict[Any, dict[str, Any]] = {}
        self._waiting: queue.Queue[Taken | None] = queue.Queue(MOST_WAITING)
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    async def tapped(self, plan: CommandPlan, ctx: Context, events: Events, actor: Actor | None) -> Events:
        """The same events, kept as they pass. A request whose client left before its end is not recorded."""
        if not _is_recorded(plan, actor):
            async with aclosing(events) as running:  # type: ignore[type-var]
                async for event in running:
                    yield event
            return
        given = () if actor is None else actor.secrets
        taken = Taken(plan=plan, ctx=ctx, began=time.monotonic(), given_secrets=given)
        try:
            async with aclosing(events) as running:  # type: ignore[type-var]
                async for event in running:
                    if isinstance(event, Result):
                        # before it is handed on: who reads a result may never come back for more
                        taken.end(result=event)
                        self._hand_over(taken)
                    elif not isinstance(event, Progress):
                        taken.take(event)
                    yield event
        except LocalLLMError as error:
            taken.end(error=error)
            self._hand_over(taken)
            raise
        except Exception:
            taken.end(error=InternalError("the server failed on this request"))
            self._hand_over(taken)
            raise

    async def close(self) -> None:
        """Write what waits, then end."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._end)

    def _end(self) -> None:
        try:
            self._waiting.put(None, timeout=LAST_WORDS_S)
        except queue.Full:
            return
        self._thread.join(LAST_WORDS_S)

    def _hand_over(self, taken: Taken) -> None:
        try:
            self._waiting.put_nowait(taken)
        except queue.Full:
            self._lose("more requests wait to be recorded than may")

    # -- the writer's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._waiting.get()) is not None:
            try:
                self._files.append(self._step(taken))
                if self._waiting.empty():
                    self._files.sync()
                self._failing = False
            except Exception as fault:  # whatever it is, it costs this step and no answer
                self._lose(str(fault) or type(fault).__name__)
        self._files.close()

    def _lose(self, reason: str) -> None:
        self.lost += 1
        if not self._failing:
            self._log("recording_failed", {"reason": reason, "lost": self.lost})
        self._failing = True

    def _step(self, taken: Taken) -> dict[str, Any]:
        return recorded_step(taken, self._facts_of(taken))

    def _facts_of(self, taken: Taken) -> dict[str, Any]:
        """What an answer depended on besides its plan; hashed once for each load of a model."""
        if taken.plan.command not in ANSWERS or taken.result is None:
            return {}
        from .fingerprint import served_fingerprint

        model_id = str(taken.result.data.get("model"))
        key = (model_id, taken.loaded.loaded_at if taken.loaded is not None else None)
        if key not in self._facts:
            found = served_fingerprint(taken.ctx, model_id, taken.loaded)
            self._facts = {**dict(list(self._facts.items())[-20:]), key: found}
        return self._facts[key]


def recorded_step(taken: Taken, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The step that a request becomes; no secret is in it."""
    from ..planner.codec import dump_plan
    from ..planner.doors import short
    from ..planner.identity import plan_id

    plan, ctx = taken.plan, taken.ctx
    raw = plan_to_match(plan, ctx, taken.given_secrets)
    given = short(plan)
    shown = without_secrets(given, taken.secrets) if plan.command in ANSWERS else {name: raw[name] for name in given}
    step: dict[str, Any] = {"name": f"{plan.command} {_moment(taken.at)}", "plan": shown}
    outcome = _outcome(taken)
    if not outcome["ok"]:
        step["expect"] = {"ok": False, "exit_code": outcome["exit_code"]}
    lock: dict[str, Any] = {}
    if taken.result is not None and plan.command in ANSWERS:
        data = taken.result.data
        sampling = sampling_of(raw, data.get("seed"))
        lock = {"model": data.get("model"), **facts, "strict": raw["determinism"] == "strict", "sampling": sampling}
    recorded = {"plan_id": plan_id(raw), "at": _moment(taken.at), "duration_ms": taken.duration_ms, **outcome}
    if raw != dump_plan(plan):
        recorded["hidden"] = True  # a playback takes any text for each `***`: it cannot know what the secrets were
    return {**step, "recorded": recorded | ({"lock": lock} if lock else {})}


def plan_to_match(plan: CommandPlan, ctx: Context, secrets: tuple[str, ...] = ()) -> dict[str, Any]:
    """A plan as recordings hold it: every default filled in, every secret out. Equal requests give equal ones."""
    from ..planner.codec import dump_plan
    from .recording import plan_without_secrets

    raw = dump_plan(plan)
    secrets = (*secrets, *_secrets(ctx))
    if plan.command in ANSWERS:
        found: dict[str, Any] = without_secrets(raw, secrets)
        return found
    return plan_without_secrets(raw, ctx.settings, secrets)


def without_secrets(value: Any, secrets: tuple[str, ...]) -> Any:
    """The value with known secrets, and what looks like one, out of all its texts, which are not shortened."""
    if isinstance(value, str):
        return hidden(value, secrets)
    if isinstance(value, Mapping):
        return {hidden(str(key), secrets): without_secrets(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, secrets) for item in value]
    return value


def _outcome(taken: Taken) -> dict[str, Any]:
    """The outcome as a replay has it, with each event's time beside it."""
    secrets = taken.secrets
    events = [event_to_dict(event) for event in taken.events]
    if taken.error is not None:
        error = taken.error
        ending = {"ok": False, "exit_code": error.exit_code, "http_status": error.http_status, "result": None}
        return {**ending, "error": redacted(error.as_dict(), secrets), "events": without_secrets(events, secrets)}
    assert taken.result is not None
    ok, data = taken.result.ok, taken.result.data
    ending = {"ok": ok, "exit_code": 0 if ok else 1, "http_status": 200, "error": None}
    if taken.plan.command not in ANSWERS:
        return {**ending, "result": redacted(data, secrets), "events": redacted(events, secrets)}
    shown = without_secrets(data, secrets)
    if shown != data:
        # a secret may lie across several chunks, where none of them gives it away
        return {**ending, "result": shown, "events": _in_one_piece(shown), "merged": True}
    return {**ending, "result": shown, "events": events, "times_ms": taken.times_ms}


def _in_one_piece(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of an answer with all of each choice in one delta."""
    head = {name: result[name] for name in ("id", "created", "model", "seed") if name in result}
    events = [event_to_dict(Record(data=head))]
    for choice in result.get("choices", ()):
        index = choice["index"]
        message = choice.get("message") or {"content": choice.get("text")}
        delta = {name: value for name, value in message.items() if value is not None}
        events.append(event_to_dict(Delta(index=index, delta=delta, logprobs=choice.get("logprobs"))))
        events.append(event_to_dict(Delta(index=index, finish_reason=choice.get("finish_reason"))))
    return events


def _is_recorded(plan: CommandPlan, actor: Actor | None) -> bool:
    """Whether somebody asked for it from outside, and its answer may be kept."""
    return not plan.command.startswith(UNRECORDED) and (actor is not None or plan.command in ANSWERS)


def _secrets(ctx: Context) -> tuple[str, ...]:
    return (ctx.settings.api_key,) if ctx.settings.api_key else ()


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _oldest_first(folder: Path) -> list[Path]:
    """The recordings of a folder under the names that they were given."""
    named = [(found.groups(), path) for path in folder.iterdir() if (found := _RECORDING.fullmatch(path.name))]
    return [path for _, path in sorted(named, key=lambda each: (each[0][0], int(each[0][1])))]


class _Files:
    """The files of one recording, each up to a size, the newest of their folder up to a number; only the writer's
    thread uses it."""

    def __init__(self, folder: Path, max_bytes: int, max_files: int | None = None) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.max_files = max_files
        self.handle: int | None = None
        self.size = 0
        self.number = 0
        self.begun = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")

    def append(self, step: Mapping[str, Any]) -> None:
        """Write one step as a whole, or nothing of it. Raises OSError."""
        line = recording_line(step)
        if len(line) > LARGEST_STEP_BYTES:
            raise OSError(f"`{step['name']}` is larger than a plan file may be")
        if self.handle is None or self.size + len(line) > self.max_bytes:
            self._next()
        assert self.handle is not None
        try:
            written = os.write(self.handle, line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes fit")
        except OSError:
            os.ftruncate(self.handle, self.size)
            raise
        self.size += len(line)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        if self.handle is not None:
            os.fsync(self.handle)

    def close(self) -> None:
        """Close the file that is open."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def _next(self) -> None:
        """Begin the next file, under a name that no other server took."""
        self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        while self.handle is None:
            self.number += 1
            name = f"recorded-{self.begun}-{self.number:04}"
            try:
                self.handle = os.open(self.folder / f"{name}.plan.yaml", flags, 0o600)
            except FileExistsError:
                continue
            with suppress(OSError):  # some file systems know no locks
                fcntl.flock(self.handle, fcntl.LOCK_SH)  # while it grows no server takes it away
            self._begin(name)
        if self.max_files is not None:
            self._keep(self.max_files)

    def _begin(self, name: str) -> None:
        """Write the head of a new file; without it nobody could read the steps. Raises OSError, and no file stays."""
        assert self.handle is not None
        head = recording_head(name)
        try:
            written = os.write(self.handle, head)
            if written != len(head):
                raise OSError(f"only {written} of {len(head)} bytes fit")
        except OSError:
            self.close()
            (self.folder / f"{name}.plan.yaml").unlink(missing_ok=True)
            raise
        self.size = len(head)

    def _keep(self, most: int) -> None:
        """Remove the oldest recordings where the folder has more; those that a server writes stay, and other files."""
        for path in _oldest_first(self.folder)[:-most]:
            with suppress(OSError):
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(handle)
