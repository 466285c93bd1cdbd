"""`localllm apply`: run a saved plan, or the plan of a saved report whose preconditions still hold."""

from __future__ import annotations

import json
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from ..errors import BadInput, NotFound, PayloadTooLarge, StalePlan, Unsupported
from ..planner.codec import dump_plan, load_plan
from ..planner.identity import plan_id
from ..planner.report import FORMAT_VERSION, Facts
from .applied import claim, failed_applied
from .events import Record, Result
from .ledger import Actor
from .preconditions import failed_locally, failed_on_server
from .preview import preview_of, previewed
from .threads import in_daemon_thread

if TYPE_CHECKING:
    from ..planner.plan_union import CommandPlan
    from ..planner.plans.apply import Apply
    from .context import Context
    from .events import Events

LARGEST_FILE_BYTES = 16 * 1024 * 1024


@frozen(kw_only=True)
class Saved:
    """What a file holds: a plan, and the preconditions where it came as a report."""

    plan: CommandPlan
    plan_id: str
    preconditions: tuple[dict[str, Any], ...] = ()


def preview_apply(plan: Apply, ctx: Context) -> Facts:
    """The facts of the saved plan as they are now."""
    return preview_saved(plan, ctx)[1]


def preview_saved(plan: Apply, ctx: Context) -> tuple[CommandPlan, Facts]:
    """The saved plan and its facts as they are now: a file is one of the doors, so its report is that of its plan.

    A stale report is a warning here, and refused when it runs.
    """
    from .dispatch import executor_of

    saved = read_saved(plan.file)
    facts_of = preview_of(executor_of(saved.plan, ctx))
    if facts_of is None:
        raise Unsupported(f"`{saved.plan.command}` cannot do a dry run")
    facts = facts_of(saved.plan, ctx)
    failed = failed_locally(saved.preconditions, ctx)
    failed += failed_applied(saved.preconditions, saved.plan_id, ctx.settings.state_dir)
    stale = tuple(f"would be refused: {reason}" for reason in failed)
    facts = evolve(
        facts,
        effects=saved.plan.effects if facts.effects is None else facts.effects,
        where=saved.plan.where if facts.where is None else facts.where,
        warnings=(*stale, *facts.warnings),
    )
    return saved.plan, facts


@previewed(preview_apply)
async def apply(plan: Apply, ctx: Context) -> Events:
    """A record that names the saved plan, then its events.

    Raises StalePlan, naming what has changed, before anything runs. The report of a changing plan is good for one
    application: a second one is refused, also at the same time.
    """
    from .dispatch import dispatch

    saved = await in_daemon_thread(read_saved, plan.file)
    failed = failed_locally(saved.preconditions, ctx) + await failed_on_server(saved.preconditions, ctx)
    if failed:
        failed = failed_applied(saved.preconditions, saved.plan_id, ctx.settings.state_dir) + failed
        raise StalePlan(
            f"the report no longer holds: {failed[0]}{f' (and {len(failed) - 1} more)' if len(failed) > 1 else ''}",
            hint="make a fresh one with `--dry-run`",
            failed=failed,
        )
    with claim(saved.plan_id, saved.preconditions, ctx.settings.state_dir) as done:
        yield Record(data={"applying": saved.plan.command, "plan_id": saved.plan_id})
        async with aclosing(dispatch(saved.plan, ctx, actor=Actor(door="apply"))) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Result):
                    done()  # before it is handed on: who reads a result may never come back for more
                yield event


def read_saved(file: str) -> Saved:
    """Read and check a file, `-` for standard input.

    Raises NotFound, BadInput for what is no JSON (with line and column), PayloadTooLarge above 16 MB before
    anything is parsed, InvalidPlan with every problem.
    """
    raw = _parse(file, _read(file))
    is_report = "plan" in raw and "command" not in raw
    if is_report:
        _check_version(file, raw.get("format_version"))
    inner = raw["plan"] if is_report else raw
    if not isinstance(inner, dict):
        raise BadInput(f"`{file}`: `plan` is not a plan")
    plan = load_plan(inner)
    if plan.command == "apply":
        raise Unsupported("a saved `apply` cannot be applied", hint=f"apply `{plan.file}` itself")
    found = plan_id(dump_plan(plan))
    if is_report and raw.get("plan_id", found) != found:
        raise BadInput(
            f"`{file}`: the plan is not the one its `plan_id` names", hint="it was edited after it was saved"
        )
    preconditions = raw.get("preconditions", []) if is_report else []
    if not isinstance(preconditions, list) or not all(isinstance(item, dict) for item in preconditions):
        raise BadInput(f"`{file}`: `preconditions` is not a list of objects")
    return Saved(plan=plan, plan_id=found, preconditions=tuple(preconditions))


def _read(file: str) -> bytes:
    """The file's bytes, bounded. Raises NotFound, BadInput, PayloadTooLarge."""
    try:
        if file == "-":
            content = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as source:
                content = source.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no file `{file}`") from None
    except OSError as error:
        raise BadInput(f"`{file}` cannot be read: {error.strerror or error}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise PayloadTooLarge(f"`{file}` is larger than 16 MB, which no plan is")
    return content


def _parse(file: str, content: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        hint = "`localllm replay` runs plan files" if file.endswith((".yaml", ".yml")) else None
        raise BadInput(f"{file}:{error.lineno}:{error.colno}: is not JSON: {error.msg}", hint=hint) from None
    except UnicodeDecodeError:
        raise BadInput(f"`{file}` is not UTF-8") from None
    except RecursionError:
        raise BadInput(f"`{file}` is nested too deeply") from None
    except ValueError as error:
        raise BadInput(f"`{file}`: {error}") from None
    if not isinstance(raw, dict):
        raise BadInput(f"`{file}` holds neither a plan nor a report")
    if "error" in raw and "command" not in raw:
        raise BadInput(f"`{file}` holds an error, not a plan")
    return raw


def _refuse_constant(name: str) -> None:
    raise ValueError(f"`{name}` is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key `{key}` is given twice")
        found[key] = value
    return found


def _check_version(file: str, version: Any) -> None:
    """Raise Unsupported for a report whose major version is not ours."""
    ours = FORMAT_VERSION.partition(".")[0]
    if not isinstance(version, str) or version.partition(".")[0] != ours:
        raise Unsupported(f"`{file}` has the format version `{version}`, this localllm reads {FORMAT_VERSION}")
