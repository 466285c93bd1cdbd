"""`--update`: what came out takes the place of what was expected, in the files, every other character kept.

Only plain values (`"$.result.x": 3`, `equals`) and whole outcomes (`recorded`) are recordings; a bound such as `<=` or
a pattern is a rule, which a replay must keep. So is a value with a variable in it, and what every iteration of a step
shares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from ...errors import BadInput, InUse, TimedOut
from ...planner.files.expect import OUTCOME, ExpectFault, is_path, select
from ...planner.files.rewrite import rewrite
from ...planner.files.steps import Step
from ...planner.files.texts import TextFault, looks_like_json, read_text
from ...planner.files.variables import references
from ..state import write_atomically
from .recorded import renewed
from .step import Trial, judge

Path_ = tuple[str | int, ...]
EQUALS = ("equals", "==")
BOM = "\ufeff".encode()
"""The mark some editors put before a text; reading takes it away."""


@define
class Updates:
    """New values by file and place, gathered while steps run and written at the end."""

    digests: dict[str, str] = field(factory=dict)
    edits: dict[str, dict[Path_, Any]] = field(factory=dict)

    def watch(self, file: str) -> None:
        """Remember what the file holds now: one that somebody edits meanwhile is not written."""
        self.digests[file] = digest_of(read_text(file))

    def offer(self, step: Step, trial: Trial) -> None:
        """Take over what came out where that makes the step hold; its problems are then gone."""
        bound, outcome = trial.bound, trial.outcome
        if bound is None or outcome is None or step.for_each is not None:
            return
        if step.expect is None and trial.new_lock is None:
            return
        if outcome.error is not None and outcome.error["code"] == TimedOut.code:
            return
        try:
            changes = list(_changes(step.expect or {}, outcome.as_dict()))
        except ExpectFault:
            return
        trial.problems = judge(evolve(bound, expect=_with_changes(bound.expect or {}, changes)), outcome)
        if trial.problems:
            return
        edits = self.edits.setdefault(step.place.file, {})
        edits.update({(*step.node_path, "expect", *path): value for path, value in changes})
        if step.recorded is not None and trial.new_lock is not None:
            edits[(*step.node_path, "recorded")] = renewed(bound.shown, step.recorded, outcome, trial.new_lock)

    def write(self, file: str) -> None:
        """Write one file, as a whole or not at all. Raises InUse where it was edited, BadInput where one of its values
        cannot be changed for itself, and OSError."""
        text = read_text(file)
        if self.digests.get(file, digest_of(text)) != digest_of(text):
            raise InUse(f"`{file}` was changed while it was replayed", hint="replay it again with `--update`")
        try:
            content = rewrite(text, self.edits[file], is_json=looks_like_json(file, text))
        except TextFault as fault:
            raise BadInput(f"`{file}` is not updated: {file}:{fault.line}:{fault.column}: {fault.message}") from None
        mark = BOM if Path(file).read_bytes().startswith(BOM) else b""
        write_atomically(Path(file), mark + content.encode("utf-8"))


def digest_of(text: str) -> str:
    """A name for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _changes(expect: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[tuple[Path_, Any]]:
    """The recorded values that differ from what came out, by their place within the expectation."""
    for key, wanted in expect.items():
        path = key if is_path(key) else f"$.{key}" if key in OUTCOME else None
        if path is None or any(True for _ in references(wanted)):
            continue
        operator = next((name for name in EQUALS if isinstance(wanted, Mapping) and name in wanted), None)
        if isinstance(wanted, Mapping) and operator is None:
            continue
        recorded = wanted if operator is None else wanted[operator]
        found = select(path, document)
        if len(found) == 1 and (found[0] != recorded or type(found[0]) is not type(recorded)):
            value = {"equals": found[0]} if operator is None and isinstance(found[0], dict) else found[0]
            yield ((key,) if operator is None else (key, operator)), value


def _with_changes(expect: Mapping[str, Any], changes: list[tuple[Path_, Any]]) -> dict[str, Any]:
    changed = dict(expect)
    for path, value in changes:
        key = str(path[0])
        changed[key] = value if len(path) == 1 else {**changed[key], path[1]: value}
    return changed
