"""A conversation in the forms that templates understand, and the repairs for templates that refuse one.

`Conversation` is the request with every string marked by its writer (see `provenance`); a `Dialect` says which of the
forms a template speaks; `spoken_in` turns the first into the messages and tools the template is given.

Content parts are joined by a line break. A missing content is an empty text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from attrs import frozen

from ...errors import BadInput
from .provenance import OTHER, Traced, joined
from .tool_formats import FORMATS, ToolFormat

PART_JOINER = "\n"

TOOLS, CALLS, RESULTS, CONTINUED, USER, SYSTEM, BOS = 2, 3, 4, 5, 6, 7, 255
"""Marks that are looked for in the prompt; system messages count up from `SYSTEM`, and `BOS` is the template's own."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

Message = dict[str, Any]


@frozen(kw_only=True)
class Dialect:
    """How a template wants a conversation put; each field away from its default is a repair."""

    null_content: bool = True
    """An assistant message that only calls tools has the content None; else an empty text."""
    object_arguments: bool = True
    """The arguments of a call are an object; else their JSON text."""
    typed_content: bool = False
    """Content is a list of parts."""
    empty_tools: bool = False
    """Without tools the template gets an empty list; else None."""
    continued: Literal["cut", "appended"] = "cut"
    """An answer to go on with is rendered and what follows it cut off, or written after the generation prompt."""
    tools: bool = True
    """Tools are handed to the template; else told in the system message."""
    tool_turns: bool = True
    """Calls and results are handed to the template; else written out as text."""
    short_ids: bool = False
    """Ids of calls are nine letters and digits."""
    system: Literal["own", "first", "folded"] = "own"
    """System messages as they come, all in one at the start, or in the first user turn."""
    merged: bool = False
    """Neighbours of the same role are one message."""


_NOTES: dict[str, str] = {
    "tools": "the tools are described in the system message: the template has no place for tools",
    "tool_turns": "tool calls and results are written as text: the template has no place for them",
    "first": "system messages are joined into one at the start: the template takes no later ones",
    "folded": "the system message is folded into the first user turn: the template has no system role",
    "merged": "neighbouring messages of the same role are merged: the template demands alternating roles",
}


@frozen(kw_only=True)
class Conversation:
    """The messages and tools of a request, checked, in one shape, with marks."""

    messages: tuple[Message, ...]
    """`content` is a `Traced` text; `arguments` of calls are JSON texts as they came."""
    tools: tuple[Message, ...] = ()
    continues: bool = False
    """The last message is the beginning of the answer."""

    @property
    def expected(self) -> frozenset[int]:
        """The marks that a prompt without loss holds."""
        marks: set[int] = set()
        for message in self.messages:
            if message["content"].strip():
                marks.update(set(message["content"].marks) - {OTHER})
            if message.get("tool_calls"):
                marks.add(CALLS)
        return frozenset(marks | ({TOOLS} if self.tools else set()))


def notes_of(dialect: Dialect, talk: Conversation) -> tuple[str, ...]:
    """What people should know about the repairs that this dialect makes to their conversation."""
    repairs = {
        "tools": not dialect.tools,
        "tool_turns": not dialect.tool_turns,
        dialect.system: dialect.system != "own" and any(_is_system(message) for message in talk.messages),
        "merged": dialect.merged,
    }
    return tuple(_NOTES[name] for name, made in repairs.items() if made)


def read_conversation(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    continues: bool = False,
    developer: bool = True,
) -> Conversation:
    """Check OpenAI-shaped messages and mark them. Raises BadInput that names the message.

    `continues`: a last message of the assistant is the beginning of the answer. `developer`: the template knows that
    role; else it is the system's.
    """
    if not messages:
        raise BadInput("there are no messages", param="messages")
    read: list[Message] = []
    system = SYSTEM
    last = len(messages) - 1
    for i, message in enumerate(messages):
        mark = OTHER
        if message.get("role") in ("system", "developer"):
            mark, system = min(system, BOS - 1), system + 1
        elif message.get("role") in ("tool", "function"):
            mark = RESULTS
        elif message.get("role") == "user":
            mark = USER
        elif continues and i == last and message.get("role") == "assistant" and not message.get("tool_calls"):
            mark = CONTINUED
        read.append(_read_message(message, f"messages[{i}]", mark))
        if read[-1]["role"] == "developer" and not developer:
            read[-1]["role"] = "system"
    continued = continues and read[-1]["role"] == "assistant" and not read[-1].get("tool_calls")
    if continued and not read[-1]["content"]:
        if len(read) == 1:
            raise BadInput("there are no messages but an empty answer", param="messages")
        read, continued = read[:-1], False
    return Conversation(
        messages=tuple(read), tools=tuple(marked(dict(tool), TOOLS) for tool in tools), continues=continued
    )


