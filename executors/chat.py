"""`localllm chat` and the chat endpoint: a conversation in, deltas and one OpenAI completion out."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from ..errors import InternalError, LocalLLMError, ServerUnreachable
from ..planner.report import Facts
from .events import Delta, Progress, Record, Result
from .loading import DEFAULT_NAME, loading, refuse_unloadable, resolve
from .preconditions import file_preconditions
from .preview import previewed

if TYPE_CHECKING:
    from ..planner.chat_request import Message
    from ..planner.plans.chat import Chat
    from ..runtime.conversation.reply import ReplyFormat, ReplyParser
    from ..runtime.types import Done, Finished, GenerateRequest, LoadedModel, Piece, Started, TokenLogprob
    from .context import Context
    from .events import Events


def preview_chat(plan: Chat, ctx: Context) -> Facts:
    """Which file the name means here; whether a server answers instead is not asked."""
    unknown = (
        [] if ctx.on_server else [f"whether a server answers at `{ctx.settings.server}`; without one it runs here"]
    )
    resolved: dict[str, Any] = {}
    preconditions: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    name = _configured(plan.model, ctx)
    if name is None:
        unknown.append("what `local-model` means: none is configured, so it is the model that is loaded")
    else:
        try:
            target = resolve(ctx, name)
            resolved["model_id"] = target.model_id
            if target.entry is not None:
                refuse_unloadable(target.entry)
                resolved["path"] = target.entry.relative_path
                preconditions = file_preconditions(target.entry, ctx.models_dir)
        except LocalLLMError as error:
            warnings = (f"would fail here: {error.message}",)
    provenance = {}
    if plan.seed is None and plan.temperature > 0:
        unknown.append("the seed, which is drawn when the plan runs")
    if plan.max_tokens is None:
        provenance["max_tokens"] = {"value": None, "origin": "default"}
        unknown.append("the number of tokens the context leaves for the answer")
    return Facts(
        effects=("read", "gpu", "exec") if ctx.on_server else ("read", "network", "gpu", "exec"),
        where="server" if ctx.on_server else "either",
        resolved=resolved,
        provenance=provenance,
        preconditions=preconditions,
        unknown=tuple(unknown),
        warnings=warnings,
    )


@previewed(preview_chat)
async def chat(plan: Chat, ctx: Context) -> Events:
    """Answer: an envelope record, deltas, and the whole `chat.completion` as the result.

    Outside a server the plan is sent to the one that answers; without one a worker of this process does the work.
    """
    if not ctx.on_server and await server_answers(ctx):
        from .client import send_plan

        async with aclosing(send_plan(plan, ctx)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event
        return
    model: LoadedModel | None = None
    async for step in loading(ctx, plan.model):
        if isinstance(step, Progress):
            yield step
        else:
            model = step
    if model is None:
        raise InternalError("loading ended without a model")
    async with aclosing(_answer(plan, ctx, model.model_id)) as events:  # type: ignore[type-var]
        async for event in events:
            yield event


async def server_answers(ctx: Context) -> bool:
    """Whether a localllm server answers at the setting `server`."""
    from .client import find_server

    try:
        await find_server(ctx)
    except ServerUnreachable:
        return False
    return True


async def _answer(plan: Chat, ctx: Context, model_id: str) -> Events:
    from ..runtime.types import Done, Finished, Piece, Started

    request = generate_request(plan)
    answer = Answer(id=f"chatcmpl-{request.request_id}", created=int(time.time()), model=model_id)
    async with aclosing(ctx.runtime.generate(model_id, request)) as outputs:  # type: ignore[type-var]
        async for output in outputs:
            match output:
                case Started():
                    answer.start(output)
                    yield Record(data=answer.envelope())
                    for index in range(plan.n):
                        yield Delta(index=index, delta={"role": "assistant", "content": ""})
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


def generate_request(plan: Chat) -> GenerateRequest:
    """The plan in the runtime's terms, under a fresh request id."""
    from secrets import token_hex

    from ..runtime.types import GenerateRequest, Sampling

    return GenerateRequest(
        request_id=token_hex(12),
        messages=tuple(_message(message) for message in plan.messages),
        sampling=Sampling(
            temperature=plan.temperature,
            top_p=plan.top_p,
            top_k=plan.top_k,
            min_p=plan.min_p,
            seed=plan.seed,
            presence_penalty=plan.presence_penalty,
            frequency_penalty=plan.frequency_penalty,
            repeat_penalty=plan.repeat_penalty,
        ),
        max_tokens=plan.max_tokens,
        stop=tuple(plan.stop),
        n=plan.n,
        cache_prompt=plan.cache_prompt,
        timeout_s=plan.timeout_s,
    )


