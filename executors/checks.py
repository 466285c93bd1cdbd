"""The doctor's checks: each looks at one thing and changes nothing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from ..errors import ModelNotFound, NotFound, ServerUnreachable

if TYPE_CHECKING:
    from ..runtime.conversation.templates import ChatTemplate
    from ..runtime.models.catalog import Entry
    from .context import Context

OLDEST_PYTHON = (3, 11)
LITTLE_DISK_BYTES = 1_000_000_000
NATIVE_TIMEOUT_S = 60.0
PULL_HINT = "`localllm models pull smollm2-135m` fetches a small one"


@frozen(kw_only=True)
class Finding:
    """What one check found; `hint` says how to mend it."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    hint: str | None = None


def python(_ctx: Context) -> Finding:
    """The interpreter and the system."""
    found = f"Python {platform.python_version()} on {sys.platform} {platform.machine()}"
    if sys.version_info[:2] < OLDEST_PYTHON or sys.platform not in ("linux", "darwin"):
        return _fail("python", found, "localllm needs Python 3.11 or newer on Linux or macOS")
    return _ok("python", found)


def config(ctx: Context) -> Finding:
    """The config file and the environment's variables."""
    if ctx.config_fault is not None:
        return _fail("config", ctx.config_fault.message, ctx.config_fault.hint)
    settings = ctx.settings
    if settings.warnings:
        return _warn("config", "; ".join(settings.warnings), "`localllm config list` shows every setting")
    if settings.revision == "none":
        return _ok("config", f"no config file at `{settings.config_file}`: the defaults hold")
    return _ok("config", f"`{settings.config_file}` is valid")


def models_folder(ctx: Context) -> Finding:
    """The folder, and what is wrong with the files in it."""
    from .loading import scan_models

    folder = ctx.models_dir
    if not folder.is_dir():
        return _warn("models_folder", f"`{folder}` does not exist", PULL_HINT)
    catalog = scan_models(ctx)
    invalid = [entry for entry in catalog.entries if not entry.valid]
    found = f"`{folder}` holds {_count(len(catalog.loadable), 'model')}"
    if invalid:
        return _warn(
            "models_folder",
            f"{found} and {_count(len(invalid), 'broken file')}",
            f"`{invalid[0].relative_path}` {invalid[0].reason}",
        )
    if not catalog.loadable:
        return _warn("models_folder", found, PULL_HINT)
    if catalog.warnings:
        return _warn("models_folder", f"{found}; {catalog.warnings[0]}", None)
    return _ok("models_folder", found)


def default_model(ctx: Context) -> Finding:
    """What `local-model` means while nothing is loaded."""
    entry = _default_entry(ctx)
    if entry is None:
        return _warn(
            "default_model", "no default model is configured", "set one with `localllm config set default_model NAME`"
        )
    return _ok("default_model", f"`local-model` is `{entry.id}`")


def chat_template(ctx: Context) -> Finding:
    """Whether each model's chat template works, and what the default model, or else the only one, speaks."""
    from .loading import scan_models

    loadable = scan_models(ctx).loadable
    templates = [(entry, _template(entry)) for entry in loadable]
    faults = [f"`{entry.id}`: {words}" for entry, template in templates for words in _template_faults(template)]
    if faults:
        found = f"{_count(len(faults), 'fault')} in the templates of {_count(len(loadable), 'model')}"
        return _warn("chat_template", f"{found}: {faults[0]}", "; ".join(faults[1:]) or None)
    default = _default_entry(ctx)
    for entry, template in templates:
        if len(loadable) == 1 or (default is not None and entry.id == default.id):
            return _ok("chat_template", f"`{entry.id}` speaks `{template.family}`, from its {template.source}")
    return _ok("chat_template", f"those of {_count(len(loadable), 'model')} work")


def _template(entry: Entry) -> ChatTemplate:
    """The template that a load would choose; one in the file that does not work is among its warnings."""
    from ..runtime.conversation.templates import ChatTemplate
    from ..runtime.models.gguf import read_header

    return ChatTemplate.choose(read_header(entry.path).metadata, (*entry.aliases, entry.id))


def _template_faults(template: ChatTemplate) -> tuple[str, ...]:
    if template.warnings or template.source != "generic":
        return template.warnings
    return ("it has no chat template, the generic form is used",)


def llama_cpp(_ctx: Context) -> Finding:
    """Whether llama.cpp loads, and on which devices it computes; asked in a process of its own, which may die."""
    command = [sys.executable, "-m", "localllm.runtime.models.devices"]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    hint = "install localllm again; for a GPU build see the README"
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=NATIVE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return _fail("llama_cpp", f"llama.cpp does not start within {NATIVE_TIMEOUT_S:.0f} s", hint)
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return _fail("llama_cpp", f"llama.cpp does not load: {lines[-1] if lines else f'exit {done.returncode}'}", hint)
    devices: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    names = ", ".join(f"{device['name']} ({device['description']})" for device in devices)
    return _ok("llama_cpp", f"llama.cpp computes on {names}" if names else "llama.cpp computes on the CPU")


