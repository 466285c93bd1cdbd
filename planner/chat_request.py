"""A conversation as plans carry it: messages and their parts."""

from __future__ import annotations

from typing import Any, Literal

from attrs import frozen

from .fields import argument, option

Role = Literal["system", "developer", "user", "assistant", "tool"]


@frozen(kw_only=True)
class TextPart:
    """A piece of text in a message's content."""

    type: Literal["text"] = option("text", help="Kind of the part")
    text: str = option(help="The text")


@frozen(kw_only=True)
class FunctionCall:
    """The function an assistant called."""

    name: str = option(help="Name of the function", min_length=1)
    arguments: str = option("{}", help="Arguments as a JSON text")


@frozen(kw_only=True)
class ToolCall:
    """One call of a tool in an assistant's message."""

    id: str = option("", help="Id that the answering tool message repeats")
    type: Literal["function"] = option("function", help="Kind of the tool")
    function: FunctionCall = option(help="The function and its arguments")


@frozen(kw_only=True)
class Message:
    """One turn of a conversation."""

    role: Role = option(help="Who speaks")
    content: str | tuple[TextPart, ...] | None = option(
        None, help="What is said: a text, or a list of text parts, or null"
    )
    name: str | None = option(None, help="Name of the speaker or the tool")
    tool_calls: tuple[ToolCall, ...] = option((), help="Tools the assistant called")
    tool_call_id: str | None = option(None, help="The call this tool message answers")
    reasoning_content: str | None = option(None, help="What the assistant thought before this answer")


@frozen(kw_only=True)
class ChatArguments:
    """What the command line of `chat` takes besides the plan's fields; `fold_prompt` puts it into them."""

    prompt: str | None = argument(None, help="What to say; `-` or nothing reads standard input", example="Hello!")
    system: str | None = option(None, help="Instruction that goes before the conversation", aliases=("-s",))
    template_file: str | None = option(
        None, help="Jinja file to use instead of the model's chat template", flag="chat-template"
    )


@frozen(kw_only=True)
class TextArguments:
    """What the command line of `complete` takes besides the plan's fields; `fold_text` puts it into them."""

    prompt: str | None = argument(
        None, help="Text to continue; `-` or nothing reads standard input", example="Once upon a time"
    )


def fold_prompt(raw: dict[str, Any]) -> dict[str, Any]:
    """Replace the CLI's `prompt`, `system` and `template_file` by the plan fields they mean; other keys pass through.

    `prompt` is one user message; `system`, if given, goes before all others. Raises NotFound for a file that is none.
    """
    out = {key: value for key, value in raw.items() if key not in ("prompt", "system", "template_file")}
    messages = list(out.get("messages") or [])
    if raw.get("system") is not None:
        messages.insert(0, {"role": "system", "content": raw["system"]})
    if raw.get("prompt") is not None:
        messages.append({"role": "user", "content": raw["prompt"]})
    if messages:
        out["messages"] = messages
    if raw.get("template_file") is not None:
        out["chat_template"] = _read(raw["template_file"])
    return out


def fold_text(raw: dict[str, Any]) -> dict[str, Any]:
    """Replace the CLI's `prompt` by the `prompts` it means."""
    out = {key: value for key, value in raw.items() if key != "prompt"}
    if raw.get("prompt") is not None:
        out["prompts"] = [*(out.get("prompts") or []), raw["prompt"]]
    return out


def _read(name: str) -> str:
    from pathlib import Path

    from ..errors import BadInput, NotFound

    try:
        return Path(name).read_text("utf-8")
    except OSError as error:
        raise NotFound(f"`{name}` cannot be read: {error.strerror}", param="--chat-template") from None
    except ValueError:
        raise BadInput(f"`{name}` is not UTF-8 text", param="--chat-template") from None
