"""Reads an argument vector against the flags a command has: which command, which options, which operands.

It settles what a parser library leaves open: options of every command go anywhere, the last of repeated ones wins,
a value may start with `-`, and a forgotten value never swallows the next flag. Types are not its business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import attrs
from attrs import define, field, frozen

from ..errors import UsageError
from .fields import METADATA_KEY, FieldSpec

Kind = Literal["switch", "count", "value", "list"]


@frozen(kw_only=True)
class Flag:
    """One option of a command: `field` is the plan field it fills."""

    field: str
    names: tuple[str, ...]
    kind: Kind
    is_global: bool = False

    @property
    def name(self) -> str:
        """The long name, dashes included."""
        return self.names[0]


@define(kw_only=True)
class Arguments:
    """An argument vector taken apart; values are still text. A switch holds `True` or `False`, a count its number."""

    command: str = ""
    words: list[str] = field(factory=list)
    options: dict[str, Any] = field(factory=dict)
    operands: list[str] = field(factory=list)
    wants_help: bool = False
    wants_version: bool = False


def flag_of(attribute: attrs.Attribute[Any], *, is_global: bool = False) -> Flag | None:
    """The flag of a field whose types are resolved; None for operands and for what only JSON can carry."""
    spec: FieldSpec | None = attribute.metadata.get(METADATA_KEY)
    if spec is None or spec.positional or not spec.cli:
        return None
    name = "--" + (spec.flag or attribute.name.replace("_", "-"))
    return Flag(
        field=attribute.name, names=(name, *spec.aliases), kind=_kind(attribute, is_global), is_global=is_global
    )


def _kind(attribute: attrs.Attribute[Any], is_global: bool) -> Kind:
    members = get_args(attribute.type) or (attribute.type,)
    if bool in members or attribute.type is bool:
        return "switch"
    if is_global and attribute.type is int:
        return "count"
    if get_origin(attribute.type) is tuple and members[0] is str:
        return "list"
    return "value"


def read_argv(
    argv: Sequence[str],
    commands: Iterable[str],
    global_flags: Sequence[Flag],
    flags_of: Callable[[str], Sequence[Flag]],
) -> Arguments:
    """Take an argument vector apart. `flags_of` gives a command's own flags once it is known. Raises UsageError."""
    return _Reader(argv, tuple(commands), global_flags, flags_of).read()


