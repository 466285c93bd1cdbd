"""`localllm config …`: the settings, and the one TOML file that keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigInvalid, InUse, NotFound, StalePlan
from ..planner.report import Facts
from ..planner.settings import Setting, parse_value, setting_named, settings_table
from .events import Result
from .preconditions import config_precondition
from .preview import previewed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tomlkit import TOMLDocument

    from ..planner.plans.config import ConfigGet, ConfigList, ConfigSet, ConfigUnset
    from .context import Context
    from .events import Events


def preview_get(plan: ConfigGet, ctx: Context) -> Facts:
    """The setting as it is."""
    return Facts(effects=("read",), resolved=_row(plan.key, ctx))


@previewed(preview_get)
async def get(plan: ConfigGet, ctx: Context) -> Events:
    """One setting: value, origin, default. Raises NotFound with the nearest name."""
    yield Result(data=_row(plan.key, ctx))


def preview_list(_plan: ConfigList, ctx: Context) -> Facts:
    """Reading the file is all there is."""
    return Facts(effects=("read",), resolved={"config_file": str(ctx.settings.config_file)})


@previewed(preview_list)
async def list_settings(_plan: ConfigList, ctx: Context) -> Events:
    """Every setting, in the order of the help page."""
    rows = [_row(name, ctx) for name in settings_table()]
    data = {"config_file": str(ctx.settings.config_file), "revision": ctx.settings.revision, "settings": rows}
    yield Result(data={**data, "warnings": list(ctx.settings.warnings)})


def preview_set(plan: ConfigSet, ctx: Context) -> Facts:
    """The value in its own type, and what the file says now. Raises what `set_value` would."""
    return _change_facts(plan.key, _checked(plan.key, plan.value), ctx)


@previewed(preview_set)
async def set_value(plan: ConfigSet, ctx: Context) -> Events:
    """Write one setting; comments and the order of the file stay, and a write at the same time stays too."""
    value = _checked(plan.key, plan.value)
    before = _change(ctx.settings.config_file, plan.key, value)
    yield Result(data=_changed(plan.key, before, value, ctx))


def preview_unset(plan: ConfigUnset, ctx: Context) -> Facts:
    """What would go. Raises what `unset` would."""
    _to_write(plan.key)
    return _change_facts(plan.key, None, ctx)


@previewed(preview_unset)
async def unset(plan: ConfigUnset, ctx: Context) -> Events:
    """Remove one setting from the file; one that is not in it is no fault."""
    _to_write(plan.key)
    before = _change(ctx.settings.config_file, plan.key, None)
    yield Result(data=_changed(plan.key, before, None, ctx))


def _row(key: str, ctx: Context) -> dict[str, Any]:
    setting = setting_named(key)
    value, default = ctx.settings.shown(setting.name), setting.default
    if key != setting.name:
        alias = key.partition(".")[2]
        if alias not in value:
            raise NotFound(f"there is no alias `{alias}`", hint="`localllm config get aliases` lists them")
        value, default = value[alias], None
    return {
        "key": key,
        "value": value,
        "origin": ctx.settings.origins[setting.name],
        "default": _shown_default(default),
        "env": setting.env,
        "help": setting.spec.help,
    }


def _checked(key: str, text: str) -> Any:
    """The value to write. Raises ConfigInvalid for an unknown key, a bad value or a secret."""
    setting = _to_write(key)
    if not setting.in_file:
        raise ConfigInvalid(
            f"`{key}` is a secret and has no place in a file",
            hint=f"set the environment variable `{setting.env}`",
            param=key,
        )
    try:
        if key != setting.name:
            return parse_value(setting, _alias_table(key, text))[key.partition(".")[2]]
        value = parse_value(setting, text)
    except ValueError as error:
        raise ConfigInvalid(f"`{key}`: {error}", hint=setting.spec.help, param=key) from None
    return _toml_value(setting, value, text)


def _to_write(key: str) -> Setting:
    """The setting of a key that is to go into the file, where a key nobody knows would be a fault from then on."""
    try:
        return setting_named(key)
    except NotFound as error:
        raise ConfigInvalid(error.message, hint=error.hint, param=key) from None


def _alias_table(key: str, text: str) -> str:
    import json

    return json.dumps({key.partition(".")[2]: text})


def _toml_value(setting: Setting, value: Any, text: str) -> Any:
    """The value as TOML has it; a path stays as it was typed."""
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, (int, str, bool, dict)) else text


def _change(path: Path, key: str, value: Any, *, check: Callable[[Any], None] | None = None) -> Any:
    """Set the key, or remove it at None, under the file's lock; what it was before, which `check` may refuse."""
    from tomlkit import dumps

    from .state import locked, write_atomically

    try:
        with locked(path):
            document = _read(path)
            before = _lookup(document, key)
            if check is not None:
                check(before)
            if before == value and type(before) is type(value):
                return before
            _apply(document, key, value)
            write_atomically(path, dumps(document).encode("utf-8"), mode=None if path.exists() else 0o644)
    except (InUse, StalePlan):
        raise
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be written: {error.strerror or error}") from None
    return before


