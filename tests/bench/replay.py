"""How long 1,000 local steps of a plan file take in one process, and how memory grows with the number of steps.

    python tests/bench/replay.py [--steps 1000 10000]

Each figure is a process of its own: `localllm replay` on a file with that many written steps, and on one step that
goes through that many items, reports included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROBE = """
import resource, sys
from localllm.__main__ import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
EXPECT = {"$.result.value": {"type": "integer"}, "exit_code": 0}
PLANS = (
    {"command": "config.get", "key": "port"},
    {"command": "config.get", "key": "queue_size"},
    {"command": "config.get", "key": "log_keep"},
)


def written(steps: int) -> dict[str, object]:
    """A file with that many steps."""
    rows = [{"name": f"step {n}", "plan": PLANS[n % len(PLANS)], "expect": EXPECT} for n in range(steps)]
    return {"format_version": "1.0", "steps": rows}


def repeated(steps: int) -> dict[str, object]:
    """A file with one step that goes through that many items."""
    step = {"name": "item ${item}", "for_each": list(range(steps)), "plan": PLANS[0], "expect": EXPECT}
    return {"format_version": "1.0", "steps": [step]}


def measure(folder: Path, name: str, document: dict[str, object]) -> dict[str, float]:
    """Seconds and peak memory of one replay."""
    file = folder / f"{name}.plan.json"
    file.write_text(json.dumps(document))
    env = os.environ | {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
    argv = ["--output", "json", "replay", str(file), "--report", f"junit={folder / 'junit.xml'}"]
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", PROBE, *argv], env=env, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    summary = json.loads(done.stdout)
    return {
        "total_s": seconds,
        "steps_s": summary["duration_ms"] / 1000,
        "peak_mb": int(done.stderr.split()[-1]) / 1024,
    }


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 1000, 10_000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for steps in options.steps:
            for kind, make in (("written", written), ("for_each", repeated)):
                figures = measure(Path(folder), f"{kind}-{steps}", make(steps))
                shown = "  ".join(f"{name}={value:.2f}" for name, value in figures.items())
                print(f"{kind:<9} steps={steps:<6} {shown}")


if __name__ == "__main__":
    main()
