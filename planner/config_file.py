"""Reads the TOML config file and names every fault by file and line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from attrs import frozen

from ..errors import ConfigInvalid

LARGEST_CONFIG_BYTES = 1_048_576


@frozen(kw_only=True)
class ConfigContent:
    """A config file that parses and holds known keys only; values are as TOML gives them."""

    path: Path
    raw: bytes
    values: dict[str, Any]

    @property
    def revision(self) -> str:
        """A name for exactly this content."""
        import hashlib

        return "sha256:" + hashlib.sha256(self.raw).hexdigest()

    def place(self, key: str) -> str:
        """`PATH:LINE` of a key, or the path alone where the line is not found."""
        return f"{self.path}{_line_suffix(self.raw.decode('utf-8-sig'), key)}"


def read_config(path: Path) -> ConfigContent | None:
    """The file's content, or None where there is no file. Raises ConfigInvalid."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_CONFIG_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(raw) > LARGEST_CONFIG_BYTES:
        raise ConfigInvalid(f"{path}: is larger than {LARGEST_CONFIG_BYTES} bytes, which no config file is")
    values = _parse(path, _decode(path, raw))
    content = ConfigContent(path=path, raw=raw, values=values)
    _refuse_unknown(content)
    return content


def _decode(path: Path, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        hint = "save the file as UTF-8"
        raise ConfigInvalid(f"{path}:{line}: is not UTF-8 (byte 0x{raw[error.start]:02x})", hint=hint) from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _toml_fault(path, text, str(error)) from None
    except RecursionError:
        raise ConfigInvalid(f"{path}: is nested too deeply") from None


def _toml_fault(path: Path, text: str, message: str) -> ConfigInvalid:
    """tomllib's words with the place in front, and the way out of the usual traps."""
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    words = message[: found.start()] if found else message
    place = f"{path}:{found[1]}:{found[2]}" if found and found[1] else f"{path}:{len(text.splitlines()) or 1}"
    hint = None
    if "overwrite" in words:
        words, hint = "the key is given twice", "keep one of the two"
    elif "backslash" in words or "\\" in words:
        hint = "write paths with backslashes within single quotes: 'C:\\models'"
    return ConfigInvalid(f"{place}: {words[:1].lower()}{words[1:]}", hint=hint)


def _refuse_unknown(content: ConfigContent) -> None:
    from .settings import nearest_setting, settings_table

    table = settings_table()
    for key in content.values:
        place = content.place(key)
        if key not in table:
            raise ConfigInvalid(f"{place}: there is no setting `{key}`", hint=nearest_setting(key), param=key)
        if not table[key].in_file:
            hint = f"set the environment variable `{table[key].env}`"
            raise ConfigInvalid(f"{place}: `{key}` is a secret and has no place in a file", hint=hint, param=key)


def _line_suffix(text: str, key: str) -> str:
    """`:LINE` of a top-level key or of the table of that name."""
    name = re.escape(key)
    found = re.search(rf"""^[ \t]*(?:\[[ \t]*)?["']?{name}["']?[ \t]*(?:=|\]|\.)""", text, re.MULTILINE)
    return f":{text.count(chr(10), 0, found.start()) + 1}" if found else ""
