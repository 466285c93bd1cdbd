"""An answer's text taken apart: content, reasoning, tool calls.

`reply_format` is decided where the prompt is made, because it depends on the model's template; it is plain data and
travels to where the text arrives, and `ReplyParser` does the work there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from attrs import asdict, define, field, frozen

from .calls import CallArguments, CallParser, CallStart, Event, fresh_id
from .reasoning import ReasoningSplitter
from .tool_formats import FORMATS, ToolFormat
from .tools import read_tool_choice

if TYPE_CHECKING:
    from ..types import GenerateRequest
    from .templates import ChatTemplate, Rendered


@frozen(kw_only=True)
class ReplyFormat:
    """How to read the answer to one request."""

    reasoning: tuple[tuple[str, str], ...] = ()
    """Tags of what the model thinks; none of them leaves the text as it is."""
    reasoning_open: str | None = None
    """The tag that the prompt ended with."""
    tool_format: str | None = None
    """The format of calls; None leaves them in the text."""
    functions: dict[str, dict[str, Any]] = field(factory=dict)
    """Functions that may be called, with the schemas of their arguments."""
    parallel: bool = True

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ReplyFormat:
        """The format that `as_dict` wrote, lists for tuples allowed."""
        reasoning = tuple((str(opening), str(closing)) for opening, closing in raw.get("reasoning", ()))
        return cls(**{**raw, "reasoning": reasoning})


def reply_format(
    template: ChatTemplate, request: GenerateRequest, rendered: Rendered | None = None, *, split_reasoning: bool = True
) -> ReplyFormat:
    """How to read the answer to `request`. Raises BadInput for tools and choices that make no sense.

    `template_options` may hold `separate_reasoning` (or `reasoning_format: "none"`) and `parallel_tool_calls`.
    """
    options = request.template_options
    choice = read_tool_choice(request.tools, request.tool_choice)
    split = split_reasoning and options.get("separate_reasoning") is not False
    split = split and options.get("reasoning_format") != "none"
    active = choice.mode != "none" and bool(choice.functions)
    return ReplyFormat(
        reasoning=template.reasoning if split else (),
        reasoning_open=rendered.reasoning_open if rendered and split else None,
        tool_format=template.tool_format if active else None,
        functions={function.name: function.parameters for function in choice.functions} if active else {},
        parallel=options.get("parallel_tool_calls") is not False,
    )


@frozen(kw_only=True)
class ReplyDelta:
    """New content, or new reasoning, or the news of one tool call."""

    content: str | None = None
    reasoning: str | None = None
    tool_call: dict[str, Any] | None = None
    """OpenAI's shape: `index` always, `id`, `type` and `function.name` once, pieces of `function.arguments`."""

    def as_openai(self) -> dict[str, Any]:
        """The `delta` of a chunk."""
        if self.tool_call is not None:
            return {"tool_calls": [self.tool_call]}
        if self.reasoning is not None:
            return {"reasoning_content": self.reasoning}
        return {"content": self.content}


@define
class ReplyParser:
    """Takes an answer's text in pieces and gives deltas; keeps the whole message for those who do not stream."""

    format: ReplyFormat
    new_id: Callable[[ToolFormat], str] = fresh_id
    _splitter: ReasoningSplitter = field(init=False)
    _calls: CallParser | None = field(init=False)
    _content: list[str] = field(factory=list, init=False)
    _reasoning: list[str] = field(factory=list, init=False)
    _tool_calls: list[dict[str, Any]] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        form = self.format
        self._splitter = ReasoningSplitter(form.reasoning, form.reasoning_open)
        self._calls = None
        if form.tool_format is not None:
            self._calls = CallParser(FORMATS[form.tool_format], form.functions, form.parallel, self.new_id)

    @property
    def thinking(self) -> bool:
        """Whether the model thinks at this point: tokens that come now count as reasoning."""
        return self._splitter.thinking

    @property
    def finish_reason(self) -> Literal["stop", "tool_calls"]:
        """Why the answer ended, where the engine says `stop`; an answer cut by the limit keeps `length`."""
        return "tool_calls" if self._tool_calls else "stop"

    def feed(self, text: str) -> list[ReplyDelta]:
        """Take the next text."""
        return self._deltas(*self._splitter.feed(text))

    def finish(self) -> list[ReplyDelta]:
        """The text ended."""
        deltas = self._deltas(*self._splitter.finish())
        if self._calls is not None:
            deltas += self._told(self._calls.finish())
        return deltas

    def message(self) -> dict[str, Any]:
        """The assistant's message so far, in OpenAI's shape: content is null where there are calls or thoughts only."""
        content = "".join(self._content)
        out: dict[str, Any] = {"role": "assistant", "content": content}
        if self._reasoning:
            out["reasoning_content"] = "".join(self._reasoning)
        if self._tool_calls:
            out["tool_calls"] = self._tool_calls
        if not content and (self._reasoning or self._tool_calls):
            out["content"] = None
        return out

    def _deltas(self, thought: str, answer: str) -> list[ReplyDelta]:
        deltas: list[ReplyDelta] = []
        if thought:
            self._reasoning.append(thought)
            deltas.append(ReplyDelta(reasoning=thought))
        if answer:
            deltas += self._told([answer] if self._calls is None else self._calls.feed(answer))
        return deltas

    def _told(self, events: list[Event]) -> list[ReplyDelta]:
        return [self._delta(event) for event in events]

    def _delta(self, event: Event) -> ReplyDelta:
        match event:
            case CallStart(index, identity, name):
                whole = {"id": identity, "type": "function", "function": {"name": name, "arguments": ""}}
                self._tool_calls.append(whole)
                return ReplyDelta(tool_call={"index": index, **whole, "function": {"name": name, "arguments": ""}})
            case CallArguments(index, text):
                self._tool_calls[index]["function"]["arguments"] += text
                return ReplyDelta(tool_call={"index": index, "function": {"arguments": text}})
            case str():
                self._content.append(event)
                return ReplyDelta(content=event)
