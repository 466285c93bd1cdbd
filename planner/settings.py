"""Settings from flags, the environment, one TOML file and defaults, in that order, each with its origin.

`ResolvedSettings` is also the table of settings: a field made by `option` is a setting, its name the key of the
file, its upper-case name after `LOCALLLM_` the environment variable. Resolving reads one file and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import attrs
from attrs import field, frozen

from ..errors import ConfigInvalid, NotFound
from .fields import METADATA_KEY, FieldSpec, default_of, option, problem_with
from .folders import user_folder

if TYPE_CHECKING:
    from .config_file import ConfigContent

ENV_PREFIX = "LOCALLLM_"
DEFAULT_PORT = 8484
HOST_NAME = r"^[^\s/\\\x00-\x1f]+$"


@frozen(kw_only=True, eq=False)
class ResolvedSettings:
    """Every setting with its effective value; `origins` says where each comes from.

    An origin is `flag`, `env LOCALLLM_…`, `file PATH:LINE` or `default`. Folders are absolute. `revision` names the
    config file's content, or is `none` without a file; `warnings` are things worth saying that stop nothing.
    """

    server: str = option(
        "http://127.0.0.1:8484",
        help="URL of the server that commands talk to; unset means this machine at `host` and `port`",
    )
    host: str = option("127.0.0.1", help="Address that `serve` listens on", min_length=1, pattern=HOST_NAME)
    port: int = option(DEFAULT_PORT, help="Port that `serve` listens on; 0 takes a free one", ge=0, le=65535)
    output: Literal["text", "json"] = option("text", help="How results are printed")
    models_dir: Path = option(Path(), help="Folder of the GGUF files; unset means the user's data folder")
    state_dir: Path = option(Path(), help="Folder of keys, locks and the log; unset means the user's state folder")
    log_dir: Path = option(Path(), help="Folder of the log; unset means `log` in `state_dir`")
    log_level: Literal["debug", "info", "warning", "error"] = option("info", help="Least severity that is logged")
    log_max_bytes: int = option(10_000_000, help="Size at which the log file is rotated", ge=1000, le=2**40)
    log_keep: int = option(3, help="How many rotated log files are kept", ge=0, le=1000)
    default_model: str | None = option(None, help="Model that `local-model` means while none is loaded", min_length=1)
    aliases: dict[str, str] = option(factory=dict, help="Names of your own for models: a table `name = id`")
    profile: str | None = option(None, help="Named set of load parameters; unset means `auto`", min_length=1)
    n_ctx: int | None = option(None, help="Context length of one request in tokens", ge=8, le=2**31 - 1)
    n_slots: int | None = option(None, help="How many requests run in one batch", ge=1, le=256)
    n_threads: int | None = option(None, help="CPU threads for decoding", ge=1, le=1024)
    max_loaded: int | None = option(
        None, help="Models that may be loaded at the same time; unset means no limit", ge=1, le=1000
    )
    memory_budget_bytes: int | None = option(
        None, help="Memory that all loaded models together may take; unset means no limit", ge=1, le=2**53 - 1
    )
    idle_ttl_s: int | None = option(
        None, help="Seconds after which an unused model is unloaded; unset means never", ge=1, le=31_536_000
    )
    queue_size: int = option(
        64, help="Requests that may wait for a model before new ones are refused", ge=0, le=100_000
    )
    max_body_bytes: int = option(16_777_216, help="Largest request body that the server takes", ge=1024, le=2**31 - 1)
    keep_alive_s: int = option(
        15, help="Seconds of silence after which a stream gets a comment line; 0 sends none", ge=0, le=3600
    )
    allowed_origins: tuple[str, ...] = option((), help="Web origins, besides the server's own, whose pages may ask it")
    allowed_hosts: tuple[str, ...] = option((), help="Host names, besides loopback and `host`, that requests may use")
    api_key: str | None = option(
        None, help="API key that the client sends; only from the environment", secret=True, min_length=1
    )

    config_file: Path = field(factory=Path)
    origins: dict[str, str] = field(factory=dict)
    revision: str = "none"
    warnings: tuple[str, ...] = ()

    @staticmethod
    def secrets() -> frozenset[str]:
        """Names of the settings whose value is never shown."""
        return frozenset(name for name, setting in settings_table().items() if setting.spec.secret)

    def shown(self, name: str) -> Any:
        """A setting's value as a JSON value; a secret that is set is `***`."""
        value = getattr(self, name)
        if value is not None and settings_table()[name].spec.secret:
            return "***"
        return _as_json(value)

    def provenance(self) -> dict[str, dict[str, Any]]:
        """The settings that every report names: where models lie, which server, how results are printed."""
        names = ("server", "models_dir", "state_dir", "output")
        return {f"settings.{name}": {"value": self.shown(name), "origin": self.origins[name]} for name in names}


