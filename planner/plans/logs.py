"""The plan of `localllm logs`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, option


@frozen(kw_only=True)
class Logs:
    """Show the server's log."""

    command: ClassVar[Literal["logs"]] = "logs"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = True

    lines: int = option(50, help="How many of the newest lines to show", ge=0, le=1_000_000, aliases=("-n",))
    follow: bool = option(False, help="Go on with lines as they come", aliases=("-f",))
    level: Literal["debug", "info", "warning", "error"] = option("info", help="Least severity to show")
