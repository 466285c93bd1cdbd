"""A plan for text in the runtime's terms: what `chat` and `complete` ask, checked where a schema cannot."""

from __future__ import annotations

from secrets import randbits, token_hex
from typing import TYPE_CHECKING, Any

from attrs import asdict

from ..errors import BadInput
from ..runtime.conversation.constraints import constraint_from_request
from ..runtime.conversation.tools import read_tool_choice
from ..runtime.types import Constraint, GenerateRequest, Sampling
from .context import read_whole

if TYPE_CHECKING:
    from ..planner.chat_request import Message
    from ..planner.plans.chat import Chat
    from ..planner.plans.complete import Complete
    from ..planner.plans.generation import Generation

_SAME = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "ignore_eos",
    "min_tokens",
    "samplers",
)
"""Fields of a plan that the sampler chain has under the same name."""


def chat_request(plan: Chat) -> GenerateRequest:
    """The request of a conversation under a fresh id. Raises BadInput for fields that contradict each other."""
    if plan.top_logprobs and not plan.logprobs:
        raise BadInput("`top_logprobs` needs `logprobs`", hint="set `logprobs` to true", param="top_logprobs")
    tools = tuple(plan.tools)
    read_tool_choice(tools, plan.tool_choice)
    return GenerateRequest(
        messages=tuple(_message(message) for message in plan.messages),
        logprobs=plan.top_logprobs if plan.logprobs else None,
        tools=tools,
        tool_choice=plan.tool_choice,
        template_options=_template_options(plan),
        chat_template=plan.chat_template,
        thinking_budget=plan.thinking_budget,
        only_prompt=plan.show_prompt,
        **_common(plan, _seed(plan)),
    )


def text_requests(plan: Complete) -> list[GenerateRequest]:
    """A request for each prompt of a plan, in order; the seeds of all their answers differ."""
    requests, seed = [], _seed(plan)
    for at, prompt in enumerate(plan.prompts):
        common = _common(plan, (seed + at * plan.n) % 2**32)
        requests.append(GenerateRequest(prompt=prompt, logprobs=plan.logprobs, **common))
    return requests


def _seed(plan: Generation) -> int:
    """The plan's seed. One that is not given is drawn here and not by the engine, so that the answer can tell it."""
    return randbits(32) if plan.seed is None else plan.seed


def _common(plan: Generation, seed: int) -> dict[str, Any]:
    if plan.max_tokens is not None and plan.min_tokens > plan.max_tokens:
        raise BadInput(
            f"`min_tokens` is above `max_tokens` ({plan.min_tokens} > {plan.max_tokens})", param="min_tokens"
        )
    return {
        "request_id": token_hex(12),
        "sampling": _sampling(plan, seed),
        "max_tokens": plan.max_tokens,
        "stop": tuple(plan.stop),
        "n": plan.n,
        "cache_prompt": plan.cache_prompt,
        "determinism": plan.determinism,
        "constraint": _constraint(plan),
        "timeout_s": plan.timeout_s,
        "whole": read_whole.get(),
    }


def _sampling(plan: Generation, seed: int) -> Sampling:
    given = {name: getattr(plan, name) for name in _SAME}
    return Sampling(**given, seed=seed, logit_bias=_logit_bias(plan))


def _logit_bias(plan: Generation) -> tuple[tuple[int, float], ...]:
    pairs = []
    for token, bias in plan.logit_bias.items():
        if not token.isascii() or not token.isdigit() or len(token) > 10:
            raise BadInput(f"`{token[:50]}` is not the number of a token", param="logit_bias")
        pairs.append((int(token), bias))
    return tuple(pairs)


def _constraint(plan: Generation) -> Constraint | None:
    names = ("response_format", "grammar", "regex")
    asked = {name: getattr(plan, name) for name in names} | {"choice": plan.choice or None}
    constraint = constraint_from_request(asked)
    if constraint is None or not plan.json_whitespace:
        return constraint
    from attrs import evolve

    return evolve(constraint, whitespace=True)


def _template_options(plan: Chat) -> dict[str, Any]:
    """What the template is told; what is not set is left out, because templates ask `is defined`."""
    options: dict[str, Any] = {}
    if plan.enable_thinking is not None:
        options["enable_thinking"] = plan.enable_thinking
    if plan.reasoning_effort is not None:
        options["reasoning_effort"] = plan.reasoning_effort
    if plan.chat_template_kwargs:
        options["chat_template_kwargs"] = plan.chat_template_kwargs
    if not plan.parallel_tool_calls:
        options["parallel_tool_calls"] = False
    if plan.reasoning_format == "none":
        options["reasoning_format"] = "none"
    return options


def _message(message: Message) -> dict[str, Any]:
    """OpenAI's form of a message; what is not set is left out, because templates ask `is defined`."""
    raw = asdict(message)
    out = {name: value for name, value in raw.items() if value is not None and value != ()}
    for name in ("content", "tool_calls"):
        if isinstance(out.get(name), tuple):
            out[name] = list(out[name])
    return {"content": None, **out} if message.role == "assistant" and "content" not in out else out
