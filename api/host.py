"""The life of one server process: start, load, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from attrs import define, evolve, field

from ..errors import InternalError, Interrupted, LocalLLMError, ShuttingDown
from ..executors.dispatch import dispatch
from ..executors.events import Progress, Record, Result
from ..executors.instance import Instance, new_instance, remove_instance, write_instance
from ..executors.keys import key_is_required, key_is_valid
from ..executors.loading import first_load
from ..executors.logbook import LEVELS, Level, open_logbook
from .app import create_app
from .guard import LOOPBACK_NAMES, Policy
from .listen import Place, url_of
from .protocol import HttpProtocol
from .recording import open_playback, open_recorder
from .server import Readiness, Server, WriteLog

if TYPE_CHECKING:
    from ..executors.context import Context
    from ..executors.events import Event, Events
    from ..executors.playback import Playback
    from ..planner.plans.serve import Serve
    from ..planner.settings import ResolvedSettings

LAST_WORDS_S = 5.0
"""How long answers may take to say that the server is going, once their requests have been ended: only a client that
does not read, or a machine that is busy elsewhere, makes it longer than a moment."""

FORCED_EXIT_S = 2.0
"""After a second signal the process is gone by then, whatever hangs."""

OWN_SETTINGS = ("profile", "n_ctx", "n_slots", "n_threads", "max_loaded", "memory_budget_bytes", "idle_ttl_s")
"""Fields of the plan that are settings too, and win over them."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@define
class Stop:
    """Which signal asked for the end, and whether a second one made it urgent."""

    asked: asyncio.Event = field(factory=asyncio.Event)
    urgent: asyncio.Event = field(factory=asyncio.Event)
    signal: int | None = None

    def ask(self, number: int) -> None:
        """The first call asks, each later one presses."""
        if self.signal is None:
            self.signal = number
            self.asked.set()
        else:
            self.urgent.set()


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handling: the signals are ours, since workers and running requests depend on them."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say when connections are accepted."""
        await super().startup(sockets)
        self.accepting.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def host_server(plan: Serve, ctx: Context, place: Place, sockets: list[socket.socket]) -> Events:
    """Serve on the sockets until a signal comes. Raises Interrupted after SIGINT."""
    playback = await asyncio.to_thread(open_playback, plan, ctx)
    loop = asyncio.get_running_loop()
    stop = Stop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.ask, number)
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    life = asyncio.create_task(_Life(plan, ctx, place, sockets, stop, events, playback).run())
    life.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        await life
    finally:
        stop.ask(signal.SIGTERM)
        await asyncio.wait({life})
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    if stop.signal == signal.SIGINT:
        raise Interrupted("the server was interrupted")
    yield Result(data={"stopped": True, "signal": signal.Signals(stop.signal or signal.SIGTERM).name})


