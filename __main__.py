"""The composition root: an argument vector becomes settings, a plan, events, and an exit code."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TextIO

from .errors import InternalError, Interrupted, LocalLLMError, UsageError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from .executors.context import Context
    from .executors.render import Renderer
    from .planner.cli import Invocation
    from .planner.plan_union import CommandPlan
    from .planner.settings import ResolvedSettings

OUTPUT_FAILED = 6
PIPE_CLOSED = 141
"""What a shell reports for a program that SIGPIPE ended; `| head` is no fault, so nothing is said."""
LARGEST_CRASH_LOG_BYTES = 1_000_000
GARBAGE_THRESHOLD = 10_000
"""New objects between two looks for garbage: Python's own 700 look dozens of times while a command imports."""
WRITES_CONFIG = frozenset({"config.set", "config.unset"})
MAY_SERVE = frozenset({"serve", "apply", "explain", "replay"})
RUNS_LONG = frozenset({"serve", "apply"})
"""What gets the event loop for many connections, whose import would cost one command more than it gains."""


class OutputGone(Exception):
    """Standard output is closed or full; kept apart from other OSErrors, which are faults of a command."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Output:
    """Standard output with its faults made recognisable."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError as error:
            raise OutputGone(error) from None

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            raise OutputGone(error) from None

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing is raised and stdout holds the result alone."""
    # Start-up makes classes and tables that live to the end: looking for garbage among them is time lost, and so is
    # looking once more when the interpreter ends, which takes a tenth of a dry run.
    gc.disable()
    atexit.register(gc.freeze)
    arguments = list(sys.argv[1:] if argv is None else argv)
    _occupy_standard_streams()
    if os.name == "nt":
        return _say("localllm runs on Linux and macOS; on Windows, run it within WSL", 2)
    if sys.stdout is None:
        return _say("standard output is closed", OUTPUT_FAILED)
    try:
        return _run(arguments, Output(sys.stdout))
    except OutputGone as gone:
        return _without_output(gone.cause)
    except KeyboardInterrupt:  # before there was anything that could say it in the form that was asked for
        return _say("interrupted", Interrupted.exit_code)


def _run(argv: list[str], stdout: Output) -> int:
    """Parse, settle, dispatch, render; every fault ends here as an exit code."""
    stage = _Stage(argv, stdout)
    try:
        return stage.run()
    except LocalLLMError as error:
        return stage.renderer().error(error)
    except (KeyboardInterrupt, _Terminated) as signal:
        code = stage.renderer().error(Interrupted("interrupted"))
        return 143 if isinstance(signal, _Terminated) else code
    except OutputGone:
        raise
    except Exception as error:
        return stage.renderer().error(stage.bug(error))


class _Terminated(BaseException):
    """SIGTERM came; a `BaseException` so that no executor takes it for a fault of its own."""


class _Stage:
    """How far a command line got, so that an error at any point is shown in the form that was asked for."""

    def __init__(self, argv: list[str], stdout: Output) -> None:
        from .planner.argv import asks_for_json

        self.argv = argv
        self.stdout = stdout
        self.output: Literal["text", "json"] = "json" if asks_for_json(argv, os.environ) else "text"
        self.invocation: Invocation | None = None
        self.settings: ResolvedSettings | None = None
        self.config_fault: LocalLLMError | None = None

    def run(self) -> int:
        from .planner.cli import parse

        piped = sys.stdin is not None and not sys.stdin.isatty()
        self.invocation = parse(self.argv, read_stdin=_read_stdin, stdin_is_piped=piped)
        if self.invocation.kind != "plan":
            return self._print_text(self.invocation)
        self.settings = self._settings(self.invocation)
        self.output = self.settings.output

        from .planner.codec import load_plan

        plan = load_plan(self.invocation.raw)
        ctx = self._context(plan, self.invocation, self.settings)
        _check_dry_run_options(self.invocation)
        if ctx.dry_run:
            return self._dry_run(plan, ctx)
        return _run_async(plan, ctx, self.renderer())

    def renderer(self) -> Renderer:
        from .executors.render import Renderer

        if self.invocation is None:
            return Renderer("", output=self.output, stdout=self.stdout)  # type: ignore[arg-type]
        options = self.invocation.options
        return Renderer(
            str(self.invocation.raw.get("command", "")),
            output=self.output,
            stream=options.stream,
            dry_run=options.dry_run,
            detailed_exitcode=options.detailed_exitcode,
            verbosity=_verbosity(self.invocation),
            stdout=self.stdout,  # type: ignore[arg-type]
        )

    def bug(self, error: Exception) -> InternalError:
        """The error of an unexpected exception; its traceback goes to the log, or to stderr with `-v`."""
        import traceback

        text = "".join(traceback.format_exception(error))
        message = f"unexpected {type(error).__name__}: {error}".rstrip(": ")
        verbose = self.invocation is not None and _verbosity(self.invocation) > 0
        if verbose:
            sys.stderr.write(text)
        # A dry run writes nothing, not even about its own faults.
        dry_run = "--dry-run" in self.argv
        place = None if dry_run else _write_crash(self.settings, text)
        if place is None:
            return InternalError(message, hint=None if verbose else "`-v` shows the traceback")
        return InternalError(message, hint=f"the traceback is in `{place}`")

    def _settings(self, invocation: Invocation) -> ResolvedSettings:
        from .planner.settings import resolve_settings

        flags, command = invocation.options.flags(), invocation.raw["command"]
        try:
            return resolve_settings(
                flags, os.environ, config_file=invocation.options.config, must_exist=command not in WRITES_CONFIG
            )
        except LocalLLMError as fault:
            if command != "doctor":
                raise
            # the doctor runs all the same, on the defaults, and repeats the fault
            self.config_fault = fault
            return resolve_settings(flags, {}, config_file=os.devnull)

    def _context(self, plan: CommandPlan, invocation: Invocation, settings: ResolvedSettings) -> Context:
        from .executors.context import Context

        ctx = Context(settings=settings, dry_run=invocation.options.dry_run, verbosity=_verbosity(invocation))
        ctx.config_fault = self.config_fault
        ctx.refresh = lambda: self._settings(invocation)
        if plan.command in MAY_SERVE:
            from .api.serve import serve

            ctx.serve = serve
        return ctx

    def _dry_run(self, plan: CommandPlan, ctx: Context) -> int:
        """A report needs no event loop, whose import would take longer than the report, unless a server is asked."""
        from .executors.dispatch import preview, reported

        assert self.invocation is not None
        options = self.invocation.options
        if options.ask_server:
            import asyncio

            from .executors.reporting import ask_server

            report = asyncio.run(ask_server(plan, ctx))
        else:
            report = preview(plan, ctx)
        if options.out is not None:
            from .executors.reporting import save_report

            save_report(report, options.out)
        return self.renderer().result(reported(report))

    def _print_text(self, invocation: Invocation) -> int:
        text = invocation.text
        if invocation.kind == "version":
            from importlib.metadata import version

            text = version("localllm")
        output = invocation.options.output or self.output
        if output == "json":
            import json

            self.stdout.write(json.dumps({invocation.kind: text}) + "\n")
        else:
            from .executors.terminal import write

            write(self.stdout, f"localllm {text}\n" if invocation.kind == "version" else text)  # type: ignore[arg-type]
        self.stdout.flush()
        return 0


def _run_async(plan: CommandPlan, ctx: Context, renderer: Renderer) -> int:
    import asyncio

    # What runs from here on may run for days, and must not keep its garbage.
    gc.set_threshold(GARBAGE_THRESHOLD)
    gc.enable()

    async def run() -> int:
        from .executors.dispatch import dispatch

        # The server, also one that is applied, has its own way with signals.
        ending = None if plan.command == "serve" else _Ending(renderer)
        try:
            return await renderer.run(dispatch(plan, ctx))
        except asyncio.CancelledError:
            if ending is not None and ending.cause is not None:
                raise ending.cause from None
            raise
        finally:
            if ending is not None:
                ending.stop()
            await ctx.aclose()

    with asyncio.Runner(loop_factory=_fast_loop() if plan.command in RUNS_LONG else None) as runner:
        return runner.run(run())


def _fast_loop() -> Callable[[], AbstractEventLoop]:
    """uvloop's maker of event loops."""
    import uvloop

    return uvloop.new_event_loop


