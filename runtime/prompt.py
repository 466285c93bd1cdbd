"""From a request to the tokens of its prompt: template, tokenizer, the beginning-of-text token exactly once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field, frozen

from ..errors import BadInput
from .conversation.reasoning import thinking_asked
from .conversation.templates import ChatTemplate, Segment
from .conversation.turn import Turn, open_turn
from .engine.thinking import ThinkingLimit, ThinkingTags
from .types import Constraint, GenerateRequest

Tokenize = Callable[[str, bool], Sequence[int]]
"""Text to tokens without a beginning-of-text token; True reads control tokens in it, False takes them as text."""


@frozen(kw_only=True)
class Prompt:
    """A request's prompt in tokens, and what its template said beside it."""

    tokens: list[int]
    text: str = ""
    """What the template wrote."""
    stop: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reasoning_open: str | None = None
    """The tag the prompt ends with, where the answer begins inside what the model thinks."""
    reply: dict[str, Any] | None = None
    """How to take the answer's text apart (`ReplyFormat.as_dict`)."""
    constraint: Constraint | None = None
    """The request's constraint with the form of its tool calls."""
    thinking: ThinkingLimit | None = None


@define(kw_only=True)
class Prompts:
    """Makes the prompts of one loaded model; belongs to one thread."""

    tokenize: Tokenize
    bos: int | None
    """The token that every prompt starts with; None where the model wants none."""
    template: ChatTemplate
    control_texts: Sequence[str] = ()
    """The texts of the model's control tokens; empty means unknown."""
    choose_template: Callable[[str], ChatTemplate] | None = None
    """Makes the template that a request brings; None takes none."""
    _chosen: tuple[str, ChatTemplate] | None = field(default=None, init=False)
    _controls: re.Pattern[str] | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        texts = sorted(filter(None, self.control_texts), key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, texts))) if texts else None

    def prompt(self, request: GenerateRequest) -> Prompt:
        """The request's prompt. Raises BadInput where it is empty or the template refuses it."""
        if request.prompt is None:
            turn = open_turn(self._template_of(request), request)
            rendered = turn.rendered
            prompt = Prompt(
                tokens=self._with_bos(self._tokenize_segments(rendered.segments)),
                text=rendered.text,
                stop=rendered.stop,
                notes=rendered.notes,
                reasoning_open=rendered.reasoning_open,
                reply=turn.reply.as_dict(),
                constraint=turn.constraint,
                thinking=self._thinking(request, turn),
            )
        elif isinstance(request.prompt, str):
            prompt = Prompt(
                tokens=self._with_bos(self.tokenize(_encodable(request.prompt), True)), constraint=request.constraint
            )
        else:
            prompt = Prompt(tokens=list(request.prompt), constraint=request.constraint)
        if not prompt.tokens:
            raise BadInput("the prompt is empty", param="messages" if request.prompt is None else "prompt")
        return prompt

    def _thinking(self, request: GenerateRequest, turn: Turn) -> ThinkingLimit | None:
        """What the template says of the model's thoughts, and the request's limit on them."""
        # a constraint begins right behind the closing tag and allows no blank line there
        after = "" if turn.constraint is not None else "\n\n"
        tags = {
            opening: ThinkingTags(opening.encode(), closing.encode(), tuple(self.tokenize(f"\n{closing}{after}", True)))
            for opening, closing in self._template_of(request).reasoning
        }
        opened = tags.get(turn.rendered.reasoning_open or "")
        # a template may open a thought whatever it is told; then only a limit keeps the model from thinking
        unwanted = opened is not None and thinking_asked(request.template_options) is False
        budget = 0 if unwanted else request.thinking_budget
        return ThinkingLimit(budget=budget, tags=tuple(tags.values()), opened=opened)

    def _template_of(self, request: GenerateRequest) -> ChatTemplate:
        """The model's template, or the request's own, of which the last is kept."""
        given = request.chat_template
        if given is None:
            return self.template
        if self._chosen is None or self._chosen[0] != given:
            if self.choose_template is None:
                raise BadInput("this model takes no other chat template", param="chat_template")
            self._chosen = (given, self.choose_template(given))
        return self._chosen[1]

    def _with_bos(self, tokens: Sequence[int]) -> list[int]:
        """A template may have written the token itself; two of them make a model babble."""
        if self.bos is None or (tokens and tokens[0] == self.bos):
            return list(tokens)
        return [self.bos, *tokens]

    def _tokenize_segments(self, segments: Sequence[Segment]) -> list[int]:
        """The tokens of the whole text where that is safe, else segment by segment.

        Whole text is what models were trained on: a token may reach over the border of a message's text. It is unsafe
        only where a person's text holds, or helps to make, the text of a control token.
        """
        segments = [Segment(_encodable(segment.text), segment.special) for segment in segments]
        whole = "".join(segment.text for segment in segments)
        if self._is_safe(whole, segments):
            return list(self.tokenize(whole, True))
        return [token for segment in segments for token in self.tokenize(segment.text, segment.special)]

    def _is_safe(self, whole: str, segments: Sequence[Segment]) -> bool:
        """No control token's text touches a character that the request brought."""
        if all(segment.special for segment in segments):
            return True
        if self._controls is None:
            return False
        trusted = bytearray()
        for segment in segments:
            trusted += (b"\1" if segment.special else b"\0") * len(segment.text)
        return all(0 not in trusted[match.start() : match.end()] for match in self._controls.finditer(whole))


def _encodable(text: str) -> str:
    """Half of a surrogate pair, which JSON can carry, is no character: it becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
