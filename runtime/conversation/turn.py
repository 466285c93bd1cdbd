"""One request turned into all that its answer depends on: the prompt, the constraint, the way to read the text."""

from __future__ import annotations

from attrs import frozen

from ..types import Constraint, GenerateRequest
from .constraints import constraint_for
from .reply import ReplyFormat, reply_format
from .templates import ChatTemplate, Rendered
from .tools import read_tool_choice

OWN_OPTIONS = frozenset({"parallel_tool_calls", "separate_reasoning", "reasoning_format"})
"""Names in `template_options` that are about the answer and not for the template."""


@frozen(kw_only=True)
class Turn:
    """What a conversation's next answer starts from."""

    rendered: Rendered
    reply: ReplyFormat
    constraint: Constraint | None


def open_turn(template: ChatTemplate, request: GenerateRequest) -> Turn:
    """Render the request's messages and settle how its answer is constrained and read.

    With `tool_choice` none the model is not told of the tools. Raises BadInput for messages, tools or choices that make
    no sense or that the template refuses.
    """
    choice = read_tool_choice(request.tools, request.tool_choice)
    options = {name: value for name, value in request.template_options.items() if name not in OWN_OPTIONS}
    tools = request.tools if choice.mode != "none" else ()
    rendered = template.render(request.messages, tools=tools, options=options)
    return Turn(
        rendered=rendered,
        reply=reply_format(template, request, rendered),
        constraint=constraint_for(template, request, rendered),
    )