class _Reader:
    """One pass over the tokens; `flags` grows by the command's own when its last word is read."""

    def __init__(
        self,
        argv: Sequence[str],
        commands: tuple[str, ...],
        global_flags: Sequence[Flag],
        flags_of: Callable[[str], Sequence[Flag]],
    ) -> None:
        self.waiting = list(reversed(argv))
        self.commands = commands
        self.flags_of = flags_of
        self.flags = {name: flag for flag in global_flags for name in flag.names}
        self.found = Arguments()

    def read(self) -> Arguments:
        while self.waiting:
            token = self.waiting.pop()
            if token == "--" and self.found.command:
                self.found.operands.extend(reversed(self.waiting))
                break
            if token in ("--help", "-h"):
                self.found.wants_help = True
            elif token == "--version" and not self.found.command:
                self.found.wants_version = True
            elif token.startswith("-") and len(token) > 1 and not _is_number(token):
                self._option(token)
            elif self.found.command:
                self.found.operands.append(token)
            else:
                self._word(token)
        return self.found

    def _word(self, word: str) -> None:
        path = ".".join([*self.found.words, word])
        if path in self.commands:
            self.found.command = path
            self.flags.update({name: flag for flag in self.flags_of(path) for name in flag.names})
        elif not any(command.startswith(f"{path}.") for command in self.commands):
            raise self._unknown_word(word)
        self.found.words.append(word)

    def _unknown_word(self, word: str) -> UsageError:
        prefix = "".join(f"{known}." for known in self.found.words)
        choices = list(
            dict.fromkeys(c.removeprefix(prefix).split(".")[0] for c in self.commands if c.startswith(prefix))
        )
        near = _nearest(word, choices, n=1)
        place = " ".join(["localllm", *self.found.words])
        hint = f"did you mean `{place} {near[0]}`?" if near else f"`{place}` knows {_listed(choices)}"
        return UsageError(f"`{place}` has no command `{printable(word)}`", hint=hint)

    def _option(self, token: str) -> None:
        name, equals, value = token.partition("=")
        if not name.startswith("--"):
            return self._short(token)
        name = name.replace("_", "-")
        flag = self.flags.get(name)
        if flag is not None:
            if flag.kind in ("value", "list"):
                self._keep(flag, value if equals else self._value_for(flag))
            elif equals:
                self._keep(flag, _truth(flag, value))
            else:
                self._keep(flag, True)
            return None
        positive = self.flags.get("--" + name.removeprefix("--no-"))
        if name.startswith("--no-") and positive is not None and not equals and positive.kind in ("switch", "list"):
            if positive.kind == "list":
                self.found.options[positive.field] = []  # what the default would fill, left empty
            else:
                self._keep(positive, False)
            return None
        raise self._unknown_option(name)

    def _short(self, token: str) -> None:
        """`-m NAME`, `-mNAME`, `-m=NAME`, and switches in one: `-qv`."""
        flag = self.flags.get(token[:2])
        if flag is None:
            raise self._unknown_option(token[:2])
        if flag.kind in ("value", "list"):
            rest = token[2:].removeprefix("=")
            self._keep(flag, rest if token[2:] else self._value_for(flag))
            return
        self._keep(flag, True)
        if token[2:]:
            self._short("-" + token[2:])

    def _value_for(self, flag: Flag) -> str:
        if not self.waiting:
            raise UsageError(f"`{flag.name}` needs a value", param=flag.name)
        following = self.waiting[-1].partition("=")[0]
        known = following in self.flags or following in ("--help", "--")
        if known or (following.startswith("--no-") and "--" + following[5:] in self.flags):
            hint = f"write `{flag.name}={printable(self.waiting[-1])}` if that is the value"
            raise UsageError(f"`{flag.name}` needs a value", hint=hint, param=flag.name)
        return self.waiting.pop()

    def _keep(self, flag: Flag, value: Any) -> None:
        options = self.found.options
        if flag.kind == "list":
            options.setdefault(flag.field, []).append(value)
        elif flag.kind == "count":
            options[flag.field] = int(options.get(flag.field, 0)) + int(value)
        else:
            options[flag.field] = value

    def _unknown_option(self, name: str) -> UsageError:
        place = " ".join(["localllm", *self.found.words])
        near = _nearest(name, [known for known in self.flags if known.startswith("--")], n=1)
        if near:
            hint = f"did you mean `{near[0]}`?"
        elif self.found.command:
            hint = f"`{place} --help` lists its options; a value that starts with `-` goes after `--` or `=`"
        else:
            hint = "options of a command go after the command's name"
        return UsageError(f"`{place}` has no option `{printable(name)}`", hint=hint, param=name)


def asks_for_json(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether JSON output was asked for, readable also off a command line that does not parse."""
    chosen = env.get("LOCALLLM_OUTPUT", "")
    for position, token in enumerate(argv):
        if token == "--":
            break
        if token == "--output" and position + 1 < len(argv):
            chosen = argv[position + 1]
        elif token.startswith("--output="):
            chosen = token.removeprefix("--output=")
    return chosen == "json"


def _truth(flag: Flag, text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise UsageError(f"`{flag.name}` is on or off, not `{printable(text)}`", param=flag.name)


def _is_number(token: str) -> bool:
    return token[1:2].isdigit()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _nearest(word: str, known: Sequence[str], n: int) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(word, known, n=n)


def printable(text: str) -> str:
    """A user's word for a message: one line, no control characters, not too long."""
    shown = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
    return shown if len(shown) <= 100 else f"{shown[:99]}…"
