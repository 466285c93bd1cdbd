"""What a file holds that a person saved: one plan, a report with its plan, or a plan file with steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import frozen

from ...errors import InvalidPlan, LocalLLMError
from ..codec import dump_plan, load_plan
from .check import Report
from .load import load_plan_files, read_vars_file
from .nodes import Place, path_of
from .outline import read_outline
from .steps import PlanFile, bind, iterations
from .texts import TextFault, compose, looks_like_json, read_text
from .variables import VariableFault, from_flags

Kind = Literal["plan", "report", "plan-file"]


@frozen(kw_only=True)
class SavedPlan:
    """One plan of a file. `shown` is the whole plan as JSON with secrets hidden; None while something in it is only
    known once an earlier step has run, and `template` is then all there is."""

    name: str
    template: dict[str, Any]
    shown: dict[str, Any] | None = None


@frozen(kw_only=True)
class Saved:
    """A file that was read and checked; `document` is what it says, as JSON, where lists of steps are empty."""

    file: str
    kind: Kind
    document: dict[str, Any]
    plans: tuple[SavedPlan, ...]
    plan_file: PlanFile | None = None


def read_saved(
    files: Sequence[str], *, flags: Sequence[str] = (), vars_file: str | None = None, env: Mapping[str, str]
) -> list[Saved]:
    """Read and check files of any kind; `flags` holds `--var name=value`.

    Raises InvalidPlan with every fault of every file, NotFound where files are missing and nothing else is wrong.
    """
    given = given_variables(flags, vars_file)
    report = Report()
    found = [_read(file, given, env, report) for file in files]
    report.raise_if_faulty()
    return [saved for saved in found if saved is not None]


def given_variables(flags: Sequence[str], vars_file: str | None) -> dict[str, Any]:
    """The variables of `--vars-file` and `--var`, of which the latter win. Raises InvalidPlan for a faulty flag."""
    try:
        return {**(read_vars_file(vars_file) if vars_file else {}), **from_flags(list(flags))}
    except VariableFault as fault:
        problem = {"path": "$.var", "message": str(fault)}
        raise InvalidPlan(f"`--var`: {fault}", param="--var", problems=[problem]) from None


def kind_of(document: Any) -> Kind:
    """What a document is, by its keys."""
    if isinstance(document, Mapping) and "command" not in document:
        if "plan" in document:
            return "report"
        if {"steps", "finally", "format_version"} & set(document):
            return "plan-file"
    return "plan"


def _read(file: str, given: Mapping[str, Any], env: Mapping[str, str], report: Report) -> Saved | None:
    try:
        text = read_text(file)
        document = read_outline(text, is_json=looks_like_json(file, text)).document
    except TextFault as fault:
        report.add(Place(file, fault.line, fault.column), "$", fault.message)
        return None
    except LocalLLMError as error:
        if error.http_status == 413:
            raise
        report.add(Place(file), "$", error.message, missing=error.exit_code == 3)
        return None
    kind = kind_of(document)
    if kind == "plan-file":
        return _plan_file(file, text, document, given, env, report)
    return _single(file, text, document, kind, report)


def _single(file: str, text: str, document: Any, kind: Kind, report: Report) -> Saved | None:
    raw, above = (document["plan"], ("plan",)) if kind == "report" else (document, ())
    try:
        plan = load_plan(raw)
    except InvalidPlan as error:
        root = compose(text, is_json=looks_like_json(file, text))
        for problem in error.data["problems"]:
            report.add_at(file, root, (*above, *path_of(problem["path"])), problem["message"])
        return None
    dumped = dump_plan(plan)
    saved = SavedPlan(name=str(plan.command), template=dict(raw), shown=dumped)
    return Saved(file=file, kind=kind, document=document, plans=(saved,))


def _plan_file(
    file: str,
    text: str,
    document: dict[str, Any],
    given: Mapping[str, Any],
    env: Mapping[str, str],
    report: Report,
) -> Saved | None:
    try:
        (plan_file,) = load_plan_files([file], vars=given, env=env, texts={file: text})
    except InvalidPlan as error:
        for problem in error.data["problems"]:
            place = Place(problem["file"], problem["line"], problem["column"])
            report.add(place, problem["path"], problem["message"])
        return None
    plans = tuple(_steps(plan_file))
    return Saved(file=file, kind="plan-file", document=document, plans=plans, plan_file=plan_file)


def _steps(plan_file: PlanFile) -> list[SavedPlan]:
    """Every step once for each of its items, as far as that is known before anything runs."""
    found: list[SavedPlan] = []
    for step in (*plan_file.steps, *plan_file.finally_):
        try:
            for item in iterations(step, {}):
                bound = bind(step, {}, item)
                shown = dump_plan(load_plan(bound.shown))
                found.append(SavedPlan(name=bound.name, template=dict(step.plan), shown=shown))
        except InvalidPlan:
            # it needs what an earlier step captures
            found.append(SavedPlan(name=step.name, template=dict(step.plan)))
    return found
