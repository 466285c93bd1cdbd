"""A dry run changes nothing: every command under Python's audit hooks, and its folders before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from localllm.planner.plans import COMMANDS
from localllm.schemas import problems

GOLDEN = Path(__file__).parent.parent / "contract" / "golden"

HOOK = """
import os, sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.setxattr", "os.mkfifo", "os.mknod", "os.putenv", "os.kill", "os.killpg", "fcntl.flock",
    "fcntl.lockf", "socket.__new__", "socket.bind", "socket.connect", "socket.sendto", "socket.getaddrinfo",
    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "pty.spawn",
    "shutil.copyfile", "shutil.move", "shutil.rmtree", "sqlite3.connect", "mmap.__new__",
}
TRACE = os.open(os.environ["TRACE_FILE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def is_literal(host):
    # an address written out asks nobody
    return host == "localhost" or not set(host) - set("0123456789abcdef.:")


def hook(event, args):
    if event == "open":
        path, mode, flags = args
        if flags & WRITES:
            os.write(TRACE, f"open {path} {mode} {flags}\\n".encode(errors="replace"))
    elif event in CHANGES and not (event == "socket.getaddrinfo" and is_literal(args[0])):
        os.write(TRACE, f"{event} {args}\\n".encode(errors="replace"))


sys.addaudithook(hook)
"""
"""Runs before the first line of localllm (`sitecustomize`), and writes to a file that is open already."""


@pytest.fixture
def traced(cli, tmp_path, models_dir, model_path):
    """Run a command line under the hook: how it ended, and the forbidden things it did."""
    hooks, trace = tmp_path / "hooks", tmp_path / "trace"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(HOOK)

    def run(*args, env=None):
        trace.write_text("")
        place = {"PYTHONPATH": str(hooks), "TRACE_FILE": str(trace), "PYTHONDONTWRITEBYTECODE": "1"}
        done = cli(*args, env={"LOCALLLM_MODELS_DIR": str(models_dir), **place, **(env or {})})
        return done, trace.read_text().splitlines()

    return run


def files_under(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


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
def test_a_dry_run_writes_no_file_opens_no_socket_and_starts_no_process(traced, tmp_path, command):
    files = tmp_path / "files"
    files.mkdir()
    argv = argv_of(command, files)
    before = files_under(tmp_path / "home") if (tmp_path / "home").exists() else {}
    done, did = traced("--dry-run", "--output", "json", *argv)
    report = json.loads(done.out)

    assert did == []
    assert files_under(tmp_path / "home") == before
    assert sorted(path.name for path in files.iterdir()) == ["load.json", "tour.plan.yaml"]
    # `plan undo last` finds nothing to undo in a clean home, and says so in the same shape as without `--dry-run`
    assert problems("report" if done.code == 0 else "error", report) == []
    assert report["plan_id"] if done.code == 0 else (command, done.code) == ("plan.undo", 3)


def test_the_trace_sees_what_it_should(traced, tmp_path):
    """The same hook on a run that does change something: a trace that is blind would pass everything."""
    done, did = traced("config", "set", "port", "8485")

    assert done.code == 0
    assert any(line.startswith("open ") for line in did)
    assert any(line.startswith("os.rename ") for line in did)


def test_the_trace_sees_a_socket(traced):
    done, did = traced("--server", "http://127.0.0.1:9", "--dry-run", "--ask-server", "models", "load", "smollm2-135m")

    assert done.code == 7
    assert any(line.startswith("socket.connect ") for line in did)
