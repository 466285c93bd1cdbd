"""`serve --playback`: recorded requests are answered as they were, without a model.

A request is found by its plan's id, so it may come through another door or in another spelling. Where a recording holds
`***` for a secret, a request with any text in its place is the recorded one. The same request asked several times gets
its recorded answers in order, and the last one from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from attrs import define, field, frozen

from ..errors import BadInput, LocalLLMError, NotRecorded, error_from_dict
from ..planner.compare import Difference, differences
from ..planner.files.packed import Packed
from ..planner.files.recorded import ANSWERS
from .events import Result, event_from_dict
from .logbook import HIDDEN
from .recorder import plan_to_match

if TYPE_CHECKING:
    from ..planner.files.steps import PlanFile
    from ..planner.plan_union import CommandPlan
    from .context import Context
    from .events import Events

LIVE = frozenset({"status", "logs", "version"})
"""Plans about the server itself, which a playback answers like any other server."""
Pace = Literal["instant", "recorded"]
SHOWN_DIFFERENCES = 3
SHOWN_CHARACTERS = 80
MOST_MEASURED = 100
"""Candidates whose texts are compared letter by letter."""


@frozen(kw_only=True)
class Recorded:
    """One recorded request with its outcome."""

    name: str
    place: str
    plan: dict[str, Any]
    outcome: Mapping[str, Any]

    @property
    def hidden(self) -> bool:
        """Whether a secret was taken out of the plan."""
        return bool(self.outcome.get("hidden"))


@define
class Playback:
    """Recorded requests by their plans' ids; `models` are the names they asked for and were answered by.

    All of them are held packed, the outcomes apart from the rest, and unpacked while somebody asks for one.
    """

    pace: Pace = "instant"
    models: dict[str, int] = field(factory=dict)
    """Each with the time of its first answer, in seconds since 1970."""
    _known: dict[str, list[int]] = field(factory=dict)
    """Where each lies among the packed."""
    _hidden: dict[str, None] = field(factory=dict)
    """The ids of plans that a secret was taken out of."""
    _requests: Packed = field(factory=Packed)
    _outcomes: Packed = field(factory=Packed)
    _asked: dict[str, int] = field(factory=dict)
    """How often each was asked for."""

    @property
    def count(self) -> int:
        """How many requests are recorded."""
        return sum(map(len, self._known.values()))

    def add(self, recorded: Recorded) -> None:
        """Take in one request."""
        from ..planner.identity import plan_id

        key = plan_id(recorded.plan)
        if key not in self._known and recorded.hidden:
            self._hidden[key] = None
        self._known.setdefault(key, []).append(len(self._requests))
        self._requests.add({"name": recorded.name, "place": recorded.place, "plan": recorded.plan}, 0, 0)
        self._outcomes.add(dict(recorded.outcome), 0, 0)
        if recorded.plan["command"] not in ANSWERS:
            return
        result = recorded.outcome.get("result") or {}
        for name in dict.fromkeys(filter(None, [result.get("model"), recorded.plan.get("model")])):
            self.models.setdefault(str(name), int(result.get("created") or 0))

    def answers(self, plan: CommandPlan) -> bool:
        """Whether the plan is for the recording to answer, and not for the server itself."""
        return plan.command not in LIVE

    async def played(self, plan: CommandPlan, ctx: Context, secrets: tuple[str, ...] = ()) -> Events:
        """The recorded events and result, or error; `secrets` are what whoever asks wants to be kept nowhere.

        Raises NotRecorded with the nearest request.
        """
        recorded = self._find(plan_to_match(plan, ctx, secrets))
        outcome = recorded.outcome
        async for raw in self._paced(outcome):
            yield event_from_dict(raw)
        if outcome.get("error") is not None:
            raise error_from_dict(dict(outcome["error"]))
        yield Result(data=dict(outcome.get("result") or {}), ok=bool(outcome.get("ok", True)))

    def _find(self, raw: dict[str, Any]) -> Recorded:
        from ..planner.identity import plan_id

        key = plan_id(raw)
        if key not in self._known:
            plans = ((name, self._requests.value(self._known[name][0])["plan"]) for name in self._hidden)
            key = next((name for name, plan in plans if fits(plan, raw)), key)
        found = self._known.get(key)
        if found is None:
            raise self._unmatched(raw)
        at = self._asked.get(key, 0)
        self._asked[key] = at + 1
        position = found[min(at, len(found) - 1)]
        return Recorded(**self._requests.value(position), outcome=self._outcomes.value(position))

    async def _paced(self, outcome: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        events = outcome.get("events") or []
        times = outcome.get("times_ms") or []
        before = 0.0
        for position, raw in enumerate(events):
            if self.pace == "recorded" and position < len(times):
                await asyncio.sleep(max(0.0, times[position] - before) / 1000)
                before = times[position]
            yield raw

    def _unmatched(self, raw: Mapping[str, Any]) -> NotRecorded:
        command = raw["command"]
        near = self._nearest(raw)
        if near is None:
            return NotRecorded(f"no `{command}` request is recorded", hint="record one with `serve --record DIR`")
        position, found = near
        recorded = self._requests.value(position)
        told = "; ".join(_told(difference) for difference in found[:SHOWN_DIFFERENCES])
        more = f" (and {len(found) - SHOWN_DIFFERENCES} more)" if len(found) > SHOWN_DIFFERENCES else ""
        rows = [difference.as_dict() for difference in found[:20]]
        return NotRecorded(
            f"this request is not recorded; the nearest is `{recorded['name']}` at {recorded['place']}, which differs: "
            f"{told}{more}",
            hint="send what was recorded, or record it with `serve --record DIR`",
            nearest={**recorded, "differences": rows},
        )

    def _nearest(self, raw: Mapping[str, Any]) -> tuple[int, list[Difference]] | None:
        """Where the recorded request of the same command with the fewest and smallest differences lies."""
        compared: list[tuple[int, list[Difference]]] = []
        for positions in self._known.values():
            plan = self._requests.value(positions[0])["plan"]
            if plan["command"] == raw["command"]:
                compared.append((positions[0], list(differences(plan, raw))))
        fewest = min((len(found) for _, found in compared), default=0)
        closest = [pair for pair in compared if len(pair[1]) == fewest][:MOST_MEASURED]
        return min(closest, key=lambda pair: sum(map(_distance, pair[1])), default=None)


def fits(recorded: Any, asked: Any) -> bool:
    """Whether a value is the recorded one where each `***` stands for any text that is not empty."""
    if isinstance(recorded, str):
        return _text_fits(recorded.split(HIDDEN), asked) if isinstance(asked, str) else False
    if isinstance(recorded, Mapping) and isinstance(asked, Mapping) and len(recorded) == len(asked):
        left = dict(asked)
        # plain names first: one of them is no candidate for a hidden one
        for name in sorted(recorded, key=lambda each: HIDDEN in each):
            found = [name] if name in left else [each for each in left if fits(name, each)]
            same = next((each for each in found if fits(recorded[name], left[each])), None)
            if same is None:
                return False
            del left[same]
        return True
    if isinstance(recorded, list) and isinstance(asked, list) and len(recorded) == len(asked):
        return all(map(fits, recorded, asked))
    return not next(differences(recorded, asked), None)


def _text_fits(parts: list[str], text: str) -> bool:
    """Whether the text is the parts in their order with something between each two."""
    first, *middle = parts
    if not middle:
        return first == text
    last = middle.pop()
    if not text.startswith(first):
        return False
    at = len(first)
    for part in middle:
        found = text.find(part, at + 1)
        if found < 0:
            return False
        at = found + len(part)
    return text.endswith(last) and len(text) - len(last) > at


def load_playback(files: Iterable[str], ctx: Context, *, pace: Pace = "instant") -> Playback:
    """The recorded steps of plan files. Blocking.

    Raises NotFound, InvalidPlan with every fault, and BadInput where nothing is recorded.
    """
    import os

    from ..planner.files.load import load_plan_files

    playback = Playback(pace=pace)
    names = list(files)
    for file in load_plan_files(names, env=os.environ):
        for recorded in _recorded_steps(file, ctx):
            playback.add(recorded)
    if not playback.count:
        raise BadInput(
            f"nothing is recorded in {', '.join(f'`{name}`' for name in names)}",
            hint="`localllm serve --record DIR` makes recordings",
            param="playback",
        )
    return playback


def _recorded_steps(file: PlanFile, ctx: Context) -> Iterable[Recorded]:
    from ..planner.codec import load_plan
    from ..planner.files.steps import bind

    for step in file.steps:
        if step.recorded is None:
            continue
        bound = bind(step, {}, {})
        try:
            plan = plan_to_match(load_plan(bound.plan), ctx)
        except LocalLLMError as fault:
            raise BadInput(f"{step.place}: {fault.message}", param="playback") from None
        yield Recorded(name=bound.name, place=str(step.place), plan=plan, outcome=step.recorded)


def _distance(difference: Difference) -> float:
    """How far two values are from each other, from 0 to 1."""
    before, after = difference.before, difference.after
    if not isinstance(before, str) or not isinstance(after, str):
        return 1.0
    from difflib import SequenceMatcher

    return 1.0 - SequenceMatcher(None, before[:500], after[:500], autojunk=False).ratio()


def _told(difference: Difference) -> str:
    row = difference.as_dict()
    before, after = (_shortened(row[side]) if side in row else "nothing" for side in ("before", "after"))
    return f"`{difference.path}` is {before} there and {after} here"


def _shortened(value: Any) -> str:
    import json

    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