@frozen(kw_only=True, eq=False, repr=False)  # unused methods would only slow the start
class Setting:
    """One row of the table of settings; `default` is None where it depends on the machine."""

    name: str
    annotation: Any
    default: Any
    spec: FieldSpec
    in_file: bool

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return ENV_PREFIX + self.name.upper()


@lru_cache(maxsize=1)
def settings_table() -> dict[str, Setting]:
    """Every setting by its name, in the order of the class."""
    attrs.resolve_types(ResolvedSettings)
    table: dict[str, Setting] = {}
    for attribute in attrs.fields(ResolvedSettings):
        spec: FieldSpec | None = attribute.metadata.get(METADATA_KEY)
        if spec is None:
            continue
        default = default_of(attribute)
        if isinstance(default, Path):
            default = None
        table[attribute.name] = Setting(
            name=attribute.name, annotation=attribute.type, default=default, spec=spec, in_file=not spec.secret
        )
    return table


def default_config_file() -> Path:
    """Where the config file lies if neither `--config` nor `LOCALLLM_CONFIG` says otherwise."""
    return user_folder("config") / "config.toml"


def setting_named(key: str) -> Setting:
    """The setting that `config get|set|unset KEY` means; `aliases.NAME` gives `aliases`.

    Raises NotFound with the nearest name.
    """
    table = settings_table()
    name = "aliases" if key.startswith("aliases.") and len(key) > len("aliases.") else key
    if name not in table:
        raise NotFound(f"there is no setting `{key}`", hint=nearest_setting(key), available=list(table))
    return table[name]


def parse_value(setting: Setting, text: str) -> Any:
    """A setting's value from text, as flags, the environment and `config set` give it. Raises ValueError in words."""
    base = _without_null(setting.annotation)
    if base is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"`{text}` is not a boolean: say `true` or `false`")
        return check_value(setting, _BOOLEANS[text.lower()])
    if base is int:
        if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 30:
            raise ValueError(f"`{text}` is not an integer")
        return check_value(setting, int(text))
    if get_origin(base) is tuple:
        return check_value(setting, [item.strip() for item in text.split(",") if item.strip()])
    if get_origin(base) is dict:
        return check_value(setting, _json_table(text))
    return check_value(setting, text)


def check_value(setting: Setting, value: Any) -> Any:
    """The value in the setting's own type, if its type and bounds allow it. Raises ValueError in words."""
    base = _without_null(setting.annotation)
    if get_origin(base) is Literal:
        if value not in get_args(base):
            raise ValueError(f"`{value}` is not one of {', '.join(f'`{choice}`' for choice in get_args(base))}")
    elif base is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"`{value}` is not an integer")
    elif base is bool:
        if not isinstance(value, bool):
            raise ValueError(f"`{value}` is not a boolean")
    elif get_origin(base) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"`{value}` is not a list of strings")
        value = tuple(_checked_text(item) for item in value)
    elif get_origin(base) is dict:
        if not isinstance(value, dict):
            raise ValueError(f"`{value}` is not a table of `name = id`")
        value = {_checked_text(key): _checked_text(item) for key, item in value.items()}
    else:
        value = _checked_text(value)
        if base is Path:
            value = _folder(value)
        elif setting.name == "server":
            value = _server_url(value)
    problem = problem_with(setting.spec, value)
    if problem is not None:
        raise ValueError(problem)
    return value


def resolve_settings(
    flags: Mapping[str, Any],
    env: Mapping[str, str],
    *,
    config_file: str | Path | None = None,
    must_exist: bool = True,
) -> ResolvedSettings:
    """The effective settings: flag, then environment, then file, then default.

    `flags` holds text or typed values and ignores None. `config_file` (or `LOCALLLM_CONFIG`) replaces the usual
    file and must exist unless `must_exist` is False, which is for the commands that write it. Raises ConfigInvalid
    with key, value and place, NotFound for a config file that is asked for and missing.
    """
    path, asked = _config_path(config_file, env)
    content = _config_content(path)
    if content is None and asked and must_exist:
        raise NotFound(f"there is no config file `{path}`", hint="`localllm config set KEY VALUE` makes one")
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, setting in settings_table().items():
        value, origin = _effective(setting, flags, env, content)
        values[name], origins[name] = value, origin
    _fill_derived(values, origins)
    return ResolvedSettings(
        **values,
        config_file=path,
        origins=origins,
        revision="none" if content is None else content.revision,
        warnings=_strange_variables(env),
    )


