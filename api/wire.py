"""The HTTP dialect: OpenAI's bodies to raw plans, events to completions, chunks and lines.

Pure: bytes and dicts in, bytes and dicts out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec
from attrs import field, frozen

from ..errors import BadInput, InvalidPlan, LocalLLMError, Unsupported
from ..executors.events import Delta, Event, error_to_dict, event_to_dict
from ..planner.chat_request import FunctionCall, Message, ToolCall
from ..planner.plans.chat import Chat
from .errors import error_object

_CHAT_FIELDS = frozenset(a.name for a in attrs.fields(Chat))
_MESSAGE_FIELDS = frozenset(a.name for a in attrs.fields(Message))
_TOOL_CALL_FIELDS = frozenset(a.name for a in attrs.fields(ToolCall))
_FUNCTION_FIELDS = frozenset(a.name for a in attrs.fields(FunctionCall))

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "audio": (),
}
"""Fields that change the answer, with the values that ask for nothing. Where the plan cannot carry one, any other
value is refused: dropping it in silence would be a wrong answer that looks right."""

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


@frozen(kw_only=True)
class ChatCall:
    """One body of the chat endpoint: the raw plan, and what belongs to the transport only."""

    plan: dict[str, Any]
    stream: bool = False
    include_usage: bool = False
    spelling: Mapping[str, str] = field(factory=dict)
    """How the client spelt a plan field, where it differs."""


def parse_json(body: bytes) -> Any:
    """The body's JSON value. Raises BadInput for anything RFC 8259 does not know, NaN and lone surrogates included."""
    if not body.strip():
        raise BadInput("the request body is empty", hint="send a JSON object")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise BadInput(f"the request body is not valid JSON: {fault}", hint="send a JSON object") from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Like `parse_json`, for bodies that must be an object."""
    value = parse_json(body)
    if not isinstance(value, dict):
        raise BadInput("the request body must be a JSON object")
    return value


def chat_call(body: Mapping[str, Any]) -> ChatCall:
    """What a body of `POST /v1/chat/completions` asks for. Values are checked later, in `load_plan`.

    null means absent and unknown fields are ignored, since clients send many.
    """
    given = {key: value for key, value in body.items() if value is not None}
    _refuse_unheard(given)
    plan = {key: value for key, value in given.items() if key in _CHAT_FIELDS}
    plan["command"] = "chat"
    if "messages" not in given:
        raise BadInput("`messages` is missing", hint="send the conversation as a list of messages", param="messages")
    spelling = _fold_max_tokens(plan, given)
    if isinstance(given.get("stop"), str):
        plan["stop"] = [given["stop"]]
    if given.get("seed") == -1:
        # llama.cpp's spelling of "no seed"
        del plan["seed"]
    if "messages" in plan:
        plan["messages"] = _messages(plan["messages"])
    stream, include_usage = _stream(given)
    return ChatCall(plan=plan, stream=stream, include_usage=include_usage, spelling=spelling)


def respell(fault: InvalidPlan, spelling: Mapping[str, str]) -> InvalidPlan:
    """The same refusal with the client's own names for the fields."""

    def renamed(text: str) -> str:
        for name, spelt in spelling.items():
            text = text.replace(f"$.{name}", f"$.{spelt}")
        return text

    problems = [{key: renamed(str(value)) for key, value in row.items()} for row in fault.data.get("problems") or ()]
    return InvalidPlan(
        renamed(fault.message),
        hint=None if fault.hint is None else renamed(fault.hint),
        param=None if fault.param is None else renamed(fault.param),
        problems=problems,
    )


