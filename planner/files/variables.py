"""`${name}` in plan files: values with their types, nested access, and secrets that stay references.

A string that is one reference takes the value's own type; a reference within other text becomes text; `$${` is a
plain `${`. `${user.name}` and `${list[0]}` reach into values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

ENV_PREFIX = "LOCALLLM_VAR_"
HIDDEN = "***"
NAME = r"[A-Za-z_][A-Za-z0-9_]*"

_NAME = re.compile(NAME)
_REFERENCE = re.compile(rf"\$\$\{{|\$\{{\s*({NAME}(?:\.[A-Za-z0-9_-]+|\[\d+\])*)\s*\}}|\$\{{([^}}]*)\}}?")
_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\[(\d+)\]")
_UNSET = object()


class VariableFault(Exception):
    """A reference that means nothing; the text says why, in words."""


@frozen
class Secret:
    """A value by reference: where it is read, and what was read there. Never printed."""

    reference: str
    value: str

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"


@frozen
class Unknown:
    """A value that only running gives: what a step captures, or the item of a list that is not known yet."""


UNKNOWN = Unknown()

Scope = Mapping[str, Any]


def references(value: Any) -> Iterator[str]:
    """Every reference within a value, such as `user.name`; faulty ones too."""
    if isinstance(value, str):
        for match in _REFERENCE.finditer(value):
            if match.group() != "$${":
                yield match.group(1) or match.group(2) or ""
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from references(key)
            yield from references(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from references(item)


def substitute(value: Any, scope: Scope) -> Any:
    """The value with its references replaced; `UNKNOWN` stands where only running can tell.

    Secrets give their value: what comes out may be run, and shown only through `redact`. Raises VariableFault.
    """
    if isinstance(value, str):
        return _in_text(value, scope) if "${" in value else value
    if is_secret(value):
        raise VariableFault("a secret belongs in `vars`, and is used by its name")
    if isinstance(value, Mapping):
        return {str(_plain(substitute(key, scope))): substitute(item, scope) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [substitute(item, scope) for item in value]
    return value


def is_secret(value: Any) -> bool:
    """Whether a value is `{"$secret": …}`."""
    return isinstance(value, Mapping) and set(value) == {"$secret"}


def read_secret(value: Mapping[str, Any], env: Mapping[str, str]) -> Secret:
    """The secret that `{"$secret": "env:NAME"}` names. Raises VariableFault."""
    reference = value["$secret"]
    if not isinstance(reference, str) or not reference.startswith("env:") or not reference[4:]:
        raise VariableFault("a secret is a reference like `env:NAME`")
    if not env.get(reference[4:]):
        raise VariableFault(f"the environment variable `{reference[4:]}`, which holds a secret, is not set")
    return Secret(reference, env[reference[4:]])


def settle(given: Mapping[str, Any], outer: Scope, env: Mapping[str, str]) -> dict[str, Any]:
    """The values of a block of variables, which may refer to each other and to `outer`, in any order.

    Values in the result are JSON values, `Secret`s, or `UNKNOWN`. Raises VariableFault, for a cycle with its path.
    """
    return _Settler(given, outer, env).settle()


def from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """The variables that the environment sets: `LOCALLLM_VAR_model=tiny`, or `LOCALLLM_VAR_MODEL` for `model`."""
    found: dict[str, Any] = {}
    for name in sorted(env):
        rest = name.removeprefix(ENV_PREFIX)
        if rest != name and _NAME.fullmatch(rest):
            found[rest] = value_of(env[name])
            if rest.isupper():
                found.setdefault(rest.lower(), found[rest])
    return found


def from_flags(pairs: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """The variables of `--var name=value`. Raises VariableFault."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise VariableFault(f"`{pair}` is not `name=value`")
        found[name] = value_of(text)
    return found


