"""`localllm version`: what runs here."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, Any

from ..planner.report import Facts
from .events import Result
from .preview import previewed

if TYPE_CHECKING:
    from ..planner.plans.version import Version
    from .context import Context
    from .events import Events

PARTS = ("llama-cpp-python", "llguidance", "litestar", "uvicorn")


def localllm_version() -> str:
    """The installed version of localllm, `unknown` where it runs from a bare checkout."""
    return package_version("localllm") or "unknown"


def preview_version(_plan: Version, _ctx: Context) -> Facts:
    """Reading the versions is all there is."""
    return Facts(effects=("read",), resolved={"version": localllm_version()})


@previewed(preview_version)
async def version(_plan: Version, _ctx: Context) -> Events:
    """The version of localllm, of Python, and of the packages that do the work."""
    data: dict[str, Any] = {
        "version": localllm_version(),
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "packages": {name: found for name in PARTS if (found := package_version(name)) is not None},
    }
    yield Result(data=data)


def package_version(name: str) -> str | None:
    """The version of an installed package; None where it is not there."""
    try:
        return installed(name)
    except PackageNotFoundError:
        return None
