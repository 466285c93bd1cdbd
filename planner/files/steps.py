"""Plan files as they run: steps with their variables, and each step as the plan it means once those are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from attrs import define, field, frozen

from ...errors import InvalidPlan
from .expect import ExpectFault, holds, is_path
from .nodes import Place
from .variables import UNKNOWN, Secret, VariableFault, redact, secrets_of, settle, substitute


@define(eq=False)
class Variables:
    """The variables that a file's steps see: its own block over what `outer` says.

    `outer` is another such block where the file is included. `strong` holds what was given from outside for the
    whole run, and wins over the block.
    """

    given: Mapping[str, Any] = field(factory=dict)
    outer: Variables | None = None
    strong: Mapping[str, Any] = field(factory=dict)
    env: Mapping[str, str] = field(factory=dict)
    _settled: dict[str, Any] | None = None
    _secrets: frozenset[str] = frozenset()

    def values(self, captured: Mapping[str, Any]) -> dict[str, Any]:
        """Every variable with its value, given what was captured so far. Raises VariableFault."""
        if self._settled is not None:
            return {**self._settled, **captured}
        above = self.outer.values(captured) if self.outer is not None else {}
        around = {**above, **captured, **self.strong}
        own = settle({name: raw for name, raw in self.given.items() if name not in self.strong}, around, self.env)
        settled = {**above, **own, **self.strong}
        self._secrets |= secrets_of(settled)
        if not _depends(self.given, captured):
            alone = self.outer is None or self.outer._settled is not None
            self._settled = settled if alone else None
        return {**settled, **captured}

    def secrets(self) -> frozenset[str]:
        """The secret values among the variables, to be hidden wherever something is shown."""
        return self._secrets | self.outer.secrets() if self.outer is not None else self._secrets


@frozen(kw_only=True)
class Retry:
    """How often a step is tried again; `until` None means until what is expected holds."""

    times: int = 1
    interval_s: float = 1.0
    until: Mapping[str, Any] | None = None


@frozen(kw_only=True, eq=False)
class Step:
    """One step of a plan file, with the file's defaults filled in and its variables still as references.

    `index` counts from 1 over all steps of the file, those of included files too. `place` is where it stands;
    `node_path` is its path within the document of that file, as `(list name, position)`.
    """

    index: int
    name: str
    plan: Mapping[str, Any]
    place: Place
    node_path: tuple[str | int, ...]
    variables: Variables
    if_: Any = True
    for_each: Any = None
    expect: Mapping[str, Any] | None = None
    capture: Mapping[str, str] = field(factory=dict)
    retry: Retry | None = None
    timeout_s: float | None = None
    continue_on_error: bool = False
    dry_run: bool = False
    tags: tuple[str, ...] = ()
    recorded: Mapping[str, Any] | None = None


@frozen(kw_only=True, eq=False)
class PlanFile:
    """A plan file that was read and checked. `source` names the file; `lock` is as written; `digest` stands for its
    text, that of the files it includes, and the variables that were given.

    A step is made anew each time it is asked for, so that a file of many steps costs little while it runs.
    """

    source: str
    name: str
    format_version: str
    steps: Sequence[Step]
    finally_: Sequence[Step] = ()
    lock: Mapping[str, Any] | None = None
    variables: Variables = field(factory=Variables)
    digest: str = ""


@frozen(kw_only=True, eq=False)
class BoundStep:
    """A step with its variables in place: what runs, and what is expected of it.

    `plan` may hold secret values and is for running only; `shown` and everything that is printed, kept or hashed
    goes through `redact` with `secrets`.
    """

    name: str
    plan: dict[str, Any]
    shown: dict[str, Any]
    expect: dict[str, Any] | None = None
    until: dict[str, Any] | None = None
    secrets: frozenset[str] = frozenset()


def iterations(step: Step, captured: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The variables of each run of a step: one empty set, or one set for each item of `for_each`.

    Raises InvalidPlan with the step's place.
    """
    if step.for_each is None:
        yield {}
        return
    try:
        found = substitute(step.for_each, step.variables.values(captured))
    except VariableFault as fault:
        raise fault_of(step, str(fault), ".for_each") from None
    if isinstance(found, Mapping):
        lists = {name: _list(step, items) for name, items in found.items()}
        for position, combination in enumerate(product(*lists.values())):
            yield {**dict(zip(lists, combination, strict=True)), "index": position}
        return
    for position, item in enumerate(_list(step, found)):
        yield {"item": item, "index": position}


def applies(step: Step, captured: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Whether the `if` of a step lets it run. Raises InvalidPlan with the step's place."""
    if step.if_ is True:
        return True
    try:
        scope = {**step.variables.values(captured), **item}
        condition = substitute(step.if_, scope)
        if isinstance(condition, Mapping):
            return holds(condition_of(condition), _values(scope))
    except (VariableFault, ExpectFault) as fault:
        raise fault_of(step, str(fault), ".if") from None
    return is_true(condition)


def bind(step: Step, captured: Mapping[str, Any], item: Mapping[str, Any]) -> BoundStep:
    """The step with its variables in place. Raises InvalidPlan with the step's place."""
    part = ""
    try:
        scope = {**step.variables.values(captured), **item}
        secrets = step.variables.secrets()
        part = ".name"
        name = substitute(step.name, scope)
        part = ".plan"
        plan = substitute(step.plan, scope)
        part = ".expect"
        expect = None if step.expect is None else substitute(step.expect, scope)
        part = ".retry.until"
        until = None if step.retry is None or step.retry.until is None else substitute(step.retry.until, scope)
    except VariableFault as fault:
        raise fault_of(step, str(fault), part) from None
    shown = redact(plan, secrets)
    return BoundStep(
        name=redact(str(name), secrets), plan=plan, shown=shown, expect=expect, until=until, secrets=secrets
    )


def condition_of(condition: Mapping[str, Any]) -> dict[str, Any]:
    """A condition over variables as checks: a plain name means the variable."""
    return {key if is_path(key) or not key.isidentifier() else f"$.{key}": value for key, value in condition.items()}


def is_true(value: Any) -> bool:
    """Whether a value counts as true: everything but false, null, 0, an empty text, list or object, and the words
    `false`, `no`, `off` and `0`."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "false", "no", "off", "0")
    return bool(value)


def fault_of(step: Step, message: str, part: str = "") -> InvalidPlan:
    """An error at a step, with its place."""
    place = step.place
    problem = {"file": place.file, "line": place.line, "column": place.column, "path": f"${part}", "message": message}
    return InvalidPlan(f"{place}: {message}", problems=[problem], param=f"${part}")


def _list(step: Step, found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise fault_of(step, "`for_each` takes a list, or lists by name", ".for_each")
    return found


def _values(scope: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Secret) else value for name, value in scope.items()}


def _depends(given: Mapping[str, Any], captured: Mapping[str, Any]) -> bool:
    """Whether a block may mean something else once more is captured."""
    from .variables import references

    names = set(captured)
    return any(reference.split(".")[0].split("[")[0] in names for reference in references(given))


def has_unknown(value: Any) -> bool:
    """Whether only running can tell the value, or a part of it."""
    if value is UNKNOWN:
        return True
    if isinstance(value, Mapping):
        return any(has_unknown(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(has_unknown(item) for item in value)
