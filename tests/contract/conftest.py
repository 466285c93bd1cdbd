"""Prints the score of the command-line suite at the end of a run."""

from __future__ import annotations

import pytest

SUITE = "test_cli_surface.py"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """`cli_surface_score=… passed_cases=… failed_cases=… total_cases=…`, where the suite ran."""
    passed = _count(terminalreporter, "passed")
    failed = _count(terminalreporter, "failed") + _count(terminalreporter, "error")
    total = passed + failed
    if total:
        score = f"{100 * passed / total:g}"
        terminalreporter.write_line(
            f"cli_surface_score={score} passed_cases={passed} failed_cases={failed} total_cases={total}"
        )


def _count(terminalreporter: pytest.TerminalReporter, outcome: str) -> int:
    reports = terminalreporter.stats.get(outcome, [])
    return sum(1 for report in reports if SUITE in getattr(report, "nodeid", ""))
