"""The progress bar on an interactive stderr; the only user of rich."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from .events import Progress as Step
from .terminal import printable


class Bar:
    """One line that shows the latest step; gone when closed."""

    def __init__(self, stream: TextIO) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
        self._progress = Progress(*columns, console=Console(file=stream), transient=True)
        self._task: TaskID | None = None
        self._progress.start()

    def show(self, step: Step) -> None:
        """Move the bar; a step without a total pulses."""
        description = printable(f"{step.stage} {step.message}".strip())
        if self._task is None:
            self._task = self._progress.add_task(description, total=None)
        self._progress.update(self._task, description=description, total=step.total, completed=step.current or 0)

    def close(self) -> None:
        """Take the bar off the screen."""
        self._progress.stop()