def _refuse_unheard(given: Mapping[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        if name in given and name not in _CHAT_FIELDS and given[name] not in neutral:
            raise Unsupported(f"`{name}` is not supported yet", param=name)


def _fold_max_tokens(plan: dict[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
    """Fold the newer name into `max_tokens`; -1 means no limit, as clients of llama.cpp write it."""
    older, newer = given.get("max_tokens"), given.get("max_completion_tokens")
    if older is not None and newer is not None and older != newer:
        raise BadInput(
            f"`max_tokens` is {older} but `max_completion_tokens` is {newer}",
            hint="send one of them",
            param="max_completion_tokens",
        )
    plan.pop("max_tokens", None)
    value = older if newer is None else newer
    if value is not None and value != -1:
        plan["max_tokens"] = value
    return {} if newer is None else {"max_tokens": "max_completion_tokens"}


def _stream(given: Mapping[str, Any]) -> tuple[bool, bool]:
    stream = given.get("stream", False)
    if not isinstance(stream, bool):
        raise BadInput("`stream` must be true or false", param="stream")
    options = given.get("stream_options")
    if options is None:
        return stream, False
    if not stream:
        raise BadInput("`stream_options` is only allowed with `stream: true`", param="stream_options")
    if not isinstance(options, dict):
        raise BadInput("`stream_options` must be an object", param="stream_options")
    include_usage = options.get("include_usage")
    if include_usage is not None and not isinstance(include_usage, bool):
        raise BadInput("`include_usage` must be true or false", param="stream_options.include_usage")
    return stream, bool(include_usage)


def _messages(raw: Any) -> Any:
    """Messages without nulls and without fields the plan does not know; what is not a list passes through."""
    if not isinstance(raw, list):
        return raw
    return [_message(item, f"messages[{i}]") if isinstance(item, dict) else item for i, item in enumerate(raw)]


def _message(raw: dict[str, Any], where: str) -> dict[str, Any]:
    out = _known(raw, _MESSAGE_FIELDS)
    if isinstance(out.get("content"), list):
        out["content"] = [_part(part, f"{where}.content[{i}]") for i, part in enumerate(out["content"])]
    if isinstance(out.get("tool_calls"), list):
        out["tool_calls"] = [_tool_call(call) for call in out["tool_calls"]]
    return out


def _part(raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        return raw
    kind = raw.get("type", "text")
    if kind != "text":
        raise Unsupported(f"content parts of type `{kind}` are not supported", hint="send `text` parts", param=where)
    return _known(raw, frozenset(("type", "text")))


def _tool_call(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    call = _known(raw, _TOOL_CALL_FIELDS)
    if isinstance(call.get("function"), dict):
        call["function"] = _known(call["function"], _FUNCTION_FIELDS)
    return call


def _known(raw: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key in names and value is not None}


class Chunks:
    """Turns one answer's deltas into OpenAI's chunks; one object a stream.

    The first chunk of each index carries the role, whatever the deltas say, and no later one does.
    """

    def __init__(self, envelope: Mapping[str, Any], *, include_usage: bool) -> None:
        self._head = {
            "id": envelope["id"],
            "object": "chat.completion.chunk",
            "created": envelope["created"],
            "model": envelope["model"],
        }
        self._include_usage = include_usage
        self._spoken: set[int] = set()

    def delta(self, event: Delta) -> bytes:
        """The frame of one delta."""
        delta = {key: value for key, value in event.delta.items() if key != "role"}
        if event.index not in self._spoken:
            self._spoken.add(event.index)
            delta = {"role": "assistant", "content": "", **delta}
        choice = {
            "index": event.index,
            "delta": delta,
            "logprobs": event.logprobs,
            "finish_reason": event.finish_reason,
        }
        return self._frame([choice], None)

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The last chunk before `[DONE]`, empty where usage was not asked for."""
        return self._frame([], usage) if self._include_usage else b""

    def _frame(self, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None) -> bytes:
        chunk = {**self._head, "choices": choices}
        if self._include_usage:
            chunk["usage"] = usage
        return b"data: " + encode(chunk) + b"\n\n"


def error_frame(error: LocalLLMError) -> bytes:
    """The one frame that ends a stream whose headers are out."""
    return b"data: " + encode(error_object(error)) + b"\n\n"


def event_line(event: Event) -> bytes:
    """One line of the administration endpoint's answer."""
    return encode(event_to_dict(event)) + b"\n"


def error_line(error: LocalLLMError) -> bytes:
    """The last line of an administration answer that failed after its headers were out."""
    return encode(error_to_dict(error)) + b"\n"