def value_of(text: str) -> Any:
    """A value given as text: JSON where it is JSON (`3`, `true`, `[1, 2]`, `"3"`), else the text itself."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def secrets_of(*scopes: Scope) -> frozenset[str]:
    """The secret values within scopes, which `redact` hides."""
    return frozenset(value.value for scope in scopes for value in _walk(scope) if isinstance(value, Secret))


def redact(value: Any, secrets: frozenset[str]) -> Any:
    """The value with every secret in its texts replaced by `***`."""
    if not secrets:
        return value
    if isinstance(value, str):
        for secret in sorted(secrets, key=len, reverse=True):
            value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, Secret):
        return {"$secret": value.reference}
    if isinstance(value, Mapping):
        return {redact(key, secrets): redact(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item, secrets) for item in value]
    return value


def look_up(reference: str, scope: Scope) -> Any:
    """What a reference means: a JSON value, a `Secret`, or `UNKNOWN`. Raises VariableFault, with the nearest name."""
    match = _NAME.match(reference)
    if match is None:
        raise VariableFault(f"`${{{reference}}}` names no variable")
    name = match.group()
    value = scope.get(name, _UNSET)
    if value is _UNSET:
        raise VariableFault(_unknown_name(name, scope))
    for step in _STEP.finditer(reference, match.end()):
        if value is UNKNOWN:
            break
        value = _reach(value, step.group(1), step.group(2), reference)
    return value


def _reach(value: Any, key: str | None, index: str | None, reference: str) -> Any:
    if key is not None and isinstance(value, Mapping) and key in value:
        return value[key]
    if index is not None and isinstance(value, (list, tuple)) and int(index) < len(value):
        return value[int(index)]
    raise VariableFault(f"`${{{reference}}}`: there is no `{key if key is not None else index}` in it")


def _unknown_name(name: str, scope: Scope) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(scope), n=1)
    return f"there is no variable `{name}`" + (f", did you mean `{near[0]}`?" if near else "")


def _in_text(text: str, scope: Scope) -> Any:
    whole = _REFERENCE.fullmatch(text)
    if whole is not None and whole.group(1) is not None:
        value = look_up(whole.group(1), scope)
        return value.value if isinstance(value, Secret) else _plain(value)

    unknown = False

    def replace(match: re.Match[str]) -> str:
        nonlocal unknown
        if match.group() == "$${":
            return "${"
        if match.group(1) is None:
            raise VariableFault(f"`{match.group()}` is not a reference; write `$${{` for a plain `${{`")
        value = look_up(match.group(1), scope)
        if value is UNKNOWN:
            unknown = True
            return ""
        return as_text(value)

    replaced = _REFERENCE.sub(replace, text)
    return UNKNOWN if unknown else replaced


def as_text(value: Any) -> str:
    """A value within other text: strings as they are, everything else as JSON."""
    if isinstance(value, Secret):
        return value.value
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value without `Secret`s: their texts instead."""
    if isinstance(value, Secret):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _walk(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _walk(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _walk(item)


def _refuse(name: str) -> Any:
    raise ValueError(name)


class _Settler:
    """Settles each variable once, along the references; `trail` is the path that shows a cycle."""

    def __init__(self, given: Mapping[str, Any], outer: Scope, env: Mapping[str, str]) -> None:
        self.given = given
        self.outer = outer
        self.env = env
        self.done: dict[str, Any] = {}
        self.trail: list[str] = []

    def settle(self) -> dict[str, Any]:
        for name in self.given:
            self._settle(name)
        return self.done

    def _settle(self, name: str) -> None:
        if name in self.done:
            return
        if name in self.trail:
            path = " → ".join([*self.trail[self.trail.index(name) :], name])
            raise VariableFault(f"the variables refer to each other in a circle: {path}")
        self.trail.append(name)
        raw = self.given[name]
        for reference in references(raw):
            match = _NAME.match(reference)
            if match is not None and match.group() in self.given and match.group() != name:
                self._settle(match.group())
            elif match is not None and match.group() == name and name not in self.outer:
                self._settle(name)
        self.done[name] = self._value(raw, {**self.outer, **self.done})
        self.trail.pop()

    def _value(self, raw: Any, scope: Scope) -> Any:
        if is_secret(raw):
            return read_secret(raw, self.env)
        if isinstance(raw, Mapping):
            return {key: self._value(item, scope) for key, item in raw.items()}
        if isinstance(raw, (list, tuple)):
            return [self._value(item, scope) for item in raw]
        if isinstance(raw, str):
            whole = _REFERENCE.fullmatch(raw)
            if whole is not None and whole.group(1) is not None:
                return look_up(whole.group(1), scope)  # a secret stays one
        return substitute(raw, scope)
