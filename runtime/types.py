"""The values that cross the runtime's borders: how to load a model, what to generate, what came out.

All are plain data: a codec may turn each into msgpack and back (`attrs.asdict`, tuples as lists).
"""

from __future__ import annotations

from typing import Any, Literal

from attrs import field, frozen

from .load_spec import BackendName as BackendName
from .load_spec import LoadSpec as LoadSpec

ModelState = Literal["loading", "ready", "unloading", "cooling_down"]
FinishReason = Literal["stop", "length", "tool_calls"]


@frozen(kw_only=True)
class Sampling:
    """The sampler chain of one request; the defaults are llama.cpp's. `temperature` 0 is greedy."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    """0 to 2^32-1; None draws a fresh one. The i-th of `n` answers uses seed + i."""
    ignore_eos: bool = False
    min_tokens: int = 0
    samplers: tuple[str, ...] = ()
    """Order of the samplers by llama.cpp's names; empty is llama.cpp's own order."""


@frozen(kw_only=True)
class Constraint:
    """What the answer's text must conform to, enforced token by token."""

    kind: Literal["json_object", "json_schema", "regex", "lark", "gbnf"]
    source: Any
    """The schema as a dict, or the grammar's text; ignored for `json_object`."""
    trigger: str | None = None
    """Text that starts the constraint (a tool call's opening tag); None constrains from the first token."""
    required: bool = False
    """The answer may not end before the trigger came."""
    whitespace: bool = False
    """Allow free white space between JSON tokens instead of `, ` and `: `."""
    param: str | None = None
    """Where the request said it, for a refusal."""
    schemas: tuple[tuple[str, Any], ...] = ()
    """The schemas within a grammar, each with its place in the request, for a refusal."""


@frozen(kw_only=True)
class GenerateRequest:
    """One request to a loaded model: a conversation or a raw prompt, and how to answer it."""

    request_id: str
    messages: tuple[dict[str, Any], ...] = ()
    """OpenAI-shaped messages; rendered by the worker's chat template."""
    prompt: str | tuple[int, ...] | None = None
    """A raw prompt, text or tokens, instead of `messages`."""
    sampling: Sampling = field(factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    cache_prompt: bool = True
    determinism: Literal["default", "strict"] = "default"
    logprobs: int | None = None
    """How many alternatives a token's log-probabilities list; None means none at all, 0 the chosen one only."""
    constraint: Constraint | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: Any = None
    template_options: dict[str, Any] = field(factory=dict)
    """`enable_thinking`, `chat_template_kwargs` and the like, handed to the template."""
    chat_template: str | None = None
    """A template's text or a family's name instead of the model's own."""
    thinking_budget: int | None = None
    """Tokens the model may think; then its thinking is closed for it and the answer follows."""
    only_prompt: bool = False
    """Tell the prompt in `Started` and generate nothing."""
    timeout_s: float | None = None
    whole: bool = False
    """Whether nobody reads the answer as it grows: its text then comes in one piece, which spares the machine a
    message a token."""


@frozen(kw_only=True)
class TokenLogprob:
    """A token's log-probability (natural, before sampling) and its best alternatives, likeliest first."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@frozen(kw_only=True)
class Started:
    """The prompt is accepted: exactly one, first."""

    prompt_tokens: int
    model_id: str
    notes: tuple[str, ...] = ()
    """Repairs and warnings people should see, such as a folded system message."""
    reasoning_open: str | None = None
    """The tag the prompt ends with, where the answer begins inside what the model thinks."""
    reply: dict[str, Any] | None = None
    """How to take the answer's text apart (`ReplyFormat.as_dict`); None leaves it as it is."""
    prompt: dict[str, Any] | None = None
    """`text` and `tokens` of the prompt, where only that was asked for."""


@frozen(kw_only=True)
class Piece:
    """New text of one answer; `text` is whole characters, `tokens` how many tokens this step sampled."""

    index: int
    text: str
    tokens: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()


@frozen(kw_only=True)
class Usage:
    """Token counts; `completion_tokens` counts sampled tokens, the end-of-text token included where one ended it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@frozen(kw_only=True)
class Timings:
    """Seconds a request spent; `decode_s` from the first token to the last."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    time_to_first_token_s: float = 0.0


@frozen(kw_only=True)
class Finished:
    """One answer ended; exactly one for each index."""

    index: int
    reason: FinishReason
    stop_text: str | None = None


@frozen(kw_only=True)
class Done:
    """The request ended well: exactly one, last, after a `Finished` for each answer."""

    usage: Usage
    timings: Timings = field(factory=Timings)


Output = Started | Piece | Finished | Done
"""What a request yields, in order; a fault is raised as a `LocalLLMError` instead of `Done`."""


@frozen(kw_only=True)
class SlotStatus:
    """One request inside a worker."""

    request_id: str
    state: Literal["queued", "prefill", "decode"]
    prompt_tokens: int
    completion_tokens: int


@frozen(kw_only=True)
class LoadedModel:
    """A model that has a worker, as `status` and the load report show it."""

    model_id: str
    state: ModelState
    backend: BackendName
    spec: LoadSpec
    pid: int | None = None
    applied: dict[str, Any] = field(factory=dict)
    """Effective parameters by name (`n_ctx`, `n_ctx_pool`, `n_slots`, `n_threads`, `gpu_layers`, …)."""
    origins: dict[str, str] = field(factory=dict)
    """Where each applied value comes from: flag, profile, GGUF, default, fit."""
    warnings: tuple[str, ...] = ()
    memory: dict[str, Any] = field(factory=dict)
    load_s: float = 0.0
    loaded_at: float | None = None
    last_used_at: float | None = None
    requests_running: int = 0
    requests_queued: int = 0
    slots: tuple[SlotStatus, ...] = ()
    metrics: dict[str, Any] = field(factory=dict)
    pinned: bool = False
