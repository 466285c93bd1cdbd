"""The plan of `localllm apply`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, argument


@frozen(kw_only=True)
class Apply:
    """Run a saved plan, or the plan of a saved report."""

    command: ClassVar[Literal["apply"]] = "apply"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "create", "update", "delete", "network", "gpu", "exec")
    on_server: ClassVar[bool] = False

    file: str = argument(
        help="JSON file with a plan or a report; `-` reads standard input", min_length=1, client_path=True
    )
