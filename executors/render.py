"""Events to stdout and stderr, as text for people or JSON for programs, and to an exit code."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Literal, TextIO

from ..errors import LocalLLMError
from .events import Delta, Event, Progress, Record, Result, to_line
from .terminal import is_interactive, printable, printable_text, write

if TYPE_CHECKING:
    from .bar import Bar
    from .events import Events

CHANGES = frozenset({"create", "update", "delete"})
ENDLESS = frozenset({"logs", "serve"})
"""Commands whose records come without a known end, so that in JSON only lines can show them."""
SAID = frozenset({"note", "warning"})
"""Stages that are a word to the reader, and so stay on the screen where a bar would go."""
WOULD_CHANGE = 10
"""Exit code of a dry run with `--detailed-exitcode` where the plan would change something."""


class Renderer:
    """Shows one command's events; stdout gets the result and nothing else.

    JSON: one document, the result's data (or `{"error": …}`); with `stream` one event a line instead. Text: the
    command's own form, and an answer as it grows unless `stream` is False. `run` and `error` return the exit code.
    OSError of a closed or full stdout is left to the caller.
    """

    def __init__(
        self,
        command: str,
        *,
        output: Literal["text", "json"] = "text",
        stream: bool | None = None,
        dry_run: bool = False,
        detailed_exitcode: bool = False,
        verbosity: int = 0,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.command = command
        self.output = output
        self.stream = stream
        self.dry_run = dry_run
        self.detailed_exitcode = detailed_exitcode
        self.verbosity = verbosity
        self.stdout = sys.stdout if stdout is None else stdout
        self.stderr = sys.stderr if stderr is None else stderr
        self._bar: Bar | None = None
        self._stage = ""
        self._streamed = False
        self._open_line = False
        self._answer = 0

    async def run(self, events: Events) -> int:
        """Show all events up to the result; a LocalLLMError from the executor is shown too."""
        try:
            async for event in events:
                code = self.show(event)
                if code is not None:
                    return code
        except LocalLLMError as error:
            return self.error(error)
        finally:
            self._close_bar()
            await events.aclose()  # type: ignore[attr-defined]
        return self.error(LocalLLMError(f"`{self.command}` ended without a result"))

    def show(self, event: Event) -> int | None:
        """Show one event; the exit code once it was the result."""
        if isinstance(event, Progress):
            self._progress(event)
            return None
        self._close_bar()
        if isinstance(event, Result):
            return self.result(event)
        if isinstance(event, Record) and self.command == "apply" and "applying" in event.data:
            self.command = event.data["applying"]  # what follows is shown in the form of that command
        if isinstance(event, Record) and self.command == "replay" and os.environ.get("GITHUB_ACTIONS") == "true":
            self._annotate(event)
        if self.output == "json":
            if isinstance(event, Record) and self.command in ENDLESS:
                self.stream = True  # what has no end can only be shown line by line
            if self.stream:
                self._out(to_line(event))
        elif isinstance(event, Delta):
            self._delta(event)
        elif "applying" not in event.data:
            self._record(event)
        return None

    def result(self, result: Result) -> int:
        """Show the result. 0, or 1 where the answer is no, or 10 for a dry run that would change something."""
        if self.output == "json":
            self._out(to_line(result) if self.stream and not self.dry_run else document(result.data))
        else:
            self._text_result(result)
        if result.ok and self.dry_run and self.detailed_exitcode and CHANGES & set(result.data.get("effects") or ()):
            return WOULD_CHANGE
        return 0 if result.ok else 1

    def error(self, error: LocalLLMError) -> int:
        """Show the error: JSON on stdout in JSON mode, else `error: …` and `hint: …` on stderr."""
        self._close_bar()
        if self.output == "json":
            self._out(to_line(error) if self.stream else document({"error": error.as_dict()}))
            return error.exit_code
        self._end_line()
        lines = [f"error: {printable_text(error.message)}"]
        lines += [f"  {printable(line)}" for line in _details(error)]
        if error.hint:
            lines.append(f"hint: {printable_text(error.hint)}")
        self._err("\n".join(lines) + "\n")
        return error.exit_code

    def _text_result(self, result: Result) -> None:
        if self.dry_run:
            from .wording import report_text

            self._out(report_text(result.data))
            return
        self._end_line()
        from .wording import closing_text, text_of

        if self._streamed:
            self._out(closing_text(self.command, result.data))
            return

        text = text_of(self.command, result)
        if text:
            self._out(text if text.endswith("\n") else text + "\n")

    def _delta(self, event: Delta) -> None:
        if self.stream is False:
            return
        self._streamed = True
        if self.verbosity > 0:
            self._err(printable_text(str(event.delta.get("reasoning_content") or "")))
        text = str(event.delta.get("content") or "")
        if not text:
            return
        if event.index != self._answer:
            self._end_line()
            self._out(f"[{event.index}] ")
            self._answer = event.index
        self._out(printable_text(text))
        self._open_line = not text.endswith("\n")

    def _record(self, event: Record) -> None:
        from .wording import record_text

        line = record_text(self.command, event.data)
        if line is not None:
            self._out(line + "\n")
            self._streamed = True

    def _annotate(self, event: Record) -> None:
        """Let GitHub show a failed step at its line; on stderr, which its runner reads too."""
        from .wording import annotation

        line = annotation(event.data)
        if line is not None:
            self._err(line + "\n")

    def _progress(self, event: Progress) -> None:
        if self.output == "json" and self.stream:
            self._out(to_line(event))
        if self.verbosity < 0:
            return
        if is_interactive(self.stderr) and event.stage not in SAID:
            if self._bar is None:
                from .bar import Bar

                self._bar = Bar(self.stderr)
            self._bar.show(event)
        elif event.stage != self._stage or event.stage in SAID:
            self._close_bar()
            self._err(f"{printable(event.stage)}{': ' + printable(event.message) if event.message else ''}\n")
        self._stage = event.stage

    def _end_line(self) -> None:
        if self._open_line:
            self._out("\n")
            self._open_line = False

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _out(self, text: str) -> None:
        write(self.stdout, text)
        self.stdout.flush()

    def _err(self, text: str) -> None:
        try:
            write(self.stderr, text)
            self.stderr.flush()
        except (OSError, ValueError):
            pass  # nobody reads stderr: the exit code still tells


def document(data: Any) -> str:
    """One JSON document, ASCII only, so that it is the same bytes under every locale."""
    return json.dumps(data, indent=2) + "\n"


def _problem_line(problem: dict[str, Any]) -> str:
    """`PATH: message`, or `FILE:LINE:COLUMN: message` where the fault stands in a file; of a whole plan the message."""
    if problem.get("path") == "$" and "file" not in problem:
        return str(problem.get("message", ""))
    if "file" in problem:
        return f"{problem['file']}:{problem.get('line')}:{problem.get('column')}: {problem.get('message')}"
    return f"{problem.get('path', '$')}: {problem.get('message', '')}"


def _details(error: LocalLLMError) -> list[str]:
    """The lists an error carries, a line each: problems, candidates, what failed."""
    lines = [
        _problem_line(problem) if isinstance(problem, dict) else str(problem)
        for problem in error.data.get("problems") or ()
    ]
    lines = [line for line in lines if line not in error.message]
    for name in ("candidates", "failed"):
        lines += [json.dumps(item) if isinstance(item, dict) else str(item) for item in error.data.get(name) or ()]
    return lines