def _read_message(message: Mapping[str, Any], where: str, mark: int) -> Message:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadInput("a message has no role", param=f"{where}.role")
    out: Message = {"role": role if role in ROLES else Traced(role)}
    out["content"] = Traced(_content_text(message.get("content"), f"{where}.content"), mark)
    for name, value in message.items():
        if name not in ("role", "content", "tool_calls") and value is not None:
            out[name] = marked(value, OTHER)
    if message.get("tool_calls"):
        out["tool_calls"] = [
            _read_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message["tool_calls"])
        ]
    return out


def _content_text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, Sequence):
        raise BadInput("content is neither a text nor a list of parts", param=where)
    texts: list[str] = []
    for i, part in enumerate(content):
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise BadInput(
                f"a content part of type `{kind}` is not supported: this model reads text only",
                param=f"{where}[{i}].type",
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise BadInput("a text part has no text", param=f"{where}[{i}].text")
        texts.append(text)
    return PART_JOINER.join(texts)


def _read_call(call: Any, where: str) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadInput("a tool call has no function with a name", param=f"{where}.function")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    read: Message = {"type": "function"}
    if call.get("id"):
        read["id"] = Traced(str(call["id"]))
    read["function"] = {"name": Traced(function["name"], CALLS), "arguments": Traced(text or "{}", CALLS)}
    return read


def marked(value: Any, mark: int) -> Any:
    """A copy of JSON values with every string, keys of objects too, marked."""
    if isinstance(value, str):
        return Traced(value, mark)
    if isinstance(value, Mapping):
        return {Traced(str(key), mark): marked(item, mark) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [marked(item, mark) for item in value]
    return value


def spoken_in(
    dialect: Dialect, talk: Conversation, form: ToolFormat = FORMATS["hermes"]
) -> tuple[list[Message], list[Message] | None]:
    """The messages and the tools to give to a template that speaks this dialect."""
    messages: list[Message] = [dict(message) for message in talk.messages]
    if talk.continues and dialect.continued == "appended":
        messages = messages[:-1]
    if not dialect.tool_turns:
        messages = [_as_text(message, form) for message in messages]
    if talk.tools and not dialect.tools:
        messages = _with_system(messages, tools_as_text(talk.tools, form))
    if dialect.system != "own":
        messages = _leading_system(messages)
    if dialect.system == "folded":
        messages = _folded(messages)
    if dialect.merged:
        messages = _merged(messages)
    if dialect.short_ids:
        messages = [_with_short_ids(message) for message in messages]
    messages = [_shaped(message, dialect) for message in messages]
    if talk.tools and dialect.tools:
        return messages, list(talk.tools)
    return messages, [] if dialect.empty_tools else None


def tools_as_text(tools: Sequence[Message], form: ToolFormat) -> str:
    """How tools are told to a model whose template has no place for them."""
    shape = form.shape
    name, arguments = ('"<function name>"' if shape.quoted else "<function name>"), "<arguments as a JSON object>"
    example = f"{shape.opening}{shape.call}{name}{shape.numbered(0)}{arguments}{shape.close}{shape.closing}"
    return joined(
        "",
        [
            "You may call functions to answer. These are their signatures, one a line:\n<tools>\n",
            joined("\n", [Traced(json.dumps(tool, ensure_ascii=False), TOOLS) for tool in tools]),
            f"\n</tools>\nTo call a function, write nothing but the call, in this form:\n{example}",
        ],
    )


def calls_as_text(calls: Sequence[Message], form: ToolFormat) -> str:
    """Calls as a model of this format writes them."""
    shape = form.shape
    written: list[str] = []
    for number, call in enumerate(calls):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if shape.quoted:
            name = Traced(json.dumps(name, ensure_ascii=False), CALLS)
        if form.body == "xml":
            arguments = _xml_arguments(arguments)
        written.append(joined("", [shape.call, name, shape.numbered(number), arguments, shape.close]))
    return joined("", [shape.opening, joined(shape.between, written), shape.closing])


def _xml_arguments(text: str) -> str:
    try:
        values = json.loads(text)
    except ValueError:
        return text
    if not isinstance(values, dict):
        return text
    parts: list[str] = []
    for key, value in values.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        parts += ["<parameter=", Traced(key, CALLS), ">\n", Traced(shown, CALLS), "\n</parameter>\n"]
    return joined("", parts)


def _as_text(message: Message, form: ToolFormat) -> Message:
    if message.get("tool_calls"):
        parts = [message["content"]] if message["content"] else []
        parts.append(calls_as_text(message["tool_calls"], form))
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        return {**rest, "content": joined("\n", parts)}
    if message["role"] in ("tool", "function"):
        return {"role": "user", "content": joined("", ["<tool_response>\n", message["content"], "\n</tool_response>"])}
    return message


def _is_system(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def _with_system(messages: list[Message], text: str) -> list[Message]:
    if messages and _is_system(messages[0]):
        first = {**messages[0], "content": _paragraphs([messages[0]["content"], text])}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _paragraphs(texts: Iterable[str]) -> str:
    return joined("\n\n", [text for text in texts if text])


def _leading_system(messages: list[Message]) -> list[Message]:
    system = [message["content"] for message in messages if _is_system(message)]
    rest = [message for message in messages if not _is_system(message)]
    return [{"role": "system", "content": _paragraphs(system)}, *rest] if system else rest


def _folded(messages: list[Message]) -> list[Message]:
    if not messages or not _is_system(messages[0]):
        return messages
    system, rest = messages[0], messages[1:]
    if rest and rest[0]["role"] == "user":
        return [{**rest[0], "content": _paragraphs([system["content"], rest[0]["content"]])}, *rest[1:]]
    return [{**system, "role": "user"}, *rest]


def _merged(messages: list[Message]) -> list[Message]:
    out: list[Message] = []
    for message in messages:
        plain_turn = message["role"] != "tool" and not message.get("tool_calls")
        if out and plain_turn and out[-1]["role"] == message["role"] and not out[-1].get("tool_calls"):
            out[-1] = {**out[-1], "content": _paragraphs([out[-1]["content"], message["content"]])}
        else:
            out.append(message)
    return out


def _with_short_ids(message: Message) -> Message:
    out = dict(message)
    if message.get("tool_call_id"):
        out["tool_call_id"] = _short_id(message["tool_call_id"])
    if message.get("tool_calls"):
        out["tool_calls"] = [{**call, "id": _short_id(call.get("id", ""))} for call in message["tool_calls"]]
    return out


def _short_id(identity: str) -> str:
    """Nine letters and digits that stand for the id; an id of that form stays."""
    if re.fullmatch("[a-zA-Z0-9]{9}", identity):
        return identity
    return Traced(hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:9])


def _shaped(message: Message, dialect: Dialect) -> Message:
    out = dict(message)
    content: Any = message["content"]
    if message.get("tool_calls"):
        out["tool_calls"] = [_shaped_call(call, dialect) for call in message["tool_calls"]]
        content = None if not content and dialect.null_content else content
    if dialect.typed_content and content is not None:
        content = [{"type": "text", "text": content}]
    out["content"] = content
    return out


def _shaped_call(call: Message, dialect: Dialect) -> Message:
    if not dialect.object_arguments:
        return call
    try:
        parsed = json.loads(call["function"]["arguments"])
    except ValueError:
        return call
    if not isinstance(parsed, dict):
        return call
    return {**call, "function": {**call["function"], "arguments": marked(parsed, CALLS)}}


def repairs_for(talk: Conversation) -> list[dict[str, Any]]:
    """Changes of a dialect that could help with this conversation, mildest first."""
    roles = [message["role"] for message in talk.messages]
    system = [i for i, message in enumerate(talk.messages) if _is_system(message)]
    turns = any(message.get("tool_calls") or message["role"] in ("tool", "function") for message in talk.messages)
    changes: list[dict[str, Any]] = []
    if any(message.get("tool_calls") for message in talk.messages):
        changes += [{"null_content": False}, {"object_arguments": False}, {"short_ids": True}]
    changes += [{"typed_content": True}, {"empty_tools": True}]
    if talk.continues:
        changes.append({"continued": "appended"})
    if len(system) > 1 or any(system):
        changes.append({"system": "first"})
    if talk.tools:
        changes.append({"tools": False})
    if turns:
        changes.append({"tool_turns": False})
    if system or talk.tools:
        changes.append({"system": "folded"})
    if len(roles) > 1:
        changes.append({"merged": True})
    return changes
