"""The plans of `localllm config …`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, argument

SETTING = "Name of a setting, as `localllm config list` shows it"


@frozen(kw_only=True)
class ConfigGet:
    """Show one setting and where its value comes from."""

    command: ClassVar[Literal["config.get"]] = "config.get"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = False

    key: str = argument(help=SETTING, min_length=1, example="port")


@frozen(kw_only=True)
class ConfigSet:
    """Write one setting to the config file."""

    command: ClassVar[Literal["config.set"]] = "config.set"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("update",)
    on_server: ClassVar[bool] = False

    key: str = argument(help=SETTING, min_length=1, example="port")
    value: str = argument(help="New value, checked against the setting's type", example="8485")


@frozen(kw_only=True)
class ConfigUnset:
    """Remove one setting from the config file, so that its default holds again."""

    command: ClassVar[Literal["config.unset"]] = "config.unset"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("update",)
    on_server: ClassVar[bool] = False

    key: str = argument(help=SETTING, min_length=1, example="port")


@frozen(kw_only=True)
class ConfigList:
    """List every setting with its value, origin and default."""

    command: ClassVar[Literal["config.list"]] = "config.list"
    where: ClassVar[Where] = "local"
    effects: ClassVar[tuple[Effect, ...]] = ("read",)
    on_server: ClassVar[bool] = False
