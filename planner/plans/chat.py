"""The plan of `localllm chat` and of `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from attrs import frozen

from ..chat_request import Message
from ..fields import Effect, Where, option, own_fields_first
from .generation import Generation

TOOLS = "Tools"
REASONING = "Reasoning and template"


@frozen(kw_only=True, field_transformer=own_fields_first)
class Chat(Generation):
    """Answer a conversation with a model."""

    command: ClassVar[Literal["chat"]] = "chat"
    where: ClassVar[Where] = "either"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "network", "gpu", "exec")
    on_server: ClassVar[bool] = True

    messages: tuple[Message, ...] = option(
        help="The conversation as a JSON list of messages", min_length=1, max_length=10_000
    )
    logprobs: bool = option(False, help="Tell the log-probability of each token")
    top_logprobs: int = option(0, help="Likeliest tokens to tell beside each, with `logprobs`", ge=0, le=20)
    show_prompt: bool = option(False, help="Give the prompt and its tokens instead of an answer")
    tools: tuple[dict[str, Any], ...] = option(
        (), help="Functions the model may call, as a JSON list", max_length=1000, group=TOOLS
    )
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = option(
        None, help="`none`, `auto`, `required`, or the function that must be called", group=TOOLS
    )
    parallel_tool_calls: bool = option(True, help="An answer may call several functions", group=TOOLS)
    enable_thinking: bool | None = option(
        None, help="Whether the model thinks first, where its template knows that", group=REASONING
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = option(
        None, help="How much the model thinks, where its template knows that", group=REASONING
    )
    thinking_budget: int | None = option(
        None, help="Tokens after which the thinking is ended", ge=0, le=2**31 - 1, group=REASONING
    )
    reasoning_format: Literal["auto", "none"] = option(
        "auto", help="`none` leaves the thinking in the answer as the model wrote it", group=REASONING
    )
    chat_template_kwargs: dict[str, Any] = option(factory=dict, help="Variables for the chat template", group=REASONING)
    chat_template: str | None = option(
        None,
        help="Text of a Jinja template, or a family's name, to use instead of the model's chat template",
        min_length=1,
        flag="chat-template-text",
        group=REASONING,
    )
