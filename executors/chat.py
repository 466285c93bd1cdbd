"""`localllm chat` and the chat endpoint: a conversation in, deltas and one OpenAI completion out."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING

from attrs import evolve

from ..errors import InternalError, LocalLLMError
from ..planner.report import Facts
from .asking import asked, asking_facts
from .events import Delta, Record, Result
from .preview import previewed

if TYPE_CHECKING:
    from ..planner.plans.chat import Chat
    from ..runtime.models.catalog import Entry
    from ..runtime.types import GenerateRequest
    from .context import Context
    from .events import Events


def preview_chat(plan: Chat, ctx: Context) -> Facts:
    """Which file the name means here, and what its template does to the conversation.

    Where only the prompt is asked for, its text and its template are among the facts; what takes the vocabulary is not
    known: the tokens, and the beginning-of-text token where the file's own template writes it. Raises BadInput for
    fields that contradict each other.
    """
    facts, entry = asking_facts(plan, ctx)
    if _may_contradict(plan):
        from .request import chat_request

        chat_request(plan)
    if plan.show_prompt or _may_need_repair(plan):
        facts = _with_template(facts, plan, entry)
    return facts


@previewed(preview_chat)
async def chat(plan: Chat, ctx: Context) -> Events:
    """Answer: an envelope record, deltas, and the whole `chat.completion` as the result.

    Where only the prompt is asked for, the result is its text and tokens. Outside a server the plan is sent to the one
    that answers; without one a worker of this process does the work.
    """
    from .request import chat_request

    request = chat_request(plan)
    async with aclosing(asked(plan, ctx, lambda model_id: _answer(request, ctx, model_id))) as events:  # type: ignore[type-var]
        async for event in events:
            yield event


async def _answer(request: GenerateRequest, ctx: Context, model_id: str) -> Events:
    from ..runtime.types import Done, Finished, Piece, Started
    from .answer import Answer

    answer = Answer(id=f"chatcmpl-{request.request_id}", created=int(time.time()), model=model_id)
    answer.seed = request.sampling.seed
    async with aclosing(ctx.runtime.generate(model_id, request)) as outputs:  # type: ignore[type-var]
        async for output in outputs:
            match output:
                case Started(prompt=None):
                    answer.start(output)
                    yield Record(data=answer.envelope())
                    for index in range(request.n):
                        yield Delta(index=index, delta={"role": "assistant", "content": ""})
                case Started():
                    yield Result(data={"model": model_id, **(output.prompt or {}), "notes": list(output.notes)})
                    return
                case Piece():
                    for delta in answer.piece(output):
                        yield delta
                case Finished():
                    for delta in answer.finished(output):
                        yield delta
                case Done():
                    yield Result(data=answer.completion(output))
                    return
    raise InternalError("the answer ended without its last word")


def _may_contradict(plan: Chat) -> bool:
    """Whether the plan says more than a dry run may take on trust; a plain question needs no further import."""
    form = (plan.response_format, plan.grammar, plan.regex, plan.choice or None)
    more = (plan.tools, plan.tool_choice, plan.logit_bias, plan.top_logprobs, plan.min_tokens)
    return any(value is not None for value in form) or any(more)


def _may_need_repair(plan: Chat) -> bool:
    """Whether a template could refuse the conversation: anything but user and assistant by turns."""
    roles = [message.role for message in plan.messages]
    turns = ["user", "assistant"] * len(roles)
    return bool(plan.tools or plan.chat_template) or roles != turns[: len(roles)]


def _with_template(facts: Facts, plan: Chat, entry: Entry | None) -> Facts:
    """What people should know about the prompt, found by rendering it with the template that would be chosen."""
    if entry is None and plan.chat_template is None:
        return facts
    from ..runtime.conversation.templates import ChatTemplate
    from ..runtime.conversation.turn import open_turn
    from ..runtime.models.gguf import read_header
    from .request import chat_request

    try:
        metadata = {} if entry is None else read_header(entry.path).metadata
        names = () if entry is None else (plan.model, *entry.aliases, entry.id)
        template = ChatTemplate.choose(metadata, names, plan.chat_template)
        rendered = open_turn(template, chat_request(plan)).rendered
    except LocalLLMError as error:
        return evolve(facts, warnings=(*facts.warnings, f"would fail here: {error.message}"))
    facts = evolve(facts, warnings=(*facts.warnings, *template.warnings, *rendered.notes))
    if not plan.show_prompt:
        return facts
    chosen = {"family": template.family, "source": template.source, "stop": list(rendered.stop)}
    unknown = (*facts.unknown, "the prompt's tokens")
    return evolve(facts, resolved={**facts.resolved, "template": chosen, "prompt": rendered.text}, unknown=unknown)
