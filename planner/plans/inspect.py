"""The plans that look at plans and schemas and run nothing: `explain`, `plan diff|validate|id`, `schema`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, argument, option

FILE = "Plan, report or plan file (JSON or YAML); `-` reads standard input"
VAR = "Variable of the plan files as `name=value` (may be given several times)"
VARS_FILE = "YAML or JSON file of variables"


@frozen(kw_only=True)
class Explain:
    """Show a plan as a command line, as `curl`, as Python, and its report."""

    command: ClassVar[Literal["explain"]] = "explain"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = False

    target: tuple[str, ...] = argument(
        help="A plan, report or plan file, or `--` and the words of a command line",
        min_length=1,
        client_path=True,
        example="load.json",
    )
    var: tuple[str, ...] = option((), help=VAR)
    vars_file: str | None = option(None, help=VARS_FILE, min_length=1, client_path=True)


@frozen(kw_only=True)
class PlanDiff:
    """Compare two plans, reports or plan files; exit code 1 where they differ."""

    command: ClassVar[Literal["plan.diff"]] = "plan.diff"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = False

    a: str = argument(help=FILE, min_length=1, client_path=True, example="before.json")
    b: str = argument(help=FILE, min_length=1, client_path=True, example="after.json")
    var: tuple[str, ...] = option((), help=VAR)
    vars_file: str | None = option(None, help=VARS_FILE, min_length=1, client_path=True)


@frozen(kw_only=True)
class PlanValidate:
    """Check plans, reports and plan files, and show every fault with its place."""

    command: ClassVar[Literal["plan.validate"]] = "plan.validate"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = False

    files: tuple[str, ...] = argument(help=FILE, min_length=1, client_path=True, example="tour.plan.yaml")
    var: tuple[str, ...] = option((), help=VAR)
    vars_file: str | None = option(None, help=VARS_FILE, min_length=1, client_path=True)


@frozen(kw_only=True)
class PlanId:
    """Print the id of a plan, or of each step of a plan file."""

    command: ClassVar[Literal["plan.id"]] = "plan.id"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = False

    file: str = argument(help=FILE, min_length=1, client_path=True, example="load.json")
    var: tuple[str, ...] = option((), help=VAR)
    vars_file: str | None = option(None, help=VARS_FILE, min_length=1, client_path=True)


@frozen(kw_only=True)
class Schema:
    """Print a published JSON Schema, or the names of all."""

    command: ClassVar[Literal["schema"]] = "schema"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = True

    name: str | None = argument(None, help="Name of a schema, such as `plan-file`", min_length=1, example="plan-file")
