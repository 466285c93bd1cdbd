"""Guessing the next tokens without a draft model: what followed the same tokens before. Pure.

The longest suffix of a sequence that occurred earlier, in it or in a recent answer, predicts its continuation. How many
tokens to guess is a bet: each costs a row of the step and is worth its chance to be right. The chances are learned by
length of the suffix, from every token that is sampled, guessed at or not, so a bad start is outgrown.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from attrs import define, field

from .cost import CostModel
from .sequence import Sequence

SUFFIX = 3
"""Fewest tokens that must agree."""
MAX_DRAFT = 31
LONGEST_SUFFIX = 64
_PRIOR = (0.25, 0.35, 0.45, 0.6, 0.8, 0.9, 0.95)
_BOUNDS = (3, 4, 6, 9, 16, 32, LONGEST_SUFFIX)
_PRIOR_WEIGHT = 6.0
_MARGIN = 1.12
"""How much faster a bet must promise to be: chances and step times are estimates, and a lost bet is a slower answer."""
_MEMORY = 60.0
"""Trials after which a chance has half forgotten what was before."""
_TRUSTED = 16
"""A suffix as long as this is no accident: bets on it are not rationed."""
_STAKE_STEPS = 0.5
_STAKE_SHARE = 0.01
_MOST_WON_STEPS = 8.0
"""What an answer may lose by bets on shorter ones, in steps of one row: half a step, a hundredth of the steps it has
taken, and what its bets have won, up to a bound. So no answer gets much slower, however unlucky its guesses are."""
_HOPELESS = 0.7
"""A rate so far below the best one ends the search: with more rows a row gets cheaper, but not by that much."""
_OWN_MEMORY = 16.0
_OWN_WEIGHT = 5.0


def _bucket(length: int) -> int:
    for i, bound in enumerate(_BOUNDS):
        if length <= bound:
            return i
    return len(_BOUNDS) - 1


@define
class Chance:
    """A probability with a limited memory of its trials."""

    memory: float
    hits: float = 0.0
    trials: float = 0.0

    def observe(self, hits: int, trials: int) -> None:
        """So many of the last trials were hits."""
        keep = 0.5 ** (trials / self.memory)
        self.hits = self.hits * keep + hits
        self.trials = self.trials * keep + trials

    def mean(self, prior: float, weight: float) -> float:
        """The expected chance, where `weight` trials spoke for `prior` before."""
        return (self.hits + prior * weight) / (self.trials + weight)


@define
class Index:
    """Tokens, and where each run of SUFFIX tokens was followed by something."""

    tokens: list[int] = field(factory=list)
    _after: dict[tuple[int, ...], list[int]] = field(factory=dict)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        mine, after = self.tokens, self._after
        for token in tokens:
            if len(mine) >= SUFFIX:
                places = after.setdefault(tuple(mine[-SUFFIX:]), [])
                places.append(len(mine))
                if len(places) > 4:
                    del places[0]
            mine.append(token)

    def find(self, suffix: list[int]) -> tuple[int, int]:
        """Where the longest end of `suffix` occurred (the place after it) and how long it is; (0, 0) where nowhere."""
        best, where = 0, 0
        tokens, size = self.tokens, len(suffix)
        for place in reversed(self._after.get(tuple(suffix[-SUFFIX:]), ())):
            length, most = SUFFIX, min(size, place, LONGEST_SUFFIX)
            while length < most and tokens[place - length - 1] == suffix[size - length - 1]:
                length += 1
            if length > best:
                best, where = length, place
        return where, best


@define
class Memory:
    """Recent answers with their prompts, two generations of bounded size."""

    capacity: int = 16384
    young: Index = field(factory=Index)
    old: Index = field(factory=Index)

    def add(self, tokens: list[int]) -> None:
        """Remember a finished sequence."""
        if len(self.young.tokens) + len(tokens) > self.capacity:
            self.old, self.young = self.young, Index()
        self.young.extend(tokens[-self.capacity :])


@define(eq=False)
class _Guess:
    """What one sequence is expected to go on with, and what speaks for it."""

    tokens: list[int]
    length: int
    """Of the suffix that agreed."""


@define
class Speculator:
    """Proposes drafts for a step's sequences, and learns from what was sampled."""

    cost: CostModel
    memory: Memory = field(factory=Memory)
    drafted: int = 0
    accepted: int = 0
    _chances: list[Chance] = field(factory=lambda: [Chance(_MEMORY) for _ in _BOUNDS])
    _own: dict[Sequence, Chance] = field(factory=dict)
    _indexes: dict[Sequence, Index] = field(factory=dict)
    _guesses: dict[Sequence, _Guess] = field(factory=dict)
    _won: dict[Sequence, float] = field(factory=dict)
    """Seconds that an answer's bets have saved it, less than 0 where they cost it."""

    def propose(self, sequences: list[Sequence], most: int) -> None:
        """Set the `draft` of each sequence, at most `most` tokens altogether; each has one token left to compute."""
        self._guesses.clear()
        for sequence in sequences:
            sequence.draft = []
            if not sequence.repeatable and (guess := self._guess(sequence)) is not None:
                self._guesses[sequence] = guess
        for sequence, count in self._bet(sequences, most).items():
            sequence.draft = self._guesses[sequence].tokens[:count]

    def learn(self, sequence: Sequence, kept: list[int]) -> None:
        """Tokens were sampled after the draft, or after no draft but a guess that was not tried."""
        guess = self._guesses.pop(sequence, None)
        if guess is None or not kept:
            return
        tried = max(len(sequence.draft), 1)
        own = self._own.setdefault(sequence, Chance(_OWN_MEMORY))
        hits = 0
        for guessed, token in zip(guess.tokens[:tried], kept, strict=False):
            hit = guessed == token
            self._chances[_bucket(guess.length + hits)].observe(int(hit), 1)
            own.observe(int(hit), 1)
            if not hit:
                break
            hits += 1
        if sequence.draft:
            self.drafted += len(sequence.draft)
            self.accepted += hits
            step = self.cost.seconds(1)
            won = self._won.get(sequence, 0.0) + (hits + 1) * step - self.cost.seconds(1 + len(sequence.draft))
            self._won[sequence] = min(won, _MOST_WON_STEPS * step)

    def forget(self, sequence: Sequence, *, remember: bool) -> None:
        """A sequence ended; `remember` lets later answers be guessed from it."""
        self._own.pop(sequence, None)
        self._won.pop(sequence, None)
        self._guesses.pop(sequence, None)
        if self._indexes.pop(sequence, None) is not None and remember:
            self.memory.add(sequence.tokens)

    def _guess(self, sequence: Sequence) -> _Guess | None:
        index = self._indexes.setdefault(sequence, Index())
        index.extend(sequence.tokens[len(index.tokens) :])
        suffix = index.tokens[-LONGEST_SUFFIX:]
        found: tuple[int, int, Index] | None = None
        for source in (index, self.memory.young, self.memory.old):
            where, length = source.find(suffix)
            if length and (found is None or length > found[1]):
                found = (where, length, source)
        left = min(MAX_DRAFT, sequence.limit - len(sequence.tokens) - 1)
        if found is None or left <= 0:
            return None
        where, length, source = found
        return _Guess(source.tokens[where : where + left], length)

    def _bet(self, sequences: list[Sequence], most: int) -> dict[Sequence, int]:
        """How many tokens of each guess to try: rows are added by falling worth while tokens a second rise."""
        if not self._guesses or self.cost.empty:
            return {}
        rows = len(sequences)
        worth: list[tuple[float, int, int, Sequence]] = []
        limits = {sequence: self._most_at_stake(sequence, guess) for sequence, guess in self._guesses.items()}
        for i, (sequence, guess) in enumerate(self._guesses.items()):
            if not limits[sequence]:
                continue
            worth.append((-self._chance(sequence, guess, 0), i, 1, sequence))
        heapq.heapify(worth)
        expected, taken = float(rows), dict.fromkeys(self._guesses, 0)
        best, best_rate = dict(taken), _MARGIN * expected / (self.cost.seconds(rows) or 1.0)
        for extra in range(1, most + 1):
            if not worth:
                break
            value, i, count, sequence = heapq.heappop(worth)
            expected -= value
            taken[sequence] = count
            rate = expected / self.cost.seconds(rows + extra)
            if rate > best_rate:
                best, best_rate = dict(taken), rate
            elif rate < best_rate * _HOPELESS:
                break
            guess = self._guesses[sequence]
            if count < min(len(guess.tokens), limits[sequence]):
                heapq.heappush(worth, (value * self._chance(sequence, guess, count), i, count + 1, sequence))
        return {sequence: count for sequence, count in best.items() if count}

    def _most_at_stake(self, sequence: Sequence, guess: _Guess) -> int:
        """How many tokens of a guess the sequence can afford to lose."""
        if guess.length >= _TRUSTED:
            return len(guess.tokens)
        step = self.cost.seconds(1)
        purse = (_STAKE_STEPS + _STAKE_SHARE * sequence.n_answer) * step + self._won.get(sequence, 0.0)
        count = 0
        while count < len(guess.tokens) and self.cost.seconds(2 + count) - step <= purse:
            count += 1
        return count

    def _chance(self, sequence: Sequence, guess: _Guess, at: int) -> float:
        bucket = _bucket(guess.length + at)
        general = self._chances[bucket].mean(_PRIOR[bucket], _PRIOR_WEIGHT)
        own = self._own.get(sequence)
        return general if own is None else own.mean(general, _OWN_WEIGHT)
