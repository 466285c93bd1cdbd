"""A test run that is killed leaves no process behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

STARTS_ONE = """
import subprocess, sys
sys.path.insert(0, sys.argv[1])
from fixtures.tied import tied
subprocess.Popen(tied("-c", "import time; print('up', flush=True); time.sleep(300)"))
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_what_is_tied_ends_with_the_killed_parent() -> None:
    tests = str(Path(__file__).parent.parent)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", STARTS_ONE, tests], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        parent.send_signal(signal.SIGKILL)

        assert parent.stdout.read() == b""  # its last writer has gone: the child too
