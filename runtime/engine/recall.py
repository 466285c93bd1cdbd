"""What was said before, and how it went on: where guesses come from. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from attrs import define, field

from .sequence import Sequence

SUFFIX = 3
"""Fewest tokens that must agree."""
LONGEST_SUFFIX = 64
SAME_PROMPT = LONGEST_SUFFIX + 1
"""Stands for the length of the suffix where all of the sequence was said before, from its first token on."""
PLACES = 8
"""Occurrences of a run of SUFFIX tokens that an index remembers."""
_END = -1
"""Stands where an earlier answer is over: what comes after it is another prompt."""
Place = tuple[list[int], int]
"""Tokens, and where in them something begins."""


@define
class Index:
    """Tokens, and where each run of SUFFIX tokens was followed by something."""

    tokens: list[int] = field(factory=list)
    answers: dict[Hashable, int] = field(factory=dict)
    """Where an answer begins, by its manner and prompt."""
    _after: dict[tuple[int, ...], list[int]] = field(factory=dict)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        mine, after = self.tokens, self._after
        for token in tokens:
            if len(mine) >= SUFFIX:
                places = after.setdefault(tuple(mine[-SUFFIX:]), [])
                places.append(len(mine))
                if len(places) > PLACES:
                    del places[0]
            mine.append(token)

    def find(self, suffix: list[int]) -> list[tuple[int, int]]:
        """Where the end of `suffix` occurred: how many tokens agree there, and the place after them; latest first."""
        found = []
        tokens, size = self.tokens, len(suffix)
        for place in reversed(self._after.get(tuple(suffix[-SUFFIX:]), ())):
            length, most = SUFFIX, min(size, place, LONGEST_SUFFIX)
            if tokens[place - most : place] == suffix[size - most :]:  # at once, as in text that goes round in circles
                length = most
            while length < most and tokens[place - length - 1] == suffix[size - length - 1]:
                length += 1
            found.append((length, place))
        return found


@define
class Memory:
    """Recent answers with their prompts, two generations of bounded size."""

    capacity: int = 16384
    young: Index = field(factory=Index)
    old: Index = field(factory=Index)

    def add(self, sequence: Sequence) -> None:
        """Remember a finished sequence."""
        tokens, n_prompt = sequence.tokens, sequence.n_prompt
        if len(self.young.tokens) + len(tokens) > self.capacity:
            self.old, self.young = self.young, Index()
        if sequence.manner is not None and len(tokens) <= self.capacity and not self._says_more(sequence):
            self.young.answers[_asked(sequence)] = len(self.young.tokens) + n_prompt
        self.young.extend([*tokens[-self.capacity :], _END])

    def answer_to(self, sequence: Sequence) -> Place | None:
        """Where the answer to exactly this prompt begins, which was not left to chance either."""
        if sequence.manner is not None:
            key = _asked(sequence)
            for index in (self.young, self.old):
                if key in index.answers:
                    return index.tokens, index.answers[key]
        return None

    def _says_more(self, sequence: Sequence) -> bool:
        """Whether the answer that is known begins with this one, which was cut shorter."""
        begin = self.young.answers.get(_asked(sequence))
        if begin is None:
            return False
        return self.young.tokens[begin : begin + sequence.n_answer] == sequence.tokens[sequence.n_prompt :]


def _asked(sequence: Sequence) -> Hashable:
    return sequence.manner, tuple(sequence.tokens[: sequence.n_prompt])


@define(eq=False)
class Guess:
    """What one sequence is expected to go on with; it grows as far as a bet looks."""

    length: int
    """Of the suffix that agreed in the first of the places."""
    most: int
    """Tokens that may be guessed."""
    tokens: list[int] = field(factory=list)
    agreement: list[int] = field(factory=list)
    """Of each token: how many places go on with it, to 3; 0 where one that went on alike until here does not."""
    _places: list[Place] = field(factory=list)
    """Those after the suffix; the first one that does not end is followed."""

    @classmethod
    def at(cls, place: Place, most: int) -> Guess | None:
        """What an earlier answer to the same prompt goes on with; None where it ends."""
        guess = cls(SAME_PROMPT, most, places=[place])
        return guess if guess.reaches(1) else None

    @classmethod
    def of(cls, suffix: list[int], sources: Iterable[Index], most: int) -> Guess | None:
        """The continuation of the longest end of `suffix` that any source has; None where there is none."""
        found = [(length, place, source.tokens) for source in sources for length, place in source.find(suffix)]
        if not found:
            return None
        found.sort(key=lambda each: -each[0])  # stable: of equal ones the latest
        guess = cls(found[0][0], most, places=[(tokens, place) for _, place, tokens in found])
        return guess if guess.reaches(1) else None

    def reaches(self, count: int) -> bool:
        """Whether it has so many tokens."""
        while len(self.tokens) < min(count, self.most):
            at = len(self.tokens)
            going_on = [each for each in self._places if each[1] + at < len(each[0]) and each[0][each[1] + at] != _END]
            if not going_on:
                break
            token = going_on[0][0][going_on[0][1] + at]
            self._places = [each for each in going_on if each[0][each[1] + at] == token]
            alike = len(self._places)
            self.tokens.append(token)
            self.agreement.append(min(alike, 3) if alike == len(going_on) else 0)
        return len(self.tokens) >= count
