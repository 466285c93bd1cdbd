"""What can be said of a step before anything runs, and the list of all faults found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import define, field, frozen

from ...errors import InvalidPlan, NotFound
from ..plans import COMMANDS
from .expect import ExpectFault, compile_expectations, compile_path
from .nodes import Node, Path, Place, json_path, path_of
from .steps import Step, condition_of, has_unknown
from .variables import UNKNOWN, VariableFault, secrets_of, substitute

Find = Callable[[], Node]
"""Gives the node of a step; called only for a fault, as a file's nodes take far more memory than its values."""
SHOWN_FAULTS = 3
MOST_ITERATIONS = 10_000
"""Up to how many items of a list that is known every resulting plan is checked beforehand."""
NOT_IN_FILES = {
    "serve": "a server has no end: a step can only show what it would do, with `dry_run: true`",
    "replay": "a plan file runs no other one: write `include`",
}


@frozen
class Fault:
    """One fault of a file; `missing` says that the file is not there."""

    place: Place
    path: str
    message: str
    missing: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The fault as `data["problems"]` carries it."""
        place = self.place
        return {
            "file": place.file,
            "line": place.line,
            "column": place.column,
            "path": self.path,
            "message": self.message,
        }


@define
class Report:
    """Every fault found so far."""

    faults: list[Fault] = field(factory=list)

    def add(self, place: Place, path: str, message: str, *, missing: bool = False) -> None:
        """Note a fault, once."""
        fault = Fault(place, path, message, missing)
        if fault not in self.faults[-20:]:
            self.faults.append(fault)

    def add_at(self, file: str, root: Node, path: Path, message: str) -> None:
        """Note a fault at a path of a document."""
        node = root.key_at(path) if message.startswith("unknown field") else root.at(path)
        self.add(Place(file, node.line, node.column), json_path(path), message)

    def raise_if_faulty(self) -> None:
        """Raise what all faults together mean: InvalidPlan, or NotFound where files are missing and nothing else."""
        if not self.faults:
            return
        faults = sorted(self.faults, key=lambda fault: fault.place)
        message = "; ".join(f"{fault.place}: {fault.message}" for fault in faults[:SHOWN_FAULTS])
        if len(faults) > SHOWN_FAULTS:
            message += f" (and {len(faults) - SHOWN_FAULTS} more)"
        listed = [fault.as_dict() for fault in faults]
        if all(fault.missing for fault in faults):
            raise NotFound("; ".join(fault.message for fault in faults), problems=listed)
        raise InvalidPlan(message, param=faults[0].path, problems=listed)


def check_step(step: Step, node: Find, captured: Mapping[str, Any], report: Report) -> None:
    """Note every fault of a step; `node` finds it where it stands, `captured` is what earlier steps capture."""
    command = step.plan.get("command")
    if isinstance(command, str) and command in NOT_IN_FILES and not step.dry_run:
        _note(step, node, ("plan", "command"), NOT_IN_FILES[command], report)
    for name, path in step.capture.items():
        _check_capture(step, node, name, path, report)
    try:
        scope = step.variables.values(captured)
    except VariableFault as fault:
        _note(step, node, (), str(fault), report)
        return
    items = list(_items(step, node, scope, report))
    for item in items:
        before = len(report.faults)
        _check_bound(step, node, {**scope, **item}, report)
        if len(report.faults) > before:
            break  # the next item would say the same again


def _check_bound(step: Step, node: Find, scope: Mapping[str, Any], report: Report) -> None:
    """Check everything of a step that its variables reach into."""
    _substituted(step, node, ("name",), step.name, scope, report)
    condition = _substituted(step, node, ("if",), step.if_, scope, report)
    if isinstance(condition, Mapping):
        _check_expectation(step, node, ("if",), condition_of(condition), report)
    expect = _substituted(step, node, ("expect",), step.expect, scope, report)
    if isinstance(expect, Mapping):
        _check_expectation(step, node, ("expect",), expect, report)
    until = step.retry.until if step.retry is not None else None
    until = _substituted(step, node, ("retry", "until"), until, scope, report)
    if isinstance(until, Mapping):
        _check_expectation(step, node, ("retry", "until"), until, report)
    plan = _substituted(step, node, ("plan",), step.plan, scope, report)
    if isinstance(plan, Mapping):
        _check_plan(step, node, dict(plan), report, secrets_of(scope))


def _check_plan(step: Step, node: Find, plan: dict[str, Any], report: Report, secrets: frozenset[str]) -> None:
    """Check a plan; fields that only running can fill count as there."""
    from ..codec import load_plan
    from .variables import redact

    later = {name for name, value in plan.items() if has_unknown(value)}
    known = {name: value for name, value in plan.items() if name not in later}
    if "command" in later:
        return
    try:
        load_plan(known)
    except InvalidPlan as error:
        for problem in error.data["problems"]:
            path, message = problem["path"], redact(problem["message"], secrets)
            if not _is_about(message, later):
                _note(step, node, ("plan", *path_of(path)), message, report)
        if later:
            _check_names(step, node, plan, report)


def _is_about(message: str, later: set[str]) -> bool:
    return any(message == f"{name!r} is a required property" for name in later)


def _check_names(step: Step, node: Find, plan: Mapping[str, Any], report: Report) -> None:
    """Names of fields whose values are not known yet."""
    from ...schemas import load_schema

    command = plan.get("command")
    if command not in COMMANDS:
        return
    fields = load_schema(f"plan.{command}")["properties"]
    for name, value in plan.items():
        if name not in fields and has_unknown(value):
            _note(step, node, ("plan", name), f"unknown field `{name}`", report)


def _check_expectation(step: Step, node: Find, path: Path, expect: Mapping[str, Any], report: Report) -> None:
    try:
        compile_expectations({key: value for key, value in expect.items() if not has_unknown(value)})
    except ExpectFault as fault:
        above = node().at(path)
        steps = tuple(key if above.child(key) is not None else key.removeprefix("$.") for key in fault.path)
        _note(step, node, (*path, *steps), fault.message, report)


def _check_capture(step: Step, node: Find, name: str, path: str, report: Report) -> None:
    if not name.isidentifier():
        _note(step, node, ("capture", name), f"`{name}` is no name of a variable", report)
    try:
        compile_path(path)
    except ExpectFault as fault:
        _note(step, node, ("capture", name), fault.message, report)


def _items(step: Step, node: Find, scope: Mapping[str, Any], report: Report) -> Iterator[dict[str, Any]]:
    """The variables of each run of a step, with UNKNOWN where the list itself is not known."""
    from itertools import islice, product

    if step.for_each is None:
        yield {}
        return
    found = _substituted(step, node, ("for_each",), step.for_each, scope, report)
    if found is None:
        return
    lists = found if isinstance(found, Mapping) else {"item": found}
    sound = {name: _checked_list(step, node, items, report) for name, items in lists.items()}
    for position, combination in enumerate(islice(product(*sound.values()), MOST_ITERATIONS)):
        yield {**dict(zip(sound, combination, strict=True)), "index": position}


def _checked_list(step: Step, node: Find, items: Any, report: Report) -> list[Any]:
    if isinstance(items, list):
        return items
    if items is not UNKNOWN:
        _note(step, node, ("for_each",), "`for_each` takes a list, or lists by name", report)
        return []
    return [UNKNOWN]


def _substituted(step: Step, node: Find, path: Path, value: Any, scope: Mapping[str, Any], report: Report) -> Any:
    """The value with its variables in place; None, and a fault at the very text, where one is not known."""
    if value is None:
        return None
    try:
        return substitute(value, scope)
    except VariableFault:
        for inner, text in _leaves(value, path):
            try:
                substitute(text, scope)
            except VariableFault as fault:
                _note(step, node, inner, str(fault), report)
        return None


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping) and "$secret" not in value:
        for key, item in value.items():
            yield (*path, key), key
            yield from _leaves(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _leaves(item, (*path, position))
    else:
        yield path, value


def _note(step: Step, node: Find, path: Path, message: str, report: Report) -> None:
    at = node().key_at(path) if message.startswith("unknown field") else node().at(path)
    report.add(Place(step.place.file, at.line, at.column), json_path((*step.node_path, *path)), message)
