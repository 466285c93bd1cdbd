"""The plan of `localllm version`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where


@frozen(kw_only=True)
class Version:
    """Show the version of localllm and of what it runs on."""

    command: ClassVar[Literal["version"]] = "version"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = True