def check_value_is(path: Path, key: str, expected: Any) -> None:
    """Raise StalePlan unless the file has this value for the key; None is "not in the file"."""
    _check_same(_lookup(_read(path), key), expected, key)


def exchange(path: Path, key: str, expected: Any, value: Any) -> None:
    """Put a value in the place of the expected one, None for none, under the file's lock.

    Raises StalePlan, and writes nothing, where the file says something else by now.
    """
    _change(path, key, value, check=lambda found: _check_same(found, expected, key))


def _check_same(found: Any, expected: Any, key: str) -> None:
    if found != expected or type(found) is not type(expected):
        raise StalePlan(
            f"`{key}` is `{found}` by now, not `{expected}`", hint="what has changed since is not overwritten"
        )


def _read(path: Path) -> TOMLDocument:
    """The file with its comments. Raises ConfigInvalid as `resolve_settings` would: a faulty file is not touched."""
    from tomlkit import document, parse

    from ..planner.config_file import read_config

    content = read_config(path)
    return document() if content is None else parse(content.raw.decode("utf-8-sig"))


def _lookup(document: TOMLDocument, key: str) -> Any:
    name, _, rest = key.partition(".")
    value = document.unwrap().get(name)
    if rest:
        return value.get(rest) if isinstance(value, dict) else None
    return value


def _apply(document: TOMLDocument, key: str, value: Any) -> None:
    from tomlkit import table

    name, _, rest = key.partition(".")
    holder: Any = document
    if rest:
        if name not in document:
            document[name] = table()
        holder, name = document[name], rest
    if value is None:
        if name in holder:
            del holder[name]
    else:
        holder[name] = value


def _change_facts(key: str, value: Any, ctx: Context) -> Facts:
    before = _lookup(_read(ctx.settings.config_file), key)
    changes = before != value
    origin = ctx.settings.origins[setting_named(key).name]
    covered = origin == "flag" or origin.startswith("env ")
    return Facts(
        effects=("update",) if changes else ("read",),
        resolved={"config_file": str(ctx.settings.config_file), "key": key, "value": value},
        preconditions=(config_precondition(ctx.settings),),
        warnings=(f"the {origin} goes before the file",) if covered else (),
        diff={"before": {key: before}, "after": {key: value}},
    )


def _changed(key: str, before: Any, after: Any, ctx: Context) -> dict[str, Any]:
    return {
        "key": key,
        "before": before,
        "after": after,
        "changed": before != after,
        "config_file": str(ctx.settings.config_file),
        "note": "a running server reads it at its next start",
    }


def _shown_default(default: Any) -> Any:
    """A default as JSON; folders have one that depends on the machine, so none is shown."""
    if isinstance(default, tuple):
        return list(default)
    return default if default is None or isinstance(default, (str, int, dict)) else None
