"""Why an answer differs from the one that was recorded, or may: the strict lane, numerics, weights, template, sampling.

Pure: two outcomes and what each depended on come in, a verdict goes out. What an outcome depended on is its *lock*:
`model, sha256, template_hash, tokenizer_hash, build, machine, parameters, strict, sampling`, the last with the seed
that was really used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from ..compare import Difference, differences

Reason = Literal["outcome", "weights", "tokenizer", "template", "secret", "sampling", "numerics"]
Verdict = Literal["same", "may differ", "differs"]

ANSWERS = frozenset({"chat", "complete"})
"""Commands whose results are answers of a model; of others only the ending is compared."""
TOLERATED: frozenset[Reason] = frozenset({"secret", "sampling", "numerics"})
"""What nobody promised to be equal: a difference is told and fails nothing."""
SAMPLING = (
    "temperature",
    "dynatemp_range",
    "dynatemp_exponent",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
    "repeat_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "logit_bias",
    "samplers",
)
"""Fields of a plan that decide how tokens are drawn."""
SHOWN = 3
AROUND = 20
"""Characters shown of two texts from where they part."""
_WORDS: dict[Reason, str] = {
    "outcome": "it ended otherwise",
    "weights": "other weights",
    "tokenizer": "another tokenizer",
    "template": "another chat template",
    "secret": "a secret was taken out of the recording",
    "sampling": "other sampling",
    "numerics": "numerics: without the strict lane on the same build, machine and load parameters, rounding differs",
}


@frozen(kw_only=True)
class Comparison:
    """What comparing came to. `reasons` is what may make answers differ, `unknown` what could not be compared."""

    equal: bool
    reasons: tuple[Reason, ...] = ()
    unknown: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()

    @property
    def promised(self) -> bool:
        """Whether nothing could make the answers differ."""
        return not self.reasons and not self.unknown

    @property
    def verdict(self) -> Verdict:
        """`same` is equal and sure to be so again."""
        if not self.equal:
            return "differs"
        return "same" if self.promised else "may differ"

    @property
    def failed(self) -> bool:
        """Whether it differs and nothing that is tolerated explains it."""
        explained = self.reasons and TOLERATED.issuperset(self.reasons)
        return not self.equal and not explained

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.verdict == "same":
            return "same: nothing it depends on has changed"
        causes = [_WORDS[reason] for reason in self.reasons]
        if self.unknown:
            causes.append(f"not known: {', '.join(self.unknown)}")
        why = "; ".join(causes) or "although nothing it depends on has changed"
        if self.verdict == "may differ":
            return f"equal this time, and may differ: {why}"
        where = "".join(f"; {_shown(difference)}" for difference in self.differences[:1])
        return f"differs: {why}{where}"

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON."""
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "unknown": list(self.unknown),
            "message": self.sentence,
            "differences": [difference.as_dict() for difference in self.differences[:SHOWN]],
        }


def compare_outcomes(
    command: str, recorded: Mapping[str, Any], outcome: Mapping[str, Any], lock_now: Mapping[str, Any]
) -> Comparison:
    """Compare an outcome with the recorded one of the same plan; `lock_now` is what the new one depended on."""
    found = tuple(differences(_essence(command, recorded), _essence(command, outcome)))
    unanswered = recorded.get("result") is None and outcome.get("result") is None
    if command not in ANSWERS or unanswered:
        return Comparison(equal=not found, reasons=("outcome",) if found else (), differences=found)
    reasons, unknown = causes(recorded.get("lock") or {}, lock_now)
    if recorded.get("hidden") or recorded.get("merged"):
        reasons = ("secret", *reasons)  # the replay asks with `***` in its place, or an answer has it again
    if recorded.get("ok") != outcome.get("ok"):
        reasons = ("outcome", *reasons)
    return Comparison(equal=not found, reasons=reasons, unknown=unknown, differences=found)


def causes(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[tuple[Reason, ...], tuple[str, ...]]:
    """What may make two answers to one plan differ, most telling first, and what is not known of either."""
    reasons: list[Reason] = []
    unknown: list[str] = []
    exact = _is_exact(then, now)
    files: tuple[tuple[Reason, str], ...] = (
        ("weights", "sha256"),
        ("tokenizer", "tokenizer_hash"),
        ("template", "template_hash"),
    )
    for reason, name in files:
        if exact and name not in then and name not in now:
            continue  # the echo has no file
        if name not in then or name not in now:
            unknown.append(reason)
        elif then[name] != now[name]:
            reasons.append(reason)
    if _sampling_differs(then.get("sampling") or {}, now.get("sampling") or {}):
        reasons.append("sampling")
    if not exact:
        reasons.append("numerics")
    return tuple(reasons), tuple(unknown)


def sampling_of(plan: Mapping[str, Any], seed: Any) -> dict[str, Any]:
    """The sampling of a plan with every default filled in, and the seed that was really used."""
    return {name: plan[name] for name in SAMPLING if name in plan} | {"seed": seed}


def _is_exact(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether equal input gives equal numbers: on the echo, and in the strict lane of the same build and machine."""
    if then.get("build") is None or then.get("build") != now.get("build"):
        return False
    if str(then["build"]).endswith(" echo"):
        return True
    same = all(then.get(name) == now.get(name) for name in ("machine", "parameters"))
    return same and bool(then.get("strict") and now.get("strict"))


def _sampling_differs(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether tokens are drawn otherwise; a greedy answer draws none, so its seed says nothing."""
    greedy = then.get("temperature") == 0 and now.get("temperature") == 0
    ignored = {"seed"} if greedy else set()
    names = (set(then) | set(now)) - ignored
    return any(then.get(name) != now.get(name) for name in names)


def _essence(command: str, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """What two outcomes of a plan have in common if nothing went another way: no ids, no times."""
    error = outcome.get("error")
    ending = {"ok": outcome.get("ok"), "error": error.get("code") if isinstance(error, Mapping) else None}
    result = outcome.get("result")
    if command not in ANSWERS or not isinstance(result, Mapping):
        return ending
    usage = result.get("usage") or {}
    counts = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    # a prompt that was only shown has no choices
    shown = {name: result[name] for name in ("text", "tokens") if name in result}
    return {**ending, "choices": _without_ids(result.get("choices")), "usage": counts, **shown}


def _without_ids(value: Any) -> Any:
    """Choices without the ids of tool calls, which are new each time."""
    if isinstance(value, Mapping):
        return {key: _without_ids(item) for key, item in value.items() if key != "id"}
    if isinstance(value, (list, tuple)):
        return [_without_ids(item) for item in value]
    return value


def _shown(difference: Difference) -> str:
    before, after = difference.before, difference.after
    if isinstance(before, str) and isinstance(after, str):
        at = next(
            (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
        )
        return f"{difference.path} from character {at}: {before[at : at + AROUND]!r} is now {after[at : at + AROUND]!r}"
    values = difference.as_dict()
    return f"{difference.path}: {values.get('before', 'nothing')!r} is now {values.get('after', 'nothing')!r}"