class _Ending:
    """Cancels the command when SIGTERM comes, or when the reader of standard output has gone.

    Cancelling lets workers end and files be left whole. Without it `logs --follow | head -1` would stay until the
    next line is logged. A second SIGTERM ends the process at once. A server that a saved plan started goes on when
    nobody reads what it prints.
    """

    POLL_S = 0.5

    def __init__(self, renderer: Renderer) -> None:
        import asyncio
        import select
        import signal

        self.cause: BaseException | None = None
        self.renderer = renderer
        self.loop = asyncio.get_running_loop()
        self.task = asyncio.current_task()
        self.loop.add_signal_handler(signal.SIGTERM, self._terminate)
        self.poll = select.poll()
        self.poll.register(1, 0)
        self.timer = self.loop.call_later(self.POLL_S, self._look)

    def stop(self) -> None:
        """Watch no longer."""
        self.timer.cancel()

    def _terminate(self) -> None:
        import signal

        self.loop.remove_signal_handler(signal.SIGTERM)
        self._cancel(_Terminated())

    def _look(self) -> None:
        import select

        gone = any(event & select.POLLERR for _, event in self.poll.poll(0))
        if gone and self.renderer.command != "serve":
            self._cancel(OutputGone(BrokenPipeError()))
            return
        self.timer = self.loop.call_later(self.POLL_S, self._look)

    def _cancel(self, cause: BaseException) -> None:
        self.cause = cause
        if self.task is not None:
            self.task.cancel()