def _config_content(path: Path) -> ConfigContent | None:
    """What the file says; without a file, which is the usual case, its reader is not even imported."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        pass  # the reader says what is wrong
    from .config_file import read_config

    return read_config(path)


def _config_path(config_file: str | Path | None, env: Mapping[str, str]) -> tuple[Path, bool]:
    asked = config_file or env.get(f"{ENV_PREFIX}CONFIG")
    return (Path(asked).expanduser().absolute(), True) if asked else (default_config_file(), False)


def _effective(setting: Setting, flags: Mapping[str, Any], env: Mapping[str, str], content: Any) -> tuple[Any, str]:
    name = setting.name
    given = flags.get(name)
    if given is not None:
        place = f"--{name.replace('_', '-')}"
        return _checked_at(place, setting, given, ConfigInvalid), "flag"
    # An empty variable is how shells and service files say "not set".
    if env.get(setting.env):
        return _checked_at(setting.env, setting, env[setting.env], ConfigInvalid), f"env {setting.env}"
    if content is not None and name in content.values:
        place = content.place(name)
        return _checked_at(place, setting, content.values[name], ConfigInvalid, parse=False), f"file {place}"
    return setting.default, "default"


def _checked_at(place: str, setting: Setting, value: Any, error: type[ConfigInvalid], *, parse: bool = True) -> Any:
    try:
        return parse_value(setting, value) if parse and isinstance(value, str) else check_value(setting, value)
    except ValueError as fault:
        shown = "***" if setting.spec.secret else str(fault)
        raise error(f"{place}: `{setting.name}`: {shown}", hint=setting.spec.help, param=setting.name) from None


def _fill_derived(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Defaults that depend on the machine or on other settings."""
    if origins["models_dir"] == "default":
        values["models_dir"] = user_folder("data") / "models"
    if origins["state_dir"] == "default":
        values["state_dir"] = user_folder("state")
    if origins["log_dir"] == "default":
        values["log_dir"] = values["state_dir"] / "log"
    if origins["server"] == "default":
        values["server"] = server_url(values["host"], values["port"])


def server_url(host: str, port: int) -> str:
    """The URL of a server that listens on `host` and `port`; every address is reached by loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}"


def _strange_variables(env: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that look like a misspelt setting; others with the prefix belong to somebody else."""
    known = [setting.env for setting in settings_table().values()] + [f"{ENV_PREFIX}CONFIG"]
    found = []
    for name in sorted(env):
        if name.startswith(ENV_PREFIX) and name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=1, cutoff=0.9)
            if near:
                found.append(f"the environment variable `{name}` is not used; did you mean `{near[0]}`?")
    return tuple(found)


def nearest_setting(key: str) -> str:
    """A hint for a name that is no setting."""
    from difflib import get_close_matches

    table = settings_table()
    near = get_close_matches(key, table, n=1) or [name for name in table if name in key or key in name][:1]
    return f"did you mean `{near[0]}`?" if near else "`localllm config list` shows every setting"


_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _without_null(annotation: Any) -> Any:
    members = [member for member in get_args(annotation) if member is not type(None)]
    return members[0] if len(members) == 1 and type(None) in get_args(annotation) else annotation


def _checked_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"`{value}` is not a string")
    if any(character < " " or character == "\x7f" for character in value):
        raise ValueError(f"{value!r} holds a control character; write backslashes within single quotes")
    return value


def _folder(text: str) -> Path:
    if not text:
        raise ValueError("a folder's name is empty")
    return Path(text).expanduser().absolute()


def _server_url(text: str) -> str:
    from urllib.parse import urlsplit

    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound or " " in url or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"`{text}` is not the URL of a server, such as `http://127.0.0.1:{DEFAULT_PORT}`")
    return url.rstrip("/")


def _json_table(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(f"`{text}` is not a JSON object of `name: id`") from None


def _as_json(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return value
