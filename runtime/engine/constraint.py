"""Answers that must conform to a schema or a grammar, enforced token by token through llguidance."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
from attrs import define, field
from llguidance.gbnf_to_lark import gbnf_to_lark

from ...errors import BadInput, DecodeFailed
from ..json_form import json_form
from ..types import Constraint

if TYPE_CHECKING:
    from numpy.typing import NDArray

CACHED_GRAMMARS = 64
_NAMES_BELOW = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA_BELOW = ("enum", "const", "default", "examples")


@define(eq=False)
class Grammars:
    """Compiles constraints for one vocabulary; each is compiled once and handed out as a fresh copy. Any thread."""

    make_tokenizer: Callable[[], Any]
    n_vocab: int
    _tokenizer: Any = None
    _lock: threading.RLock = field(factory=threading.RLock)
    _compiled: OrderedDict[str, Any] = field(factory=OrderedDict)

    def compile(self, constraint: Constraint) -> Any:
        """The compiled matcher, to be copied before use. Raises BadInput with the place of the fault."""
        key = json.dumps([constraint.kind, constraint.source, constraint.whitespace], sort_keys=True)
        with self._lock:
            matcher = self._compiled.get(key)
        if matcher is None:  # made outside the lock: who opens another grammar does not wait for this one
            matcher = llguidance.LLMatcher(self._ensure_tokenizer(), _grammar(constraint), log_level=0)
            if matcher.is_error():
                raise self._refusal(constraint, matcher.get_error())
        with self._lock:
            self._compiled[key] = matcher
            self._compiled.move_to_end(key)
            while len(self._compiled) > CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
        return matcher

    def open(self, constraint: Constraint) -> Grammar:
        """A constraint for one answer. Raises BadInput."""
        trigger = constraint.trigger.encode() if constraint.trigger else b""
        return Grammar(self.compile(constraint), self._tokenizer, self.n_vocab, trigger, required=constraint.required)

    def _refusal(self, constraint: Constraint, message: str) -> BadInput:
        """What is wrong and where; of a grammar that holds schemas, the schema at fault is looked for."""
        for param, schema in constraint.schemas:
            part = Constraint(kind="json_schema", source=schema, param=param)
            matcher = llguidance.LLMatcher(self._ensure_tokenizer(), _grammar(part), log_level=0)
            if matcher.is_error():
                return _refusal(part, matcher.get_error())
        return _refusal(constraint, message)

    def _ensure_tokenizer(self) -> Any:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self.make_tokenizer()
            return self._tokenizer


@define(eq=False)
class Grammar:
    """Where one answer stands in its constraint. With a trigger it binds from the trigger's text to its own end."""

    _compiled: Any
    _tokenizer: Any
    _n_vocab: int
    _trigger: bytes = b""
    required: bool = False
    _begun: bool = False
    _matcher: Any = None
    _seen: bytes = b""
    """The end of the free text, in which the trigger is looked for."""
    _bits: NDArray[np.int32] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._bits = np.zeros((self._n_vocab + 31) // 32, np.int32)
        if not self._trigger:
            self._matcher = self._compiled.deep_copy()

    @property
    def binds(self) -> bool:
        """Whether it allows only some tokens now."""
        return self._matcher is not None

    @property
    def awaited(self) -> bool:
        """Whether the answer must not end yet, because the constraint's trigger has to come first."""
        return self.required and bool(self._trigger) and not self._begun

    @property
    def over(self) -> bool:
        """Whether the answer is complete and nothing may follow."""
        return self._matcher is not None and not self._is_passage and self._matcher.is_stopped()

    @property
    def _is_passage(self) -> bool:
        """Whether free text may follow: the constraint is about a part of the answer that may not even come."""
        return bool(self._trigger) and not self.required

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Forbid what cannot come next."""
        if self._matcher is None:
            return
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=self._n_vocab)
        logits[: self._n_vocab][allowed == 0] = -np.inf
        logits[self._n_vocab :] = -np.inf

    def accept(self, token: int, piece: bytes) -> None:
        """A token was chosen, whose text is `piece`."""
        if self._matcher is None:
            self._look_for_trigger(piece)
            return
        self._matcher.consume_token(token)
        self._check()
        if self._is_passage and self._matcher.is_stopped():
            self._matcher = None

    def forced(self) -> list[int]:
        """Tokens that must come next whatever the model thinks; they count as accepted by this call."""
        if self._matcher is None or self._matcher.is_stopped():
            return []
        tokens: list[int] = self._matcher.compute_ff_tokens()
        if tokens:
            self._matcher.consume_tokens(tokens)
            self._check()
            if self._is_passage and self._matcher.is_stopped():
                self._matcher = None
        return tokens

    def misses(self, piece: bytes) -> bool:
        """Whether a token would end the trigger and in the same breath say what the constraint forbids."""
        if self._matcher is not None:
            return False
        at = (self._seen + piece).find(self._trigger)
        return at >= 0 and self._begin((self._seen + piece)[at + len(self._trigger) :]) is None

    def _look_for_trigger(self, piece: bytes) -> None:
        text = self._seen + piece
        at = text.find(self._trigger)
        if at < 0:
            self._seen = text[-(len(self._trigger) - 1) :] if len(self._trigger) > 1 else b""
            return
        self._seen = b""
        matcher = self._begin(text[at + len(self._trigger) :])
        if matcher is not None:
            self._matcher, self._begun = matcher, True

    def _begin(self, rest: bytes) -> Any:
        """The matcher behind the trigger, once it has read what its last token said beyond it; None where it can't."""
        matcher = self._compiled.deep_copy()
        if rest and not matcher.consume_tokens(self._tokenizer.tokenize_bytes(rest)):
            return None
        return matcher

    def _check(self) -> None:
        if self._matcher.is_error():
            raise DecodeFailed(f"the grammar could not go on: {self._matcher.get_error().splitlines()[0]}")


def _grammar(constraint: Constraint) -> str:
    source, matcher, form = constraint.source, llguidance.LLMatcher, json_form(loose=constraint.whitespace)
    match constraint.kind:
        case "json_object":
            return str(matcher.grammar_from_json_schema({"type": "object"}, overrides=form))
        case "json_schema":
            if not isinstance(source, dict | bool):
                raise BadInput("the schema is not an object", param="response_format.json_schema.schema")
            schema = source if isinstance(source, dict) else {} if source else {"not": {}}
            return str(matcher.grammar_from_json_schema(schema, overrides=form))
        case "regex":
            return str(matcher.grammar_from_regex(str(source)))
        case "lark":
            return str(matcher.grammar_from_lark(str(source)))
        case "gbnf":
            try:
                return str(matcher.grammar_from_lark(gbnf_to_lark(str(source))))
            except Exception as error:  # the converter raises whatever its parser stumbles over
                raise BadInput(f"the grammar cannot be read: {error}", param="grammar") from error


def _refusal(constraint: Constraint, message: str) -> BadInput:
    first = message.strip().splitlines()[0] if message.strip() else "it is not valid"
    if constraint.kind not in ("json_object", "json_schema"):
        return BadInput(
            f"the {constraint.kind} grammar cannot be used: {first}",
            param=constraint.param or "grammar",
            detail=message[:500],
        )
    path = next(_places(constraint.source, first, "$"), "$")
    param = constraint.param or "response_format.json_schema.schema"
    return BadInput(f"the schema cannot be enforced at `{path}`: {first}", param=param + path[1:], path=path)


def _places(schema: Any, message: str, path: str) -> Iterator[str]:
    """Paths of the keywords or values that the message names, in the order of the schema."""
    if isinstance(schema, list):
        for i, item in enumerate(schema):
            yield from _places(item, message, f"{path}[{i}]")
    if not isinstance(schema, dict):
        return
    named = message.partition(":")[2] if message.startswith("Unimplemented keys") else ""
    for keyword, value in schema.items():
        here = f"{path}.{keyword}"
        if f'"{keyword}"' in named or (not named and isinstance(value, str) and len(value) > 1 and value in message):
            yield here
        elif keyword in _NAMES_BELOW and isinstance(value, dict):
            for name, below in value.items():
                yield from _places(below, message, f"{here}.{name}")
        elif keyword not in _DATA_BELOW:
            yield from _places(value, message, here)
