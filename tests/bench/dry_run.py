"""Measure a dry run as a whole process against the bare import of what it needs, in turn, by medians.

The model lies in its folder, so that the dry run reads its header, hashes it and estimates its memory. CPU time is
told beside wall time, because it hardly changes where other processes take their share of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import servers

DRY_RUN = [sys.executable, "-m", "localllm", "--dry-run", "--output", "json", "models", "load", "smollm2-135m"]
IMPORTS = [sys.executable, "-c", "import attrs, cattrs, cyclopts, jsonschema"]
NOT_FOR_CHILDREN = ("LOCALLLM_", "XDG_", "PYTHONDONTWRITEBYTECODE")
"""Without byte code every process would compile its modules anew."""


def seconds(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """How long the command takes from start to end, and the CPU time it uses; it must end well."""
    with open(os.devnull, "r+b") as nowhere:
        streams = [(os.POSIX_SPAWN_DUP2, nowhere.fileno(), number) for number in (0, 1)]
        start = time.perf_counter()
        pid = os.posix_spawn(command[0], command, env, file_actions=streams)
        _, status, used = os.wait4(pid, 0)
        taken = time.perf_counter() - start
    if status:
        sys.exit(f"error: `{' '.join(command)}` ended with {os.waitstatus_to_exitcode(status)}")
    return taken, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    model = servers.default_model()
    with tempfile.TemporaryDirectory() as home:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(NOT_FOR_CHILDREN)}
        folder = Path(home, ".local/share/localllm/models")
        folder.mkdir(parents=True)
        (folder / model.name).symlink_to(model)
        dry, bare = [], []
        for number in range(given.rounds + 2):
            pair = (seconds(DRY_RUN, kept | {"HOME": home}), seconds(IMPORTS, kept | {"HOME": home}))
            if number >= 2:  # the first ones fill the page cache and write byte code
                dry.append(pair[0])
                bare.append(pair[1])
    for kind, name in enumerate(("wall", "CPU")):
        ours, theirs = (statistics.median(run[kind] for run in runs) for runs in (dry, bare))
        print(f"{name}: dry run {ours * 1000:.0f} ms, bare imports {theirs * 1000:.0f} ms, ratio {ours / theirs:.2f}")
    print(f"over {given.rounds} rounds (aim: a ratio of at most 1.25)")


main()
