"""Guessing the next tokens without a draft model: what followed the same tokens before. Pure.

The longest suffix of a sequence that occurred earlier, in it or in a recent answer, predicts its continuation; whether
the other places where its end occurred went on alike says how surely. How many tokens to guess is a bet: each costs a
row of the step and is worth its chance to be right. The chances are learned by length of the suffix and by agreement,
from every token that is sampled, guessed at or not, so a bad start is outgrown.
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
ROW_HOPE = 0.7
"""Share of a step that a guessed row is hoped to cost, until it was measured: dearer ones hardly ever pay."""
PLACES = 8
"""Occurrences of a run of SUFFIX tokens that an index remembers."""
_BOUNDS = (3, 4, 6, 9, 16, 32, LONGEST_SUFFIX)
_PRIOR = (
    (0.3, 0.5, 0.6, 0.7),
    (0.3, 0.6, 0.7, 0.85),
    (0.45, 0.7, 0.85, 0.93),
    (0.45, 0.75, 0.85, 0.95),
    (0.45, 0.8, 0.87, 0.95),
    (0.7, 0.8, 0.95, 0.97),
    (0.7, 0.85, 0.95, 0.97),
)
"""Chances before anything is learned, by length of the suffix, where earlier places disagree and where 1 to 3 agree."""
_PRIOR_WEIGHT = 6.0
_MARGIN = 1.12
"""How much faster a bet must promise to be: chances and step times are estimates, and a lost bet is a slower answer."""
_MEMORY = 60.0
"""Trials after which a chance has half forgotten what was before."""
_TRUSTED = 16
"""A suffix as long as this is no accident: bets on it are not rationed, unless it went on differently before."""
_STAKE_STEPS = 0.5
_STAKE_SHARE = 0.01
_MOST_WON_STEPS = 8.0
_LARGEST_BET_STEPS = 1.5
"""What an answer may expect to lose by a bet on a shorter one, in steps of one row: half a step, a hundredth of the
steps it has taken, and what its bets have won, up to a bound. And what it may lose by one at worst, beside what they
have won. So no answer gets much slower, however unlucky its guesses are."""
_HOPELESS = 0.7
"""A rate so far below the best one ends the search: with more rows a row gets cheaper, but not by that much."""
_OWN_MEMORY = 16.0
_OWN_WEIGHT = 5.0
_SUREST = 0.99
"""Nothing is surer than this: an answer may end, or turn, at any token."""


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

    def observe(self, hits: int, trials: float) -> None:
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
                if len(places) > PLACES:
                    del places[0]
            mine.append(token)

    def find(self, suffix: list[int]) -> list[tuple[int, int]]:
        """Where the end of `suffix` occurred: how many tokens agree there, and the place after them; latest first."""
        found = []
        tokens, size = self.tokens, len(suffix)
        for place in reversed(self._after.get(tuple(suffix[-SUFFIX:]), ())):
            length, most = SUFFIX, min(size, place, LONGEST_SUFFIX)
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

    def add(self, tokens: list[int]) -> None:
        """Remember a finished sequence."""
        if len(self.young.tokens) + len(tokens) > self.capacity:
            self.old, self.young = self.young, Index()
        self.young.extend(tokens[-self.capacity :])


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
    _places: list[tuple[list[int], int]] = field(factory=list)
    """Tokens, and where those after the suffix begin; the first one that does not end is followed."""

    @classmethod
    def of(cls, suffix: list[int], sources: Iterable[Index], most: int) -> Guess | None:
        """The continuation of the longest end of `suffix` that any source has; None where there is none."""
        found = [(length, place, source.tokens) for source in sources for length, place in source.find(suffix)]
        if not found or most <= 0:
            return None
        found.sort(key=lambda each: -each[0])  # stable: of equal ones the latest
        guess = cls(found[0][0], most, places=[(tokens, place) for _, place, tokens in found])
        return guess if guess.reaches(1) else None

    def reaches(self, count: int) -> bool:
        """Whether it has so many tokens."""
        while len(self.tokens) < min(count, self.most):
            at = len(self.tokens)
            going_on = [each for each in self._places if each[1] + at < len(each[0])]
            if not going_on:
                break
            token = going_on[0][0][going_on[0][1] + at]
            self._places = [each for each in going_on if each[0][each[1] + at] == token]
            alike = len(self._places)
            self.tokens.append(token)
            self.agreement.append(min(alike, 3) if alike == len(going_on) else 0)
        return len(self.tokens) >= count


@define
class Speculator:
    """Proposes drafts for a step's sequences, and learns from what was sampled."""

    cost: CostModel
    """Of steps whose rows all bring logits."""
    memory: Memory = field(factory=Memory)
    drafted: int = 0
    accepted: int = 0
    _chances: list[list[Chance]] = field(factory=lambda: [[Chance(_MEMORY) for _ in row] for row in _PRIOR])
    """By length of the suffix and by agreement."""
    _own: dict[Sequence, Chance] = field(factory=dict)
    """An answer's own hits, over those that were expected of its guesses."""
    _indexes: dict[Sequence, Index] = field(factory=dict)
    _guesses: dict[Sequence, Guess] = field(factory=dict)
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
            own.observe(int(hit), self._general(guess, hits))
            self._chances[_bucket(guess.length + hits)][guess.agreement[hits]].observe(int(hit), 1)
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

    def _guess(self, sequence: Sequence) -> Guess | None:
        index = self._indexes.setdefault(sequence, Index())
        index.extend(sequence.tokens[len(index.tokens) :])
        left = min(MAX_DRAFT, sequence.limit - len(sequence.tokens) - 1)
        return Guess.of(index.tokens[-LONGEST_SUFFIX:], (index, self.memory.young, self.memory.old), left)

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
            if count < limits[sequence] and guess.reaches(count + 1):
                heapq.heappush(worth, (value * self._chance(sequence, guess, count), i, count + 1, sequence))
        return {sequence: count for sequence, count in best.items() if count}

    def _most_at_stake(self, sequence: Sequence, guess: Guess) -> int:
        """How many tokens of a guess the sequence can afford to lose."""
        if guess.length >= _TRUSTED and guess.agreement[0]:
            return guess.most
        step = self.cost.seconds(1)
        won = self._won.get(sequence, 0.0)
        purse = (_STAKE_STEPS + _STAKE_SHARE * sequence.n_answer) * step + won
        largest = _LARGEST_BET_STEPS * step + max(won, 0.0)
        risk = 1 - self._chance(sequence, guess, 0)
        count = 0
        while count < guess.most:
            loss = self.cost.seconds(2 + count) - step
            if loss * risk > purse or loss > largest:
                break
            count += 1
        return count

    def _chance(self, sequence: Sequence, guess: Guess, at: int) -> float:
        general = self._general(guess, at)
        own = self._own.get(sequence)
        return general if own is None else min(general * own.mean(1.0, _OWN_WEIGHT), _SUREST)

    def _general(self, guess: Guess, at: int) -> float:
        """The chance of a guess's token `at`, in whatever answer."""
        bucket, agreement = _bucket(guess.length + at), guess.agreement[at]
        return self._chances[bucket][agreement].mean(_PRIOR[bucket][agreement], _PRIOR_WEIGHT)
