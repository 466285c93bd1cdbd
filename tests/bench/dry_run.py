"""Measure a dry run as a whole process against the bare import of what it needs, in turn, by medians."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

DRY_RUN = [sys.executable, "-m", "localllm", "--dry-run", "--output", "json", "models", "load", "smollm2-135m"]
IMPORTS = [sys.executable, "-c", "import attrs, cattrs, cyclopts, jsonschema"]


def seconds(command: list[str], env: dict[str, str], *, codes: tuple[int, ...]) -> float:
    """How long the command takes from start to end; it must end with one of `codes`."""
    start = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    taken = time.perf_counter() - start
    if done.returncode not in codes:
        sys.exit(f"error: `{' '.join(command)}` ended with {done.returncode}\n{done.stderr.decode()}")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        env = {key: value for key, value in os.environ.items() if not key.startswith("LOCALLLM_")} | {"HOME": home}
        dry, bare = [], []
        for number in range(given.rounds + 2):
            pair = (seconds(DRY_RUN, env, codes=(0,)), seconds(IMPORTS, env, codes=(0,)))
            if number >= 2:  # the first ones fill the page cache and write byte code
                dry.append(pair[0])
                bare.append(pair[1])
    ratio = statistics.median(dry) / statistics.median(bare)
    print(f"dry run {statistics.median(dry) * 1000:.0f} ms, bare imports {statistics.median(bare) * 1000:.0f} ms")
    print(f"ratio {ratio:.2f} over {given.rounds} rounds (aim: at most 1.25)")


main()
