"""The one door in: a raw dict becomes a plan, checked against its published schema first."""

from __future__ import annotations

import math
import types
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import attrs

from ..errors import InvalidPlan
from .plans import COMMANDS, plan_class

if TYPE_CHECKING:
    from cattrs import Converter

    from ..schemas import Problem
    from .plan_union import CommandPlan

SHOWN_PROBLEMS = 3
"""How many problems a message spells out; more would be no sentence."""


def load_plan(raw: Mapping[str, Any]) -> CommandPlan:
    """The plan a raw dict means. Raises InvalidPlan with every problem in `data["problems"]`.

    The schema comes first because cattrs structures and does not validate: alone it turns `"false"` into True.
    """
    from ..schemas import Problem, problems

    if not isinstance(raw, Mapping):
        raise _invalid([Problem("$", f"a plan is a JSON object, not {_json_type(raw)}")])
    command = raw.get("command")
    if not isinstance(command, str) or command not in COMMANDS:
        raise _unknown_command(command)
    document = dict(raw)
    found = problems(f"plan.{command}", document) or _free_form_problems(command, document)
    if found:
        raise _invalid(found)
    del document["command"]
    try:
        plan: CommandPlan = _converter().structure(document, plan_class(command))
    except ValueError as error:
        # A rule that a schema cannot say, kept by a validator of the class.
        raise InvalidPlan(str(error), problems=[{"path": "$", "message": str(error)}]) from error
    return plan


def dump_plan(plan: CommandPlan) -> dict[str, Any]:
    """The plan as JSON values with `command` first and every default filled in; `load_plan` takes it back."""
    return {"command": plan.command, **_dump(plan)}


def _free_form_problems(command: str, document: dict[str, Any]) -> list[Problem]:
    """Values within free-form JSON that JSON cannot carry: a schema that allows anything cannot refuse them."""
    return [problem for name in _free_form_fields(command) for problem in _no_json(document.get(name), f"$.{name}")]


@cache
def _free_form_fields(command: str) -> tuple[str, ...]:
    cls = plan_class(command)
    attrs.resolve_types(cls)
    return tuple(field.name for field in attrs.fields(cls) if "typing.Any" in str(field.type))


def _no_json(value: Any, path: str) -> Iterator[Problem]:
    from ..schemas import Problem

    if isinstance(value, dict):
        for key, item in value.items():
            step = f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
            yield from _no_json(key, f"{path}{step}")
            yield from _no_json(item, f"{path}{step}")
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from _no_json(item, f"{path}[{position}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"{value} is not a number that JSON can carry")
    elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        yield Problem(
            path.encode("ascii", "backslashreplace").decode(), "holds an unpaired surrogate, which is no text"
        )


def _dump(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_dump(item) for item in value]
    if isinstance(value, dict):
        return {key: _dump(item) for key, item in value.items()}
    if attrs.has(type(value)):
        return {field.name: _dump(getattr(value, field.name)) for field in attrs.fields(type(value))}
    return value


def _invalid(found: list[Problem]) -> InvalidPlan:
    """The error of a plan; its message holds the first problems, its data all of them."""
    message = "; ".join(str(problem) for problem in found[:SHOWN_PROBLEMS])
    if len(found) > SHOWN_PROBLEMS:
        message += f" (and {len(found) - SHOWN_PROBLEMS} more)"
    listed = [{"path": problem.path, "message": problem.message} for problem in found]
    return InvalidPlan(message, param=found[0].path, problems=listed)


def _unknown_command(command: Any) -> InvalidPlan:
    from difflib import get_close_matches

    near: list[str]
    if command is None:
        message, near = "the plan names no command", []
    elif not isinstance(command, str):
        message, near = f"a command is a string, not {_json_type(command)}", []
    else:
        message, near = f"unknown command `{command[:100]}`", get_close_matches(command, COMMANDS, n=1)
    hint = f"did you mean `{near[0]}`?" if near else "commands: " + ", ".join(COMMANDS)
    problem = {"path": "$.command", "message": message}
    return InvalidPlan(f"$.command: {message}", hint=hint, param="$.command", problems=[problem])


def _json_type(value: Any) -> str:
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)


@lru_cache(maxsize=1)
def _converter() -> Converter:
    from cattrs import Converter

    converter = Converter(detailed_validation=False, forbid_extra_keys=True)
    converter.register_structure_hook_factory(_is_union, lambda union: _union_hook(converter, union))
    converter.register_structure_hook_func(lambda cls: cls is Any, lambda value, _: value)
    return converter


def _is_union(cls: Any) -> bool:
    return get_origin(cls) in (Union, types.UnionType)


def _union_hook(converter: Converter, union: Any) -> Any:
    """Pick the member by the value's JSON type; the schema has made sure that one fits."""
    members = [member for member in get_args(union) if member is not type(None)]

    def structure(value: Any, _cls: Any) -> Any:
        if value is None:
            return None
        for member in members:
            if _fits(value, member):
                return converter.structure(value, member)
        raise ValueError(f"{value!r} fits no member of {union}")

    return structure


def _fits(value: Any, member: Any) -> bool:
    origin = get_origin(member)
    if origin is Literal:
        return value in get_args(member)
    if origin is tuple:
        return isinstance(value, (list, tuple))
    if origin is dict:
        return isinstance(value, dict)
    if member is Any:
        return True
    if member in (int, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if attrs.has(member):
        return isinstance(value, dict)
    return isinstance(value, member)
