"""What a model thinks before it answers: how many tokens, and where a limit closes the thought for it."""

from __future__ import annotations

from attrs import define, field, frozen


@frozen
class ThinkingTags:
    """One pair of tags, and the tokens that close a thought."""

    opening: bytes
    closing: bytes
    closing_tokens: tuple[int, ...]


@frozen(kw_only=True)
class ThinkingLimit:
    """What a request's answers may think; `opened` are the tags that its prompt has opened already."""

    budget: int | None
    """Tokens between the tags; None sets no limit."""
    tags: tuple[ThinkingTags, ...]
    opened: ThinkingTags | None = None


@define(eq=False)
class Thinking:
    """How far one answer's thinking is. Thinking is only what an answer begins with."""

    limit: ThinkingLimit
    spent: int = 0
    """Tokens behind the opening tag."""
    tokens: int = 0
    """All tokens of the thought, its tags among them."""
    _before: int = 0
    _tags: ThinkingTags | None = field(init=False)
    _over: bool = False
    _text: bytes = b""
    """The beginning of the answer, later the end of the thought, in which a tag may be."""

    def __attrs_post_init__(self) -> None:
        self._tags = self.limit.opened

    @property
    def due(self) -> bool:
        """Whether the thinking must end now."""
        budget = self.limit.budget
        return budget is not None and self._tags is not None and not self._over and self.spent >= budget

    def close(self) -> tuple[int, ...]:
        """The tokens that end it; they count as told by this call."""
        if self._tags is None:
            return ()
        self._over = True
        self.tokens += len(self._tags.closing_tokens)
        return self._tags.closing_tokens

    def saw(self, piece: bytes) -> None:
        """A token was chosen whose text is `piece`."""
        if self._over:
            return
        self._text += piece
        if self._tags is None:
            self._look_for_opening()
            return
        self.spent += 1
        self.tokens += 1
        if self._tags.closing in self._text:
            self._over = True
        self._text = self._text[-len(self._tags.closing) :]

    def _look_for_opening(self) -> None:
        seen = self._text.lstrip()
        self._before += 1
        self._tags = next((tags for tags in self.limit.tags if seen.startswith(tags.opening)), None)
        if self._tags is not None:
            self._text = seen[len(self._tags.opening) :]
            self.tokens = self._before
        elif not any(tags.opening.startswith(seen) for tags in self.limit.tags):
            self._over = True
