"""What a request for text may ask for besides its prompt; `chat` and `complete` share it."""

from __future__ import annotations

from typing import Any, Literal

from attrs import frozen

from ..fields import option

SAMPLING = "Sampling"
FORM = "Form of the answer"

_INT = 2**31 - 1


@frozen(kw_only=True)
class Generation:
    """How an answer is made: by which model, within which limits, by which samplers, in which form."""

    model: str = option(
        "local-model",
        help="Model to ask: an id, an alias, or `local-model` for the default one",
        min_length=1,
        aliases=("-m",),
    )
    max_tokens: int | None = option(
        None, help="Tokens the answer may have; unset goes up to the context's end", ge=1, le=_INT
    )
    min_tokens: int = option(0, help="Tokens before which the answer may not end by itself", ge=0, le=_INT)
    stop: tuple[str, ...] = option(
        (), help="Text that ends the answer (may be given several times)", max_length=64, item_min_length=1
    )
    ignore_eos: bool = option(False, help="Go on up to the limit, whatever the model wants")
    n: int = option(1, help="How many answers to give", ge=1, le=128)
    cache_prompt: bool = option(True, help="Reuse what is already computed of the prompt")
    determinism: Literal["default", "strict"] = option(
        "default", help="`strict` computes alone and always in the same steps: equal requests get equal answers"
    )
    timeout_s: float | None = option(None, help="Seconds after which the request ends with an error", gt=0, le=86_400)

    temperature: float = option(
        0.8, help="Randomness; 0 always takes the likeliest token", ge=0, le=100, group=SAMPLING
    )
    dynatemp_range: float = option(
        0.0, help="How far the temperature moves with the entropy; 0 is off", ge=0, le=100, group=SAMPLING
    )
    dynatemp_exponent: float = option(1.0, help="How the entropy becomes a temperature", ge=0, le=100, group=SAMPLING)
    top_k: int = option(
        40, help="Keep this many of the likeliest tokens; 0 and -1 keep all", ge=-1, le=_INT, group=SAMPLING
    )
    top_p: float = option(
        0.95, help="Keep the likeliest tokens that make up this probability", ge=0, le=1, group=SAMPLING
    )
    min_p: float = option(
        0.05, help="Drop tokens less likely than this share of the likeliest", ge=0, le=1, group=SAMPLING
    )
    typical_p: float = option(
        1.0, help="Keep the tokens closest to the expected surprise; 1 is off", ge=0, le=1, group=SAMPLING
    )
    top_n_sigma: float = option(
        -1.0, help="Keep tokens within this many deviations of the best; -1 is off", ge=-1, le=100, group=SAMPLING
    )
    xtc_probability: float = option(
        0.0, help="Chance to drop the likeliest tokens; 0 is off", ge=0, le=1, group=SAMPLING
    )
    xtc_threshold: float = option(
        0.1, help="Probability from which such a token is droppable", ge=0, le=1, group=SAMPLING
    )
    seed: int | None = option(
        None, help="Seed of the sampler; unset takes a new one each time", ge=0, le=2**32 - 1, group=SAMPLING
    )
    presence_penalty: float = option(0.0, help="Penalty for tokens that occurred", ge=-2, le=2, group=SAMPLING)
    frequency_penalty: float = option(
        0.0, help="Penalty for tokens by how often they occurred", ge=-2, le=2, group=SAMPLING
    )
    repeat_penalty: float = option(
        1.0, help="Factor against repeating recent tokens; 1 is off", gt=0, le=100, group=SAMPLING
    )
    repeat_last_n: int = option(
        64, help="Tokens the penalties look back; -1 is the whole context", ge=-1, le=_INT, group=SAMPLING
    )
    dry_multiplier: float = option(
        0.0, help="Strength of the penalty on repeated sequences; 0 is off", ge=0, le=100, group=SAMPLING
    )
    dry_base: float = option(
        1.75, help="How that penalty grows with the sequence's length", ge=0, le=100, group=SAMPLING
    )
    dry_allowed_length: int = option(2, help="Repeated length without penalty", ge=0, le=_INT, group=SAMPLING)
    dry_penalty_last_n: int = option(
        -1, help="Tokens that penalty looks back; -1 is the whole context", ge=-1, le=_INT, group=SAMPLING
    )
    dry_sequence_breakers: tuple[str, ...] = option(
        ("\n", ":", '"', "*"), help="Text that ends a repeated sequence", max_length=64, group=SAMPLING
    )
    mirostat: Literal[0, 1, 2] = option(0, help="Version of mirostat sampling; 0 is off", group=SAMPLING)
    mirostat_tau: float = option(5.0, help="Surprise that mirostat aims at", ge=0, le=100, group=SAMPLING)
    mirostat_eta: float = option(0.1, help="How fast mirostat learns", ge=0, le=100, group=SAMPLING)
    logit_bias: dict[str, float] = option(
        factory=dict, help="What is added to tokens' logits, by token number", group=SAMPLING, example={"42": -100}
    )
    samplers: tuple[str, ...] = option(
        (), help="Order of the samplers by name; unset is llama.cpp's own", max_length=32, group=SAMPLING
    )

    response_format: dict[str, Any] | None = option(
        None,
        help="`text`, `json_object` or `json_schema` as the API has it",
        group=FORM,
        example={"type": "json_object"},
    )
    grammar: str | None = option(None, help="Grammar of the answer, GBNF or Lark", min_length=1, group=FORM)
    regex: str | None = option(None, help="Regular expression that the whole answer matches", min_length=1, group=FORM)
    choice: tuple[str, ...] = option(
        (), help="Text that may be the answer (may be given several times)", max_length=1000, group=FORM
    )
    json_whitespace: bool = option(
        False, help="Let the model put white space between JSON's tokens as it likes", group=FORM
    )
