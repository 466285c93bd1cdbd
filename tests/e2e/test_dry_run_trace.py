"""A dry run changes nothing: every command's system calls as the kernel sees them, its folders before and after."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from localllm.planner.plans import COMMANDS, plan_class
from localllm.schemas import problems

if sys.platform != "linux":
    pytest.skip("only Linux lets a test see system calls without privileges", allow_module_level=True)

TRACER = Path(__file__).parent.parent / "fixtures" / "tracer.py"
GOLDEN = Path(__file__).parent.parent / "contract" / "golden"
CANNOT = 125

ASKING = {"socket", "socketpair", "connect", "sendto", "recvfrom", "getsockname", "getpeername", "shutdown"}
ASKING |= {"setsockopt", "getsockopt"}
"""What an event loop and a connection are made of."""

DELIBERATE = """
import ctypes, os, sys, threading

c = ctypes.CDLL(None)
c.mkdir(b"folder", 0o700)
c.creat(b"file", 0o600)
c.rename(b"file", b"other")
held = c.open(b"other", os.O_WRONLY)
c.write(held, b"text", 4)
c.flock(held, 2)
c.ftruncate(held, 0)
c.chmod(b"other", 0o400)
c.unlink(b"other")
c.socket(2, 1, 0)
c.kill(os.getpid(), 0)
thread = threading.Thread(target=lambda: c.rmdir(b"folder"))
thread.start()
thread.join()
if c.fork() == 0:
    c.mkdir(b"of-the-child", 0o700)
    os._exit(0)
os.wait()
os.execv("/bin/true", ["true"])
"""
"""C code that changes things: audit hooks of Python would see none of it."""


@pytest.fixture(scope="module")
def home(tmp_path_factory, models_dir, model_path):
    """The environment of somebody who has set a setting and made a key: a dry run finds things to look at."""
    from conftest import environment_under

    folder = tmp_path_factory.mktemp("lived-in")
    env = environment_under(folder, {"LOCALLLM_MODELS_DIR": str(models_dir), "PYTHONDONTWRITEBYTECODE": "1"})
    for argv in (["auth", "enable"], ["config", "set", "n_ctx", "2048"]):
        subprocess.run([sys.executable, "-m", "localllm", *argv], env=env, check=True, capture_output=True, timeout=250)
    return env


@pytest.fixture
def traced(tmp_path):
    """Run a program under the tracer: how it ended, and what it did but read."""

    def run(*argv, env=None, cwd=None):
        told = tmp_path / "told"
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(TRACER), str(told), *argv],
            env=env,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=250,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode == CANNOT:
            pytest.fail(f"nothing can be traced here: {done.stderr}", pytrace=False)
        return done, told.read_text().splitlines()

    return run


def localllm(*argv):
    return [sys.executable, "-m", "localllm", *argv]


def names_in(told):
    return {line.partition("(")[0] for line in told}


def files_under(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(Path(folder).rglob("*"))}


def argv_of(command, folder):
    """The command's golden command line, with the files that it names."""
    argv = json.loads((GOLDEN / f"{command}.json").read_text())["argv"]
    plan, load = folder / "tour.plan.yaml", folder / "load.json"
    plan.write_text('format_version: "1.0"\nsteps:\n  - plan: {command: status}\n')
    load.write_text('{"command": "models.load", "model": "smollm2-135m"}')
    return [
        str(plan) if word.endswith((".yaml", ".yml")) else str(load) if word.endswith(".json") else word
        for word in argv
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dry_run_makes_no_system_call_that_changes_anything(traced, tmp_path, home, command):
    files = tmp_path / "files"
    files.mkdir()
    argv = argv_of(command, files)
    before = files_under(home["HOME"])
    done, told = traced(*localllm("--dry-run", "--output", "json", *argv), env=home)
    report = json.loads(done.stdout)

    assert told == []
    assert done.returncode == 0, done.stderr
    assert problems("report", report) == []
    assert files_under(home["HOME"]) == before
    assert sorted(path.name for path in files.iterdir()) == ["load.json", "tour.plan.yaml"]


def test_the_report_in_words_is_no_other_matter(traced, home):
    done, told = traced(*localllm("--dry-run", "config", "set", "port", "8485"), env=home)

    assert (done.returncode, told) == (0, [])
    assert "port" in done.stdout


def test_a_saved_report_is_the_one_file_a_dry_run_writes(traced, tmp_path, home):
    saved = tmp_path / "report.json"
    done, told = traced(*localllm("--dry-run", "--out", str(saved), "config", "set", "port", "8485"), env=home)
    paths = [line for line in told if line.startswith(("open", "rename", "mkdir", "unlink"))]

    assert done.returncode == 0
    assert paths
    assert all(f"'{tmp_path}" in line for line in paths)
    assert not names_in(told) & ASKING


ASKED = [name for name in COMMANDS if plan_class(name).where != "local" and plan_class(name).on_server]


@pytest.mark.parametrize("command", ASKED)
def test_a_dry_run_that_asks_the_server_does_nothing_else(traced, tmp_path, home, echo_server, command):
    before = files_under(home["HOME"])
    argv = ["--server", echo_server.url, "--dry-run", "--ask-server", "--output", "json", *argv_of(command, tmp_path)]
    done, told = traced(*localllm(*argv), env=home)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["depth"] == "server"
    assert "connect" in names_in(told)
    assert names_in(told) <= ASKING
    assert files_under(home["HOME"]) == before


def test_the_trace_sees_what_c_code_threads_and_children_do(traced, tmp_path):
    """A trace that is blind would pass everything."""
    done, told = traced(sys.executable, "-c", DELIBERATE, cwd=tmp_path)
    wanted = [
        {"mkdir", "mkdirat"},
        {"creat", "openat"},
        {"rename", "renameat", "renameat2"},
        {"open", "openat"},
        {"write"},
        {"flock"},
        {"ftruncate"},
        {"chmod", "fchmodat"},
        {"unlink", "unlinkat"},
        {"socket"},
        {"kill"},
        {"rmdir", "unlinkat"},
        {"fork", "vfork", "clone"},
        {"execve"},
    ]

    assert done.returncode == 0, done.stderr
    assert [names for names in wanted if not names & names_in(told)] == []
    assert any("'of-the-child'" in line for line in told)
    assert (tmp_path / "of-the-child").is_dir()


def test_the_trace_sees_what_python_and_localllm_do(traced, tmp_path, home):
    env = home | {"XDG_CONFIG_HOME": str(tmp_path)}
    done, told = traced(*localllm("config", "set", "port", "8485"), env=env)

    assert done.returncode == 0
    assert {"mkdir", "mkdirat"} & names_in(told)
    assert any(f"'{tmp_path}" in line for line in told)


def test_the_trace_lets_reading_and_printing_be(traced, tmp_path):
    (tmp_path / "read").write_text("said")
    done, told = traced(sys.executable, "-c", "import os; print(open('read').read(), os.listdir())", cwd=tmp_path)

    assert (done.returncode, told) == (0, [])
    assert done.stdout.startswith("said")


def test_the_exit_code_of_a_traced_program_is_its_own(traced):
    assert traced(sys.executable, "-c", "raise SystemExit(7)")[0].returncode == 7
    assert traced(sys.executable, "-c", "import os; os.abort()")[0].returncode == 134
