"""Prints the scores of the command-line suite and of the template suite at the end of a run."""

from __future__ import annotations

import pytest

SUITES = {"cli_surface_score": "test_cli_surface.py", "template_score": "test_template_cases.py"}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """`cli_surface_score=… passed_cases=… failed_cases=… total_cases=…` for each suite that ran."""
    for name, suite in SUITES.items():
        passed = _count(terminalreporter, suite, "passed")
        failed = _count(terminalreporter, suite, "failed") + _count(terminalreporter, suite, "error")
        total = passed + failed
        if total:
            score = f"{100 * passed / total:g}"
            terminalreporter.write_line(
                f"{name}={score} passed_cases={passed} failed_cases={failed} total_cases={total}"
            )


def _count(terminalreporter: pytest.TerminalReporter, suite: str, outcome: str) -> int:
    reports = terminalreporter.stats.get(outcome, [])
    return sum(1 for report in reports if suite in getattr(report, "nodeid", ""))
