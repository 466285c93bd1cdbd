"""The plan of `localllm doctor`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where


@frozen(kw_only=True)
class Doctor:
    """Check the installation and say what to mend."""

    command: ClassVar[Literal["doctor"]] = "doctor"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "exec")
    on_server: ClassVar[bool] = False
