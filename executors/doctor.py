"""`localllm doctor`: what works on this machine, what does not, and how to mend it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from attrs import asdict

from ..errors import LocalLLMError
from ..planner.report import Facts
from .events import Progress, Result
from .preview import previewed

if TYPE_CHECKING:
    from ..planner.plans.doctor import Doctor
    from .checks import Finding
    from .context import Context
    from .events import Events

CHECKS = (
    "python",
    "config",
    "models_folder",
    "default_model",
    "chat_template",
    "llama_cpp",
    "cpu",
    "memory",
    "state_folder",
    "disk",
    "log",
    "api_key",
    "port",
    "server",
)
"""Every check, in the order they are shown; each is the function of that name in `checks`."""


def preview_doctor(_plan: Doctor, ctx: Context) -> Facts:
    """Which checks would run; their answers are only known afterwards."""
    warnings = () if ctx.config_fault is None else (ctx.config_fault.message,)
    return Facts(
        effects=("read", "network", "exec"),
        resolved={"checks": list(CHECKS)},
        unknown=("the outcome of every check",),
        warnings=warnings,
    )


@previewed(preview_doctor)
async def doctor(_plan: Doctor, ctx: Context) -> Events:
    """Run every check. The answer is no (exit 1) where one fails; a warning alone is a yes."""
    from . import checks

    findings: list[Finding] = []
    for number, name in enumerate(CHECKS):
        yield Progress(stage="checking", current=number, total=len(CHECKS))
        findings.append(await _run(name, getattr(checks, name), ctx))
    counts = Counter(finding.status for finding in findings)
    yield Result(
        ok=counts["fail"] == 0,
        data={
            "healthy": counts["fail"] == 0,
            "ok": counts["ok"],
            "warnings": counts["warn"],
            "failures": counts["fail"],
            "checks": [asdict(finding) for finding in findings],
        },
    )


async def _run(name: str, check: Callable[[Context], Finding | Awaitable[Finding]], ctx: Context) -> Finding:
    """One check; its own failure is a finding, so that it hides none of the others."""
    import asyncio

    from .checks import Finding

    try:
        found = await asyncio.to_thread(check, ctx)
        return found if isinstance(found, Finding) else await found
    except LocalLLMError as error:
        return Finding(name=name, status="fail", message=error.message, hint=error.hint)
    except Exception as error:
        message = f"the check itself failed: {type(error).__name__}: {error}"
        return Finding(name=name, status="fail", message=message, hint="please report this")
