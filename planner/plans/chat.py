"""The plan of `localllm chat` and of `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import ClassVar, Literal

from attrs import frozen

from ..chat_request import Message
from ..fields import Effect, Where, option


@frozen(kw_only=True)
class Chat:
    """Answer a conversation with a model."""

    command: ClassVar[Literal["chat"]] = "chat"
    where: ClassVar[Where] = "either"
    effects: ClassVar[tuple[Effect, ...]] = ("read", "network", "gpu", "exec")
    on_server: ClassVar[bool] = True

    messages: tuple[Message, ...] = option(
        help="The conversation as a JSON list of messages", min_length=1, max_length=10_000
    )
    model: str = option(
        "local-model",
        help="Model to ask: an id, an alias, or `local-model` for the default one",
        min_length=1,
        aliases=("-m",),
    )
    max_tokens: int | None = option(
        None, help="Tokens the answer may have; unset goes up to the context's end", ge=1, le=2**31 - 1
    )
    temperature: float = option(0.8, help="Randomness; 0 always takes the likeliest token", ge=0, le=100)
    top_p: float = option(0.95, help="Keep the likeliest tokens that make up this probability", ge=0, le=1)
    top_k: int = option(40, help="Keep this many of the likeliest tokens; 0 keeps all", ge=0, le=2**31 - 1)
    min_p: float = option(0.05, help="Drop tokens less likely than this share of the likeliest", ge=0, le=1)
    seed: int | None = option(None, help="Seed of the sampler; unset takes a new one each time", ge=0, le=2**32 - 1)
    stop: tuple[str, ...] = option((), help="Text that ends the answer (may be given several times)", max_length=64)
    presence_penalty: float = option(0.0, help="Penalty for tokens that occurred", ge=-2, le=2)
    frequency_penalty: float = option(0.0, help="Penalty for tokens by how often they occurred", ge=-2, le=2)
    repeat_penalty: float = option(1.0, help="Factor against repeating recent tokens; 1 is off", gt=0, le=100)
    n: int = option(1, help="How many answers to give", ge=1, le=128)
    cache_prompt: bool = option(True, help="Reuse what is already computed of the prompt")
    timeout_s: float | None = option(None, help="Seconds after which the request ends with an error", gt=0, le=86_400)

    def __attrs_post_init__(self) -> None:
        if "" in self.stop:
            raise ValueError("`stop`: an empty text would end every answer at once")