def _read_stdin() -> str:
    if sys.stdin is None:
        raise UsageError("there is no standard input to read the prompt from", param="prompt")
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 (at byte {error.start})", param="prompt") from None


def _check_dry_run_options(invocation: Invocation) -> None:
    """Refuse options that only a dry run knows, before anything runs for real."""
    options = invocation.options
    given = {"--out": options.out is not None, "--ask-server": options.ask_server}
    for flag, is_given in given.items():
        if is_given and not options.dry_run:
            raise UsageError(f"`{flag}` belongs to a dry run", hint="say `--dry-run` too", param=flag)


def _verbosity(invocation: Invocation) -> int:
    return -1 if invocation.options.quiet else invocation.options.verbose


def _write_crash(settings: ResolvedSettings | None, text: str) -> str | None:
    """Append a traceback to `crash.log` beside the server's log; None where that cannot be done."""
    from datetime import UTC, datetime

    try:
        if settings is None:
            from .planner.settings import resolve_settings

            settings = resolve_settings({}, {}, must_exist=False)
        path = settings.log_dir / "crash.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        full = path.exists() and path.stat().st_size > LARGEST_CRASH_LOG_BYTES
        with path.open("w" if full else "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now(UTC).isoformat()}\n{text}\n")
    except (OSError, LocalLLMError):
        return None
    return str(path)


def _occupy_standard_streams() -> None:
    """Open what the parent closed, so that no socket or file of ours becomes standard input or error."""
    for number in (0, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _without_output(cause: OSError) -> int:
    """Standard output failed: point it at nothing, or the interpreter would fail again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    if isinstance(cause, BrokenPipeError):
        return PIPE_CLOSED
    return _say(f"standard output cannot be written: {cause.strerror or cause}", OUTPUT_FAILED)


def _say(message: str, code: int) -> int:
    try:
        sys.stderr.write(f"error: {message}\n")
        sys.stderr.flush()
    except OSError:
        pass
    return code


if __name__ == "__main__":
    sys.exit(main())
