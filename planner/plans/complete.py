"""The plan of `localllm complete` and of `POST /v1/completions`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..fields import Effect, Where, option, own_fields_first
from .generation import Generation


@frozen(kw_only=True, field_transformer=own_fields_first)
class Complete(Generation):
    """Continue a text, without a chat template."""

    command: ClassVar[Literal["complete"]] = "complete"
    where: ClassVar[Where] = "either"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "network", "gpu", "exec")
    on_server: ClassVar[bool] = True

    prompts: tuple[str | tuple[int, ...], ...] = option(
        help="Texts or lists of tokens, each continued by itself", min_length=1, max_length=256
    )
    logprobs: int | None = option(
        None, help="Tell each token's log-probability and this many of the likeliest beside it", ge=0, le=20
    )