def _message(message: Message) -> dict[str, Any]:
    """OpenAI's form of a message; what is not set is left out, because templates ask `is defined`."""
    from attrs import asdict

    raw = asdict(message)
    out = {name: value for name, value in raw.items() if value is not None and value != ()}
    for name in ("content", "tool_calls"):
        if isinstance(out.get(name), tuple):
            out[name] = list(out[name])
    return {"content": None, **out} if message.role == "assistant" and "content" not in out else out


@define(kw_only=True)
class Answer:
    """What one request has answered so far, taken apart into content, reasoning and tool calls."""

    id: str
    created: int
    model: str
    notes: list[str] = field(factory=list)
    _format: ReplyFormat | None = field(default=None, init=False)
    _replies: dict[int, ReplyParser] = field(factory=dict, init=False)
    _logprobs: dict[int, list[dict[str, Any]]] = field(factory=dict, init=False)
    _reasons: dict[int, str] = field(factory=dict, init=False)
    _reasoning_tokens: int = field(default=0, init=False)

    def start(self, started: Started) -> None:
        """The prompt is accepted: from here on it is known how to read the text."""
        from ..runtime.conversation.reply import ReplyFormat

        self.notes = list(started.notes)
        self._format = ReplyFormat() if started.reply is None else ReplyFormat.from_dict(started.reply)

    def envelope(self) -> dict[str, Any]:
        """What every chunk of the answer shares."""
        return {"id": self.id, "created": self.created, "model": self.model}

    def piece(self, piece: Piece) -> list[Delta]:
        """The news in a piece of one choice's text; none where it may be the beginning of a tag."""
        reply = self._reply(piece.index)
        if reply.thinking:
            self._reasoning_tokens += piece.tokens
        deltas = [Delta(index=piece.index, delta=news.as_openai()) for news in reply.feed(piece.text)]
        if piece.logprobs:
            rows = [_logprob(token) for token in piece.logprobs]
            self._logprobs.setdefault(piece.index, []).extend(rows)
            first = deltas.pop(0) if deltas else Delta(index=piece.index, delta={})
            deltas.insert(0, evolve(first, logprobs={"content": rows, "refusal": None}))
        return deltas

    def finished(self, finished: Finished) -> list[Delta]:
        """The end of one choice: text that was held back, then the reason."""
        reply = self._reply(finished.index)
        deltas = [Delta(index=finished.index, delta=news.as_openai()) for news in reply.finish()]
        reason = reply.finish_reason if finished.reason == "stop" else finished.reason
        self._reasons[finished.index] = reason
        return [*deltas, Delta(index=finished.index, delta={}, finish_reason=reason)]

    def _reply(self, index: int) -> ReplyParser:
        if index not in self._replies:
            from ..runtime.conversation.reply import ReplyFormat, ReplyParser

            self._replies[index] = ReplyParser(self._format or ReplyFormat())
        return self._replies[index]

    def completion(self, done: Done) -> dict[str, Any]:
        """The whole answer as OpenAI's `chat.completion`; `timings` is ours, in milliseconds."""
        usage, timings = done.usage, done.timings
        out = {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(index) for index in sorted(self._reasons)],
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
                "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or self._reasoning_tokens},
            },
            "timings": {
                "queue_ms": round(timings.queue_s * 1000, 3),
                "prefill_ms": round(timings.prefill_s * 1000, 3),
                "decode_ms": round(timings.decode_s * 1000, 3),
                "time_to_first_token_ms": round(timings.time_to_first_token_s * 1000, 3),
            },
        }
        return {**out, "notes": self.notes} if self.notes else out

    def _choice(self, index: int) -> dict[str, Any]:
        logprobs = self._logprobs.get(index)
        return {
            "index": index,
            "message": self._reply(index).message(),
            "logprobs": None if logprobs is None else {"content": logprobs, "refusal": None},
            "finish_reason": self._reasons[index],
        }


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    top = [_token(raw, value) for raw, value in token.top]
    return {**_token(token.token, token.logprob), "top_logprobs": top}


def _token(raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


def _configured(name: str, ctx: Context) -> str | None:
    """The name, or what `local-model` means as far as a dry run can tell."""
    if name != DEFAULT_NAME:
        return name
    return ctx.default_model_id or ctx.settings.default_model
