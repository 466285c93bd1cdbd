"""The tools of a request and the choice among them, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import field, frozen

from ...errors import BadInput

_NAME = re.compile(r"[a-zA-Z0-9_.\-]{1,128}")


@frozen
class Function:
    """A function the model may call."""

    name: str
    parameters: dict[str, Any] = field(factory=dict)
    """JSON Schema of the arguments."""
    strict: bool = False
    """The arguments must conform to the schema, also where the model chose to call."""
    at: int = 0
    """Its place in the request's tools."""


@frozen
class ToolChoice:
    """What the model may or must do: `functions` are those it may call."""

    mode: Literal["none", "auto", "required"]
    functions: tuple[Function, ...] = ()
    named: bool = False
    """One function was named: it is called once."""


def read_tools(tools: Sequence[Any]) -> tuple[Function, ...]:
    """The functions of OpenAI-shaped tools. Raises BadInput that names the tool."""
    functions: list[Function] = []
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
            raise BadInput("only tools of the type `function` are supported", param=f"{where}.type")
        raw = tool.get("function")
        name = raw.get("name") if isinstance(raw, Mapping) else None
        if not isinstance(raw, Mapping) or not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadInput(
                "a function needs a name of letters, digits, `_`, `.` and `-`", param=f"{where}.function.name"
            )
        if any(function.name == name for function in functions):
            raise BadInput(f"the function `{name}` is listed twice", param=f"{where}.function.name")
        parameters = raw.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise BadInput("a function's parameters are a JSON Schema object", param=f"{where}.function.parameters")
        functions.append(Function(name, _schema(parameters), raw.get("strict") is True, i))
    return tuple(functions)


def _schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **parameters}


def read_tool_choice(tools: Sequence[Any], choice: Any) -> ToolChoice:
    """The choice, with the functions it leaves. Raises BadInput, `param` is `tool_choice` or the tool's."""
    functions = read_tools(tools)
    name = _named(choice)
    if name is not None:
        chosen = tuple(function for function in functions if function.name == name)
        if not chosen:
            raise BadInput(f"there is no tool named `{name}`", param="tool_choice")
        return ToolChoice("required", chosen, named=True)
    if choice in (None, "auto"):
        return ToolChoice("auto" if functions else "none", functions)
    if choice == "none":
        return ToolChoice("none", functions)
    if choice == "required":
        if not functions:
            raise BadInput("`required` needs tools to choose from", param="tool_choice")
        return ToolChoice("required", functions)
    raise BadInput("`tool_choice` is none, auto, required or a function's name", param="tool_choice")


def _named(choice: Any) -> str | None:
    if not isinstance(choice, Mapping):
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise BadInput("`tool_choice` names a function as `function.name`", param="tool_choice")
    return name
