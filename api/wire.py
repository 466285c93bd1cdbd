"""The HTTP dialect: OpenAI's bodies to raw plans, and errors in the client's own words.

Pure: dicts in, dicts out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import field, frozen

from ..errors import BadInput, LocalLLMError, Unsupported
from ..executors.events import Event, error_to_dict, event_to_dict
from ..planner.chat_request import FunctionCall, Message, ToolCall
from ..planner.plans.chat import Chat
from ..planner.plans.complete import Complete
from .chunks import encode
from .forms import form_of

_CHAT_FIELDS = frozenset(a.name for a in attrs.fields(Chat)) - {"show_prompt"}
_TEXT_FIELDS = frozenset(a.name for a in attrs.fields(Complete)) - {"prompts"}
_MESSAGE_FIELDS = frozenset(a.name for a in attrs.fields(Message))
_TOOL_CALL_FIELDS = frozenset(a.name for a in attrs.fields(ToolCall))
_FUNCTION_FIELDS = frozenset(a.name for a in attrs.fields(FunctionCall))

TEXT_MAX_TOKENS = 16
"""Tokens of a text completion whose body names no limit, as OpenAI's API has it."""

_CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
}
_TEXT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
}
"""Fields that change the answer, with the values that ask for nothing. A plan cannot carry them, so any other value is
refused: dropping it in silence would be a wrong answer that looks right."""

_NAMES = {
    "thinking_budget_tokens": "thinking_budget",
    "thinking_token_budget": "thinking_budget",
    "reasoning_budget": "thinking_budget",
    "dynatemp_exp": "dynatemp_exponent",
    "repetition_penalty": "repeat_penalty",
}
"""Other servers' names for fields of the plan."""


@frozen(kw_only=True)
class Call:
    """One body: the raw plan, and what belongs to the transport only."""

    plan: dict[str, Any]
    stream: bool = False
    include_usage: bool = False
    spelling: Mapping[str, str] = field(factory=dict)
    """How the client spelt a plan field, where it differs."""


def chat_call(body: Mapping[str, Any]) -> Call:
    """What a body of `POST /v1/chat/completions` asks for. Values are checked later, in `load_plan`.

    null means absent and unknown fields are ignored, since clients send many.
    """
    given = {key: value for key, value in body.items() if value is not None}
    if "messages" not in given:
        raise BadInput("`messages` is missing", hint="send the conversation as a list of messages", param="messages")
    plan, spelling = _plan("chat", given, _CHAT_FIELDS, _CHAT_NEUTRAL)
    spelling |= _fold_max_tokens(plan, given)
    plan["messages"] = _messages(plan["messages"])
    _fold_reasoning(plan, given)
    stream, include_usage = _stream(given)
    return Call(plan=plan, stream=stream, include_usage=include_usage, spelling=spelling)


def text_call(body: Mapping[str, Any]) -> Call:
    """What a body of `POST /v1/completions` asks for; like `chat_call`."""
    given = {key: value for key, value in body.items() if value is not None}
    if "prompt" not in given:
        raise BadInput("`prompt` is missing", hint="send a text, a list of texts or lists of tokens", param="prompt")
    plan, spelling = _plan("complete", given, _TEXT_FIELDS, _TEXT_NEUTRAL)
    prompt = given["prompt"]
    several = isinstance(prompt, list) and not (prompt and all(_is_token(item) for item in prompt))
    plan["prompts"] = prompt if several else [prompt]
    spelling["prompts" if several else "prompts[0]"] = "prompt"
    spelling |= _fold_max_tokens({}, given)
    limit = given.get("max_tokens", given.get("max_completion_tokens", TEXT_MAX_TOKENS))
    plan.pop("max_tokens", None)
    if limit != -1:
        plan["max_tokens"] = limit
    if given.get("best_of", 1) not in (1, given.get("n", 1)):
        raise Unsupported("`best_of` is not supported", hint="send `n`", param="best_of")
    if given.get("logprobs") is False:
        # some clients send the newer form's value
        del plan["logprobs"]
    stream, include_usage = _stream(given)
    return Call(plan=plan, stream=stream, include_usage=include_usage, spelling=spelling)


def respell(fault: LocalLLMError, spelling: Mapping[str, str]) -> LocalLLMError:
    """The same refusal with the client's own names for the fields."""
    if not spelling or fault.param is None or not isinstance(fault, BadInput):
        return fault

    def renamed(text: str) -> str:
        for name, spelt in spelling.items():
            text = text.replace(f"$.{name}", f"$.{spelt}").replace(f"`{name}`", f"`{spelt}`")
            if text == name or text.startswith(f"{name}."):
                text = spelt + text.removeprefix(name)
        return text

    rows = fault.data.get("problems")
    problems = [{key: renamed(str(value)) for key, value in row.items()} for row in rows or ()]
    return type(fault)(
        renamed(fault.message),
        hint=None if fault.hint is None else renamed(fault.hint),
        param=renamed(fault.param),
        **{**fault.data, **({} if rows is None else {"problems": problems})},
    )


def _plan(
    command: str, given: Mapping[str, Any], names: frozenset[str], neutral: Mapping[str, tuple[Any, ...]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields that chat and text completions have in common."""
    for name, nothing in neutral.items():
        if name in given and given[name] not in nothing:
            raise Unsupported(f"`{name}` is not supported", param=name)
    form = form_of(given)
    spelling = dict(form.spelling)
    formal = ("response_format", "grammar", "regex", "choice", "json_whitespace")
    plan = {key: value for key, value in given.items() if key in names and key not in formal}
    plan |= form.fields
    for name, ours in _NAMES.items():
        if name in given and ours in names and ours not in plan and given[name] != -1:
            plan[ours] = given[name]
            spelling[ours] = name
    plan["command"] = command
    if isinstance(given.get("stop"), str):
        plan["stop"] = [given["stop"]]
    if isinstance(given.get("samplers"), str):
        plan["samplers"] = [name for name in given["samplers"].split(";") if name]
    if given.get("seed") == -1:
        # llama.cpp's spelling of "no seed"
        del plan["seed"]
    return plan, spelling


def _is_token(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


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


def _fold_reasoning(plan: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Names for taking the thinking apart: whatever is not `none` means that it is told beside the answer."""
    form = given.get("reasoning_format")
    if form in ("deepseek", "deepseek-legacy", "parsed"):
        plan["reasoning_format"] = "auto"
    if given.get("separate_reasoning") is False or form == "raw":
        plan["reasoning_format"] = "none"


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


def event_line(event: Event) -> bytes:
    """One line of the administration endpoint's answer."""
    return encode(event_to_dict(event)) + b"\n"


def error_line(error: LocalLLMError) -> bytes:
    """The last line of an administration answer that failed after its headers were out."""
    return encode(error_to_dict(error)) + b"\n"
