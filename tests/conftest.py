"""Fixtures that every test may use: the real model, a clean environment, the CLI and real servers as processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import pytest
from attrs import define, frozen
from fixtures.tied import tied

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
KEPT_OUT = ("LOCALLLM_", "OPENAI_", "XDG_")
LISTENING = re.compile(r"""(?:listening on |"url": ?")http://127\.0\.0\.1:(\d+)""")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder that holds the real model: `LOCALLLM_TEST_MODELS_DIR`, else the default models folder."""
    given = os.environ.get("LOCALLLM_TEST_MODELS_DIR")
    if given:
        return Path(given)
    from localllm.planner.settings import resolve_settings

    env = {name: value for name, value in os.environ.items() if not name.startswith("LOCALLLM_")}
    return Path(resolve_settings({}, env).models_dir)


@pytest.fixture(scope="session")
def model_path(models_dir: Path) -> Path:
    """The real model's file (SmolLM2-135M-Instruct, Q4_1)."""
    path = models_dir / MODEL_FILE
    if not path.is_file():
        pytest.fail(f"`{path}` is missing; hint: `make setup` fetches it", pytrace=False)
    return path


def environment_under(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with HOME and every XDG folder under `folder`, no `LOCALLLM_*`, no proxy."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(KEPT_OUT) and name.lower() not in PROXIES
    }
    env["HOME"] = str(folder / "home")
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        env[f"XDG_{kind}_HOME"] = str(folder / "home" / kind.lower())
    (folder / "home").mkdir(parents=True, exist_ok=True)
    return env | dict(extra or {})


@pytest.fixture
def clean_env(tmp_path: Path) -> dict[str, str]:
    """An environment in which localllm finds no file of the person who runs the tests."""
    return environment_under(tmp_path)


@frozen(kw_only=True)
class Finished:
    """How a CLI call ended; `out` and `err` are text."""

    code: int
    out: str
    err: str


Cli = Callable[..., Finished]


@pytest.fixture
def cli(clean_env: dict[str, str]) -> Cli:
    """Run `python -m localllm ARGS` in a clean environment: `cli("models", "list", env={...}, stdin="")`."""

    def run(*args: str, env: Mapping[str, str] | None = None, stdin: str = "", timeout_s: float = 250) -> Finished:
        done = subprocess.run(
            [sys.executable, "-m", "localllm", *args],
            env=clean_env | dict(env or {}),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Finished(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


@define(kw_only=True)
class RunningServer:
    """A `localllm serve` process under test; `env` makes CLI calls of the same user."""

    url: str
    port: int
    process: subprocess.Popen[bytes]
    env: dict[str, str]
    log_path: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        """What the server has written to stdout and stderr so far."""
        return self.log_path.read_text(errors="replace")

    def client(self, **options: object) -> httpx.Client:
        """A fresh HTTP client for this server; close it, or use it in a `with`."""
        return httpx.Client(base_url=self.url, **({"timeout": 250, "trust_env": False} | options))  # type: ignore[arg-type]

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 100) -> int:
        """Send a signal, wait, and return the exit code; a server that is gone already gives its own."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """End the server and whatever it started, whatever state they are in."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(60)


def start_server(folder: Path, args: Sequence[str], env: dict[str, str], ready_s: float = 200) -> RunningServer:
    """Start `localllm serve ARGS` on a port that is free, and wait until `/ready` answers 200; else fail with its log.

    The server chooses the port and prints it: one that was chosen here could be taken before the server binds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / f"serve-{len(list(folder.glob('serve-*.log')))}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            tied("-m", "localllm", "serve", "--port", "0", *args),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = RunningServer(url="", port=0, process=process, env=dict(env), log_path=log_path)
    deadline = time.monotonic() + ready_s
    while time.monotonic() < deadline and process.poll() is None:
        if server.port == 0 and (told := LISTENING.search(server.log())):
            server.port, server.url = int(told[1]), f"http://127.0.0.1:{told[1]}"
            server.env["LOCALLLM_SERVER"] = server.url
        if server.port and _is_ready(server):
            return server
        time.sleep(0.05)
    code = process.poll()
    server.kill()
    state = f"ended with {code}" if code is not None else f"was not ready after {ready_s:g} s"
    pytest.fail(f"`localllm serve {' '.join(args)}` {state}; its output:\n{server.log()}", pytrace=False)


def _is_ready(server: RunningServer) -> bool:
    try:
        return httpx.get(f"{server.url}/ready", timeout=30, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


StartServer = Callable[..., RunningServer]


@pytest.fixture
def server(
    request: pytest.FixtureRequest, tmp_path: Path, models_dir: Path, clean_env: dict[str, str]
) -> Iterator[StartServer]:
    """Start real servers: `server("--backend", "echo")` or `server("--model", "smollm2-135m", env={...})`.

    Each has a free port, the test's own HOME and state, the real models folder (`LOCALLLM_MODELS_DIR`, unless `env`
    says otherwise), and is ready when the call returns. All are killed at the end; a failed test shows their logs.
    """
    started: list[RunningServer] = []

    def start(*args: str, env: Mapping[str, str] | None = None, ready_s: float = 200) -> RunningServer:
        full = clean_env | {"LOCALLLM_MODELS_DIR": str(models_dir)} | dict(env or {})
        started.append(start_server(tmp_path / "servers", args, full, ready_s))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        request.node.add_report_section("teardown", f"server on port {one.port}", one.log()[-20_000:])


@pytest.fixture(scope="session")
def model_server(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[RunningServer]:
    """One real server with the real model loaded, shared by all tests that leave it as they found it."""
    folder = tmp_path_factory.mktemp("model-server")
    env = environment_under(folder, {"LOCALLLM_MODELS_DIR": str(model_path.parent)})
    shared = start_server(folder, ("--model", "smollm2-135m"), env)
    yield shared
    shared.kill()


@pytest.fixture(scope="session")
def echo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One real server on the echo backend, which needs no model; leave it as you found it."""
    folder = tmp_path_factory.mktemp("echo-server")
    (folder / "models").mkdir()
    env = environment_under(folder, {"LOCALLLM_MODELS_DIR": str(folder / "models")})
    shared = start_server(folder, ("--backend", "echo"), env)
    yield shared
    shared.kill()


@pytest.fixture(scope="module")
def echo_server_at() -> Iterator[StartServer]:
    """Start servers for a whole module: `echo_server_at(folder, "--record", …)`; `backend=None` leaves the backend out.

    Each has its HOME, its state and an empty models folder below `folder`.
    """
    started: list[RunningServer] = []

    def start(folder: Path, *args: str, backend: str | None = "echo") -> RunningServer:
        (folder / "models").mkdir(parents=True, exist_ok=True)
        env = environment_under(folder, {"LOCALLLM_MODELS_DIR": str(folder / "models")})
        chosen = () if backend is None else ("--backend", backend)
        started.append(start_server(folder, (*chosen, *args), env))
        return started[-1]

    yield start
    for one in started:
        one.kill()
