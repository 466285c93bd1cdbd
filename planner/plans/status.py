"""The plan of `localllm status`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where


@frozen(kw_only=True)
class Status:
    """Show the running server, its loaded models and their memory."""

    command: ClassVar[Literal["status"]] = "status"
    where: ClassVar[Where] = "server"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = True
