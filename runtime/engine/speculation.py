"""Guessing the next tokens without a draft model: what followed the same tokens before. Pure.

The longest suffix of a sequence that occurred earlier, in it or in a recent answer, predicts its continuation; whether
the other places where its end occurred went on alike says how surely. Where nothing is left to chance, the same prompt
is expected to get the same answer. How many tokens to guess is a bet: each costs a row of the step and is
worth its chance to be right. The chances are learned by length of the suffix and by agreement, from every token that is
sampled, guessed at or not, so a bad start is outgrown.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left

from attrs import define, field

from .cost import CostModel
from .recall import LONGEST_SUFFIX, SAME_PROMPT, Guess, Index, Memory, Place
from .sequence import Sequence

MAX_DRAFT = 31
ROW_HOPE = 0.7
"""Share of a step that a guessed row is hoped to cost, until it was measured: dearer ones hardly ever pay."""
_BOUNDS = (3, 4, 6, 9, 16, 32, LONGEST_SUFFIX, SAME_PROMPT)
_PRIOR = (
    (0.3, 0.5, 0.6, 0.7),
    (0.3, 0.6, 0.7, 0.85),
    (0.45, 0.7, 0.85, 0.93),
    (0.45, 0.75, 0.85, 0.95),
    (0.45, 0.8, 0.87, 0.95),
    (0.7, 0.8, 0.95, 0.97),
    (0.7, 0.85, 0.95, 0.97),
    (0.97, 0.97, 0.97, 0.97),
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
have won. So no answer gets much slower by them, however unlucky they are,
if steps cost what is believed."""
_HOPELESS = 0.7
"""A rate so far below the best one ends the search: with more rows a row gets cheaper, but not by that much."""
_OWN_MEMORY = 16.0
_OWN_WEIGHT = 5.0
_SUREST = 0.998
"""Nothing is surer than this: an answer may end, or turn, at any token."""


def _bucket(length: int, at: int) -> int:
    """Of a guess's token `at`, which agrees in so many tokens more if those before it do."""
    return bisect_left(_BOUNDS, length if length == SAME_PROMPT else min(length + at, LONGEST_SUFFIX))


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
    _earlier: dict[Sequence, Place] = field(factory=dict)
    """The rest of an earlier answer to the same prompt, for as long as the sequence says the same."""
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
            self._chances[_bucket(guess.length, hits)][guess.agreement[hits]].observe(int(hit), 1)
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
        self._earlier.pop(sequence, None)
        if self._indexes.pop(sequence, None) is not None and remember:
            self.memory.add(sequence)

    def _guess(self, sequence: Sequence) -> Guess | None:
        index = self._indexes.get(sequence)
        if index is None:
            index = self._indexes[sequence] = Index()
            index.extend(sequence.tokens[: sequence.n_prompt])
            if (earlier := self.memory.answer_to(sequence)) is not None:
                self._earlier[sequence] = earlier
        said = sequence.tokens[len(index.tokens) :]
        index.extend(said)
        left = min(MAX_DRAFT, sequence.limit - len(sequence.tokens) - 1)
        if left <= 0:
            return None
        guess = self._again(sequence, said, left)
        return guess or Guess.of(index.tokens[-LONGEST_SUFFIX:], (index, self.memory.young, self.memory.old), left)

    def _again(self, sequence: Sequence, said: list[int], left: int) -> Guess | None:
        """What the earlier answer goes on with, if what was said now is the same."""
        place = self._earlier.pop(sequence, None)
        if place is None:
            return None
        tokens, begin = place
        end = begin + len(said)
        if tokens[begin:end] != said:
            return None
        self._earlier[sequence] = tokens, end
        return Guess.at((tokens, end), left)

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
        own = self._own.get(sequence)
        luck = 1.0 if own is None else own.mean(1.0, _OWN_WEIGHT)
        return min(self._general(guess, at) * luck, _SUREST)

    def _general(self, guess: Guess, at: int) -> float:
        """The chance of a guess's token `at`, in whatever answer."""
        bucket, agreement = _bucket(guess.length, at), guess.agreement[at]
        return self._chances[bucket][agreement].mean(_PRIOR[bucket][agreement], _PRIOR_WEIGHT)
