"""The plans of `localllm auth …`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where


@frozen(kw_only=True)
class AuthEnable:
    """Require an API key; a fresh key is made and shown once."""

    command: ClassVar[Literal["auth.enable"]] = "auth.enable"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("create", "update")
    on_server: ClassVar[bool] = False


@frozen(kw_only=True)
class AuthDisable:
    """Stop asking for an API key and forget the one there is."""

    command: ClassVar[Literal["auth.disable"]] = "auth.disable"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("delete", "update")
    on_server: ClassVar[bool] = False


@frozen(kw_only=True)
class AuthStatus:
    """Say whether an API key is asked for."""

    command: ClassVar[Literal["auth.status"]] = "auth.status"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = True