def cpu(_ctx: Context) -> Finding:
    """The threads this process may use, and what limits them."""
    from ..runtime.models.machine import cpu_limits

    limits = cpu_limits()
    found = f"{_count(limits.threads, 'thread')} of {_count(limits.allowed, 'processor')}, by {limits.limited_by}"
    if limits.limited_by == "cgroup quota":
        return _warn("cpu", found, "more threads than that only wait: leave `n_threads` unset")
    return _ok("cpu", found)


def memory(ctx: Context) -> Finding:
    """Whether the default model's weights fit in the memory that is free."""
    from ..runtime.models.machine import memory_limits

    free = memory_limits().available_bytes
    entry = _default_entry(ctx)
    found = f"{free / 1e9:.1f} GB of memory are free"
    if entry is not None and entry.size_bytes > free:
        return _warn("memory", f"{found}, `{entry.id}` takes {entry.size_bytes / 1e9:.1f} GB", "take a smaller model")
    return _ok("memory", found)


def state_folder(ctx: Context) -> Finding:
    """Whether keys, locks and the log can be written."""
    folder = Path(ctx.settings.state_dir)
    place = _nearest_existing(folder)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return _fail("state_folder", f"`{folder}` cannot be written", "choose another with `LOCALLLM_STATE_DIR`")
    return _ok("state_folder", f"`{folder}` can be written")


def disk(ctx: Context) -> Finding:
    """Room for another model."""
    place = _nearest_existing(ctx.models_dir)
    free = shutil.disk_usage(place).free
    found = f"{free / 1e9:.1f} GB are free for models"
    return _warn("disk", found, "free some space") if free < LITTLE_DISK_BYTES else _ok("disk", found)


def log(ctx: Context) -> Finding:
    """Whether the log is there and within its bounds."""
    from .logbook import part
    from .state import log_file

    path = log_file(ctx.settings.log_dir)
    parts = [part(path, number) for number in range(ctx.settings.log_keep + 1)]
    size = sum(each.stat().st_size for each in parts if each.exists())
    if path.exists() and not os.access(path, os.W_OK):
        return _warn("log", f"`{path}` cannot be written", "the server runs without a log until its owner is mended")
    return _ok("log", f"`{path}` takes {size / 1e6:.1f} MB" if size else f"no log at `{path}` yet")


def api_key(ctx: Context) -> Finding:
    """Whether a key is asked for, and whether only its owner can read the hash."""
    from .keys import read_keys
    from .state import keys_file

    if not read_keys(ctx.settings.state_dir):
        return _ok("api_key", "no API key is asked for; only this machine may connect")
    path = keys_file(ctx.settings.state_dir)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return _fail("api_key", f"others can read `{path}`", f"chmod 600 {path}")
    return _ok("api_key", "an API key is asked for")


async def port(ctx: Context) -> Finding:
    """Whether `serve` could listen, or our own server does already."""
    from attrs import evolve

    from ..planner.settings import server_url
    from .client import find_server

    settings = ctx.settings
    if settings.port == 0 or _is_free(settings.host, settings.port):
        return _ok("port", f"port {settings.port} on {settings.host} is free")
    try:
        await find_server(evolve(ctx, settings=evolve(settings, server=server_url(settings.host, settings.port))))
    except ServerUnreachable as error:
        holder = "something that does not answer" if error.data.get("found") == "silence" else "another program"
        return _fail(
            "port",
            f"{holder} holds port {settings.port} on {settings.host}",
            "choose another with `localllm config set port NUMBER`",
        )
    return _ok("port", f"port {settings.port} is held by the running server")


async def server(ctx: Context) -> Finding:
    """Whether a server answers; none is no fault."""
    from .client import find_server
    from .instance import live_instance

    try:
        found = await find_server(ctx)
    except ServerUnreachable as error:
        other = live_instance(ctx.settings.state_dir)
        if other is not None:
            return _warn("server", error.message, f"one runs at {other.url}: pass it with `--server`")
        if error.data.get("found") == "silence":
            return _warn("server", error.message, "`chat` fails until it answers, and does not load the model itself")
        return _ok("server", "no server runs; `localllm serve` starts one")
    return _ok("server", f"localllm {found.version} answers at {found.url}")


def _default_entry(ctx: Context) -> Entry | None:
    """The configured default model; None where none is configured. Raises where it does not exist or load."""
    from .loading import refuse_unloadable, scan_models

    name = ctx.settings.default_model
    if name is None:
        return None
    try:
        entry = scan_models(ctx).resolve(name)
    except ModelNotFound as error:
        raise NotFound(f"the default model `{name}` does not exist", hint=error.hint) from None
    refuse_unloadable(entry)
    return entry


def _is_free(host: str, number: int) -> bool:
    """Whether nothing listens there; nothing is bound, a connection is tried."""
    try:
        with socket.create_connection((host, number), timeout=1.0):
            return False
    except OSError:
        return True


def _nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    return next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ok(name: str, message: str) -> Finding:
    return Finding(name=name, status="ok", message=message)


def _warn(name: str, message: str, hint: str | None) -> Finding:
    return Finding(name=name, status="warn", message=message, hint=hint)


def _fail(name: str, message: str, hint: str | None = None) -> Finding:
    return Finding(name=name, status="fail", message=message, hint=hint)
