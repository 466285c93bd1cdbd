"""`localllm plan lock`: write into a plan file what it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import BadInput
from ...planner.files.load import load_plan_files, read_document
from ...planner.files.rewrite import rewrite
from ...planner.files.texts import TextFault, looks_like_json
from ...planner.report import Facts
from ..events import Result
from ..preview import previewed
from ..threads import in_daemon_thread, in_thread
from .lock import models_of, new_lock

if TYPE_CHECKING:
    from ...planner.files.steps import PlanFile
    from ...planner.plans.replay import PlanLock
    from ..context import Context
    from ..events import Events


def preview_lock(plan: PlanLock, _ctx: Context) -> Facts:
    """Which models would be locked; their hashes take reading whole files, so they stay unknown."""
    file = _file(plan)
    return Facts(
        effects=("read", "update"),
        resolved={"file": plan.file, "models": list(plan.models) or models_of(file), "locked": bool(file.lock)},
        unknown=("the hashes, which are computed when the plan runs",),
    )


@previewed(preview_lock)
async def lock(plan: PlanLock, ctx: Context) -> Events:
    """Replace the lock of the file; everything else in it stays as it is."""
    file = await in_daemon_thread(_file, plan)
    fresh = await in_thread(new_lock, list(plan.models) or models_of(file), ctx)
    text, _ = read_document(plan.file)
    try:
        content = rewrite(text, {("lock",): fresh}, is_json=looks_like_json(plan.file, text))
    except TextFault as fault:
        raise BadInput(f"{plan.file}:{fault.line}:{fault.column}: {fault.message}", param="file") from None
    changed = content != text
    if changed:
        from ..state import write_atomically

        await in_thread(write_atomically, Path(plan.file), content.encode("utf-8"))
    yield Result(data={"file": plan.file, "lock": fresh, "changed": changed})


def _file(plan: PlanLock) -> PlanFile:
    import os

    if plan.file == "-":
        raise BadInput("standard input cannot be written", hint="name a file", param="file")
    (file,) = load_plan_files([plan.file], env=os.environ)
    return file
