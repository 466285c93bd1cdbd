"""Which server runs here: written by the server at its start, trusted only while that very process lives."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from attrs import asdict, frozen

from .state import instance_file, write_atomically


@frozen(kw_only=True)
class Instance:
    """One run of the server, `instance` new for each; `started` tells its process from a later one with the pid."""

    instance: str
    pid: int
    started: str
    url: str


def new_instance(url: str) -> Instance:
    """The instance that this process is."""
    return Instance(instance=secrets.token_hex(8), pid=os.getpid(), started=process_start(os.getpid()) or "", url=url)


def write_instance(state_dir: str | Path, instance: Instance) -> None:
    """Say that this server runs, in place of an earlier one."""
    write_atomically(instance_file(state_dir), json.dumps(asdict(instance)).encode() + b"\n", mode=0o600)


def remove_instance(state_dir: str | Path, instance: Instance) -> None:
    """Take our own entry away, and leave one that a later server wrote."""
    if _read(state_dir) == instance:
        instance_file(state_dir).unlink(missing_ok=True)


def live_instance(state_dir: str | Path) -> Instance | None:
    """The server that runs with this state folder; None when it is gone, even if its pid now is another program's."""
    found = _read(state_dir)
    if found is None or not found.started or process_start(found.pid) != found.started:
        return None
    return found


def process_start(pid: int) -> str | None:
    """When the process started, in a form that only serves to compare; None where there is no such process."""
    if sys.platform == "linux":
        try:
            # the name in parentheses may hold blanks and parentheses itself; field 22 counts from the whole line
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return None
        return f"{boot}:{stat.rpartition(')')[2].split()[19]}"
    try:
        found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _read(state_dir: str | Path) -> Instance | None:
    try:
        raw = json.loads(instance_file(state_dir).read_bytes())
        return Instance(
            instance=str(raw["instance"]), pid=int(raw["pid"]), started=str(raw["started"]), url=str(raw["url"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
