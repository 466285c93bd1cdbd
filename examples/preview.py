"""Look at a plan before it runs: make a report by a dry run, check what it would do, then run that very plan.

A running server is needed for the last step; start one with `make serve`, or name another by `LOCALLLM_SERVER`.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

LOCALLLM = [sys.executable, "-m", "localllm", "--output", "json"]

preview = subprocess.run(
    [*LOCALLLM, "--dry-run", "models", "load", "smollm2-135m", "--n-ctx", "2048"],
    check=True,
    capture_output=True,
    text=True,
)
report = json.loads(preview.stdout)
print("plan:   ", report["plan_id"])
print("effects:", ", ".join(report["effects"]))
if "network" in report["effects"]:
    sys.exit("this plan would use the network")

with tempfile.TemporaryDirectory() as folder:
    saved = Path(folder) / "report.json"
    saved.write_text(preview.stdout)
    done = subprocess.run([*LOCALLLM, "apply", str(saved)], check=True, capture_output=True, text=True)
print("loaded: ", json.loads(done.stdout))
