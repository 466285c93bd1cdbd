"""Start the servers under measurement as processes, and read how much memory they hold."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx
from attrs import frozen

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@frozen(kw_only=True)
class Server:
    """A server that answers at `url`; `log_path` holds its output."""

    name: str
    url: str
    process: subprocess.Popen[bytes]
    log_path: Path

    def resident_bytes(self) -> int:
        """Resident memory of the server and all its children, added up."""
        return sum(_status_bytes(pid, "VmRSS") for pid in family(self.process.pid))

    def proportional_bytes(self) -> int:
        """The same with pages that several processes share counted once (Linux's PSS)."""
        return sum(_proportional(pid) for pid in family(self.process.pid))


def default_model() -> Path:
    """The small model where `make setup` put it, or in `LOCALLLM_TEST_MODELS_DIR`."""
    given = os.environ.get("LOCALLLM_TEST_MODELS_DIR")
    if given is None:
        from localllm.planner.settings import resolve_settings

        given = resolve_settings({}, os.environ).models_dir
    path = Path(given) / MODEL_FILE
    if not path.is_file():
        sys.exit(f"error: `{path}` is missing\nhint: `make setup` fetches it")
    return path


def family(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for parent in found:
        for listing in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in listing.read_text().split()]
    return found


def _status_bytes(pid: int, key: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return 0


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def localllm(
    model: Path, *, name: str = "localllm", args: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A localllm server with the model loaded; two threads and eight slots, unless `args` says otherwise."""
    with tempfile.TemporaryDirectory() as home:
        full = {key: value for key, value in os.environ.items() if not key.startswith(("LOCALLLM_", "XDG_"))}
        full |= {"HOME": home, "LOCALLLM_MODELS_DIR": str(model.parent), **(env or {})}
        port = free_port()
        command = [sys.executable, "-m", "localllm", "serve", "--port", str(port), "--model", model.stem, *args]
        with _running(name, command, port, "/ready", full) as server:
            yield server


@contextlib.contextmanager
def peer(python: str, model: Path, *, threads: int = 2, slots: int = 8, n_ctx: int = 8192) -> Iterator[Server]:
    """llama.cpp's own server with the same model."""
    port = free_port()
    script = Path(__file__).with_name("peer_server.py")
    command = [python, str(script), str(model), str(port), str(threads), str(slots), str(n_ctx)]
    with _running("llama.cpp", command, port, "/health", dict(os.environ)) as server:
        yield server


@contextlib.contextmanager
def _running(name: str, command: list[str], port: int, ready: str, env: dict[str, str]) -> Iterator[Server]:
    url = f"http://127.0.0.1:{port}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # who ends a benchmark ends its servers
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            _wait_until_ready(process, url + ready, log_path)
            yield Server(name=name, url=url, process=process, log_path=log_path)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log_path: Path, limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"no answer at {url}; the server's output:\n{log_path.read_text(errors='replace')[-5000:]}")
