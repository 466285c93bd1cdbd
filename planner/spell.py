"""The argument vector that means a plan: the way back from `cli.parse`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from ..errors import Unsupported
from .argv import flag_of
from .fields import METADATA_KEY, FieldSpec, default_of
from .plans import plan_class


def argv_of(raw: Mapping[str, Any]) -> list[str]:
    """Arguments for `localllm` that parse back to the raw plan's meaning; `raw` must load.

    Raises Unsupported for a field that has no flag. Every option is written with `=` and operands follow `--`, so
    that no value is taken for a flag.
    """
    command = str(raw["command"])
    cls = plan_class(command)
    attrs.resolve_types(cls)
    options: list[str] = []
    operands: list[str] = []
    for attribute in attrs.fields(cls):
        spec: FieldSpec | None = attribute.metadata.get(METADATA_KEY)
        value = raw.get(attribute.name)
        if spec is None or value is None:
            continue
        flag = flag_of(attribute)
        if flag is None and not spec.positional:
            if value != default_of(attribute):
                raise Unsupported(f"`{attribute.name}` of `{command}` has no place on a command line")
        elif flag is None:
            operands += [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
        elif flag.kind == "switch":
            options.append(flag.name if value else f"--no-{flag.name[2:]}")
        elif flag.kind == "list":
            options += [f"{flag.name}={item}" for item in value]
            if not value and default_of(attribute):
                options.append(f"--no-{flag.name[2:]}")
        else:
            options.append(f"{flag.name}={_word(value)}")
    return [*command.split("."), *options, *(["--", *operands] if operands else [])]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