class _Life:
    """One server from its first to its last moment; runs as a task of its own so that nothing cuts its end short."""

    def __init__(
        self,
        plan: Serve,
        ctx: Context,
        place: Place,
        sockets: list[socket.socket],
        stop: Stop,
        events: asyncio.Queue[Event | None],
        playback: Playback | None,
    ) -> None:
        self.plan = plan
        self.sockets = sockets
        self.stop = stop
        self.emit = events.put_nowait
        self.instance = new_instance(url_of(place, sockets[0]))
        book = open_logbook(ctx.settings)
        self.write_log: WriteLog = lambda level, event, fields: book.write(event, level=level, **fields)
        self.server = build_server(plan, ctx, place, self.instance, self.write_log)
        self.server.ctx.playback = playback
        self.server.ctx.recorder = open_recorder(plan, self.write_log)
        _route_logging(self.write_log)
        config = uvicorn.Config(
            create_app(self.server),
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
        self.http = HttpServer(config)

    async def run(self) -> None:
        """Start, wait for the signal, end."""
        serving = asyncio.create_task(self.http.serve(sockets=self.sockets))
        loading: asyncio.Task[None] | None = None
        try:
            await _first(serving, self.http.accepting.wait())
            if self.http.accepting.is_set():
                self._announce()
                if self.plan.model is not None:
                    loading = asyncio.create_task(self._load())
                await _first(serving, self.stop.asked.wait())
            if serving.done():
                raise InternalError("the HTTP server ended by itself") from serving.exception()
        finally:
            await self._end(serving, loading)

    def _announce(self) -> None:
        settings = self.server.ctx.settings
        bound = self.sockets[0].getsockname()
        told = {"url": self.instance.url, "host": bound[0], "port": bound[1], "pid": os.getpid()}
        write_instance(settings.state_dir, self.instance)
        self.write_log("info", "listening", told)
        self.emit(Record(data={"event": "listening", **told, "instance": self.instance.instance}))

    async def _load(self) -> None:
        """Load the model named at the start; a failure is told by `/ready` and leaves the server up."""
        ready, warnings = self.server.readiness, list[str]()
        try:
            async for event in dispatch(first_load(self.plan), self.server.ctx):
                if isinstance(event, Progress):
                    ready.stage, ready.fraction = event.message or event.stage, event.current
                    self.emit(event)
                elif isinstance(event, Result):
                    ready.state, warnings = "ready", event.data.get("warnings") or []
        except Exception as fault:
            error = fault if isinstance(fault, LocalLLMError) else InternalError("the model could not be loaded")
            if error is not fault:
                self.server.log_fault(fault)
            ready.state, ready.fault = "failed", error
            self.write_log("error", "load_failed", {"model": self.plan.model, "error": error.message})
            self.emit(Record(data={"event": "load_failed", "model": self.plan.model, "error": error.as_dict()}))
        else:
            self.write_log("info", "ready", {"model": self.plan.model})
            self.emit(Record(data={"event": "ready", "model": self.plan.model, "warnings": warnings}))

    async def _end(self, serving: asyncio.Task[None], loading: asyncio.Task[None] | None) -> None:
        """Refuse new work, let running requests finish, end the workers, then the HTTP server."""
        traffic = self.server.traffic
        traffic.closing = ShuttingDown("the server is shutting down", retry_after_s=5)
        self.write_log("info", "closing", {"running": traffic.running})
        forced = asyncio.create_task(self._force())
        if loading is not None:
            loading.cancel()
        await self._until_idle(self.plan.drain_s)
        await self.server.ctx.aclose()
        await self._until_idle(LAST_WORDS_S)
        if self.server.ctx.recorder is not None:
            await self.server.ctx.recorder.close()
        self.http.should_exit = True
        if self.stop.urgent.is_set():
            self.http.force_exit = True
        await asyncio.wait({serving, *({loading} if loading is not None else ())})
        remove_instance(self.server.ctx.settings.state_dir, self.instance)
        self.write_log("info", "closed", {})
        forced.cancel()

    async def _until_idle(self, timeout_s: float) -> None:
        if self.server.traffic.running:
            urgent = asyncio.create_task(self.stop.urgent.wait())
            await _first(urgent, self.server.traffic.idle.wait(), timeout_s)
            urgent.cancel()

    async def _force(self) -> None:
        """After a second signal: kill the workers now, and leave soon even if something hangs."""
        await self.stop.urgent.wait()
        loop = asyncio.get_running_loop()
        for model in self.server.ctx.runtime.loaded():
            if model.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(model.pid, signal.SIGKILL)
        remove_instance(self.server.ctx.settings.state_dir, self.instance)
        code = 130 if self.stop.signal == signal.SIGINT else 0
        loop.call_later(FORCED_EXIT_S, os._exit, code)


async def _first(task: asyncio.Task[Any], other: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> None:
    """Wait until one of the two is done, or the time is up; only `other` is given up."""
    watch = asyncio.ensure_future(other)
    await asyncio.wait({task, watch}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    watch.cancel()


def build_server(plan: Serve, ctx: Context, place: Place, instance: Instance, write_log: WriteLog) -> Server:
    """The server's own context, rules and state."""
    settings = ctx.settings

    def log_worker(model_id: str, level: str, message: str) -> None:
        known: Level = level if level in LEVELS else "info"
        write_log(known, "worker", {"model": model_id, "message": message})

    own = evolve(
        ctx,
        settings=own_settings(plan, settings, instance.url),
        on_server=True,
        dry_run=False,
        backend=plan.backend,
        backend_options=dict(plan.backend_options),
        instance=instance.instance,
        on_worker_log=log_worker,
    )
    if plan.backend == "echo" and plan.model is not None:
        own.default_model_id = plan.model
    own.runtime  # noqa: B018  made now, so that contexts derived for dry runs share it
    policy = Policy(
        hosts=frozenset(
            {*LOOPBACK_NAMES, place.host.strip("[]").lower(), *(h.lower() for h in settings.allowed_hosts)}
        ),
        any_address=place.is_wildcard,
        origins=frozenset(settings.allowed_origins),
        key_is_required=lambda: key_is_required(settings.state_dir),
        key_is_valid=lambda key: key_is_valid(settings.state_dir, key),
    )
    readiness = Readiness(state="ready" if plan.model is None else "loading", model=plan.model)
    return Server(
        ctx=own,
        policy=policy,
        readiness=readiness,
        write_log=write_log,
        keep_alive_s=settings.keep_alive_s,
        max_body_bytes=settings.max_body_bytes,
    )


def own_settings(plan: Serve, settings: ResolvedSettings, url: str) -> ResolvedSettings:
    """The settings inside the server: its real URL, and what the plan says of every model it loads."""
    given = {name: value for name in OWN_SETTINGS if (value := getattr(plan, name)) is not None}
    origins = {**settings.origins, **dict.fromkeys(given, "flag")}
    return evolve(settings, server=url, origins=origins, **given)


class _LogHandler(logging.Handler):
    """What uvicorn and asyncio have to say, as lines of our log instead of text on the terminal."""

    def __init__(self, write_log: WriteLog) -> None:
        super().__init__(logging.WARNING)
        self.write_log = write_log

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            from traceback import format_exception

            fields["traceback"] = "".join(format_exception(record.exc_info[1]))
        self.write_log("error" if record.levelno >= logging.ERROR else "warning", "library", fields)


def _route_logging(write_log: WriteLog) -> None:
    handler = _LogHandler(write_log)
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
