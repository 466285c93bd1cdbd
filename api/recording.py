"""What `serve --record` and `serve --playback` need before the server starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput

if TYPE_CHECKING:
    from ..executors.context import Context
    from ..executors.playback import Playback
    from ..executors.recorder import Recorder
    from ..planner.plans.serve import Serve
    from .server import WriteLog


def check_recording(plan: Serve) -> None:
    """Raise BadInput for what a playback has no use for."""
    for name in ("model", "record"):
        if plan.playback and getattr(plan, name) is not None:
            raise BadInput(f"`--playback` answers without a model, so `--{name}` has no place beside it", param=name)


def open_recorder(plan: Serve, write_log: WriteLog) -> Recorder | None:
    """What `--record` asks for. Raises BadInput where the folder cannot be written."""
    if plan.record is None:
        return None
    from ..executors.recorder import Recorder

    try:
        return Recorder(
            Path(plan.record).expanduser(),
            max_bytes=plan.record_max_bytes,
            max_files=plan.record_max_files,
            log=lambda event, fields: write_log("error", event, fields),
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"the folder `{plan.record}` cannot be written: {reason}", param="record") from None


def open_playback(plan: Serve, ctx: Context) -> Playback | None:
    """What `--playback` asks for; blocking. Raises NotFound, and BadInput with every fault of the files."""
    if not plan.playback:
        return None
    from ..executors.playback import load_playback

    return load_playback(plan.playback, ctx, pace=plan.playback_pace)
