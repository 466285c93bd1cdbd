"""A replay of many steps: a thousand are quick, and ten thousand take hardly more memory than a few."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fixtures.yardstick import slowness

PROBE = """
import resource, sys
from localllm.__main__ import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
PLAN = {"command": "config.get", "key": "port"}
EXPECT = {"$.result.value": {"type": "integer"}, "exit_code": 0}
MOST_SECONDS = 3.0
MOST_GROWTH = 1.25
MOST_GROWTH_WRITTEN_KB = 15_000
"""By how much more memory nine thousand more steps of a file may take; their text alone is a tenth of it."""


@pytest.fixture
def measured(clean_env, tmp_path):
    """Replay steps with a report: seconds of processor time (a busy machine adds none), peak memory, and the totals."""

    def run(*steps):
        file = tmp_path / "many.plan.json"
        file.write_text(json.dumps({"format_version": "1.0", "steps": steps}))
        argv = ["--output", "json", "replay", str(file), "--report", f"junit={tmp_path / 'junit.xml'}"]
        done = subprocess.run([sys.executable, "-c", PROBE, *argv], env=clean_env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        seconds, memory = done.stderr.split()[-2:]
        return float(seconds), int(memory), json.loads(done.stdout)

    return run


def test_a_thousand_local_steps_take_three_seconds_at_most(measured):
    seconds, _, totals = measured(*({"name": f"step {n}", "plan": PLAN, "expect": EXPECT} for n in range(1000)))

    assert totals["passed"] == 1000
    assert seconds <= MOST_SECONDS * slowness()


def test_ten_thousand_steps_take_the_memory_of_ten(measured):
    _, few, _ = measured({"for_each": list(range(10)), "plan": PLAN, "expect": EXPECT})
    _, many, totals = measured({"for_each": list(range(10_000)), "plan": PLAN, "expect": EXPECT})

    assert totals["passed"] == 10_000
    assert many <= few * MOST_GROWTH


def test_ten_thousand_written_steps_take_hardly_more_memory_than_a_thousand(measured):
    rows = [{"name": f"step {n}", "plan": PLAN, "expect": EXPECT} for n in range(10_000)]
    _, few, _ = measured(*rows[:1000])
    _, many, totals = measured(*rows)

    assert totals["passed"] == 10_000
    assert many - few <= MOST_GROWTH_WRITTEN_KB
