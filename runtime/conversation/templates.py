"""From a conversation to the prompt its model was trained on.

The order of choice: an explicit override, the GGUF's own template, the family its names show, the generic form. What
the template writes is special text, what the request brought is not: `Rendered.segments` keeps them apart, so that
nobody can write a control token into a conversation.

Who adds the BOS token: the caller's tokenizer, where the vocabulary wants one and `Rendered.has_bos` is False.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from attrs import define, evolve, field, frozen

from ...errors import BadInput
from .families import Family, catalogue, family_of_metadata, family_of_names, family_of_template, generic
from .limits import TemplateLimit, TemplateRaised
from .messages import (
    BOS,
    CALLS,
    CONTINUED,
    Conversation,
    Dialect,
    marked,
    notes_of,
    read_conversation,
    repairs_for,
    spoken_in,
)
from .provenance import OTHER, OWN, Traced, joined, plain, traced
from .reasoning import thinking_asked
from .sandbox import ChatEnvironment, Program
from .tool_formats import FORMATS

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


@frozen
class Segment:
    """A stretch of the prompt; `special` text may hold control tokens, other text holds none whatever it looks like."""

    text: str
    special: bool


@frozen(kw_only=True)
class Rendered:
    """A prompt; the segments join to its text."""

    segments: tuple[Segment, ...]
    stop: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Repairs that people should see."""
    has_bos: bool = False
    """The text begins with the BOS token; the tokenizer adds none."""
    reasoning_open: str | None = None
    """The tag that the prompt ends with: the answer begins inside what the model thinks."""
    continued: str = ""
    """The beginning of the answer that the request gave; the answer's text does not repeat it."""

    @property
    def text(self) -> str:
        """The whole prompt."""
        return "".join(segment.text for segment in self.segments)


@frozen(kw_only=True)
class _Attempt:
    """One try to render: the text, or the template's complaint, and what is missing from the text."""

    dialect: Dialect
    text: Traced = field(factory=lambda: Traced("", OWN))
    error: str | None = None
    missing: frozenset[int] = frozenset()
    clumsy: bool = False
    """The arguments of a call stand there in Python's notation."""

    @property
    def score(self) -> tuple[bool, int, bool]:
        """Smaller is better."""
        return (self.error is not None, len(self.missing), self.clumsy)

    @property
    def clean(self) -> bool:
        return not any(self.score)


@define
class ChatTemplate:
    """The chat template of one loaded model; compiled once, safe to render from any thread."""

    family: str
    """The family whose tool format, tags and stops apply."""
    source: str
    """`override`, `gguf`, `family` or `generic`: where the template came from."""
    stop: tuple[str, ...]
    """Text that ends a turn."""
    tool_format: str
    reasoning: tuple[tuple[str, str], ...]
    """Opening and closing tags of what the model thinks."""
    warnings: tuple[str, ...] = ()
    bos_token: str = ""
    eos_token: str = ""
    add_bos: bool | None = None
    """Whether the vocabulary wants a BOS token; a template's own is left out where it is known not to."""
    text: str = field(default="", repr=False)
    """The template's Jinja text."""
    time_limit_s: float = 5.0
    _program: Program = field(init=False, repr=False)
    _tool_program: Program | None = field(default=None, repr=False)
    _known: dict[Any, Dialect] = field(factory=dict, init=False, repr=False)
    _now: Callable[[], datetime] = field(default=datetime.now, repr=False)

    def __attrs_post_init__(self) -> None:
        self._program = Program(self.text, ChatEnvironment(self._now))

    @classmethod
    def choose(
        cls,
        metadata: Mapping[str, Any],
        names: Sequence[str] = (),
        override: str | None = None,
        bos_token: str = "",
        eos_token: str = "",
        *,
        add_bos: bool | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> ChatTemplate:
        """The template of a model.

        `override` is a template's text or a family's name. `names` are the names the model was asked for by, best
        first. A template in the GGUF that does not work is left aside with a warning; an override that does not work
        raises BadInput.
        """
        facts = _Facts(metadata, bos_token, eos_token, _wants_bos(metadata) if add_bos is None else add_bos, now)
        if override:
            return _overriding(cls, override, facts)
        warnings: tuple[str, ...] = ()
        own = metadata.get("tokenizer.chat_template")
        family = family_of_names(names) or family_of_metadata(metadata, eos_token)
        if isinstance(own, str) and own.strip():
            found = _working(cls, own, family, "gguf", facts)
            if isinstance(found, ChatTemplate):
                return found
            fallback = family or family_of_template(own) or generic()
            warnings = (f"the file's chat template is not used, the form of `{fallback.name}` is: {found}",)
            family = fallback
        return _of_family(cls, family or generic(), facts, warnings)

    @property
    def answer_marks(self) -> tuple[str, ...]:
        """Control tokens that answers are taken apart by, so that a backend must give them as text."""
        form = FORMATS[self.tool_format]
        return (*form.opens, *form.after, *form.inside, *(tag for pair in self.reasoning for tag in pair))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """The prompt for a conversation.

        A last message of the assistant is the beginning of the answer and is continued, unless
        `add_generation_prompt` is False. `options` go to the template by name (`enable_thinking`, `reasoning_effort`,
        `documents`, `chat_template_kwargs`). Raises BadInput with the template's own words.
        """
        talk = read_conversation(messages, tools, continues=add_generation_prompt, developer="developer" in self.text)
        variables = self._variables(options or {}, add_generation_prompt)
        best = self._best(talk, variables)
        if best.error is not None:
            raise BadInput(f"the chat template refuses the conversation: {best.error}", param="messages")
        return self._rendered(best, talk)

    def _variables(self, options: Mapping[str, Any], add_generation_prompt: bool) -> dict[str, Any]:
        extra = options.get("chat_template_kwargs")
        given = {**options, **(extra if isinstance(extra, Mapping) else {})}
        clash = sorted((_RESERVED - {"documents"}) & given.keys())
        if clash:
            raise BadInput(f"`{clash[0]}` is not an option of the chat template", param="chat_template_kwargs")
        thinking = thinking_asked(given)
        if thinking is not None:
            given.setdefault("enable_thinking", thinking)
            given.setdefault("thinking", thinking)
        variables = {name: marked(value, OTHER) for name, value in given.items() if value is not None}
        variables.setdefault("documents", None)
        variables.setdefault("chat_template_kwargs", {})
        return {
            **variables,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": Traced(self.bos_token, BOS),
            "eos_token": self.eos_token,
        }

    def _best(self, talk: Conversation, variables: dict[str, Any]) -> _Attempt:
        """The attempt with the fewest losses; a dialect that served a like conversation is tried first."""
        changes = repairs_for(talk)
        key = (tuple(tuple(change.items()) for change in changes), bool(talk.tools), talk.continues)
        best = self._attempt(self._known.get(key, Dialect()), talk, variables)
        if not best.clean and key in self._known:
            best = min(self._attempt(Dialect(), talk, variables), best, key=lambda attempt: attempt.score)
        if best.clean:
            return best
        refused = best
        for _ in changes:  # one repair may be of use only after another
            tries = [self._changed(best, change, talk, variables) for change in changes]
            better = min(tries, key=lambda attempt: attempt.score)
            if better.score >= best.score:
                break
            best = better
        if not best.clean:
            best = min(best, self._all_at_once(changes, talk, variables), key=lambda attempt: attempt.score)
        if best.error is not None:
            return refused
        self._known[key] = best.dialect
        return best

    def _all_at_once(self, changes: list[dict[str, Any]], talk: Conversation, variables: dict[str, Any]) -> _Attempt:
        """Every repair together, then without each that is not needed."""
        best = self._attempt(Dialect(), talk, variables)
        for typed in (False, True):
            together: dict[str, Any] = {}
            for change in changes:
                together |= change
            dialect = evolve(Dialect(), **{**together, "typed_content": typed})
            best = min(best, self._attempt(dialect, talk, variables), key=lambda attempt: attempt.score)
        for change in changes:
            undone = {name: getattr(Dialect(), name) for name in change}
            best = min(self._changed(best, undone, talk, variables), best, key=lambda attempt: attempt.score)
        return best

    def _changed(
        self, attempt: _Attempt, change: dict[str, Any], talk: Conversation, variables: dict[str, Any]
    ) -> _Attempt:
        return self._attempt(evolve(attempt.dialect, **change), talk, variables)

    def _attempt(self, dialect: Dialect, talk: Conversation, variables: dict[str, Any]) -> _Attempt:
        messages, tools = spoken_in(dialect, talk, FORMATS[self.tool_format])
        appended = talk.continues and dialect.continued == "appended"
        given = {**variables, "messages": messages, "tools": tools}
        if talk.continues and not appended:
            given["add_generation_prompt"] = False
        program = self._tool_program if tools and self._tool_program is not None else self._program
        try:
            if not messages:
                raise TemplateRaised("there are no messages")
            text, budget = program.run(given, self.time_limit_s)
        except TemplateLimit as exc:
            raise BadInput(str(exc), param="messages") from None
        except MemoryError:
            raise BadInput("the chat template uses too much memory", param="messages") from None
        except Exception as exc:  # whatever a template may raise is its complaint
            return _Attempt(dialect=dialect, error=_words(exc), missing=talk.expected)
        if dialect.typed_content and budget.printed:
            return _Attempt(dialect=dialect, error="it prints parts in Python's notation", missing=talk.expected)
        text = _continued(text, talk, appended=appended)
        return _Attempt(
            dialect=dialect, text=text, missing=talk.expected - set(text.marks), clumsy=CALLS in budget.printed
        )

    def _rendered(self, attempt: _Attempt, talk: Conversation) -> Rendered:
        text = attempt.text
        bos = self.bos_token
        if self.add_bos is False and bos and text.marks.startswith(bytes((BOS,)) * len(bos)):
            text = text.cut(len(bos), len(text))
        # the template's own text may begin with the token too: SmolLM2's BOS is `<|im_start|>`
        has_bos = bool(bos) and text.startswith(bos) and set(text.marks[: len(bos)]) <= {OWN, BOS}
        notes = notes_of(attempt.dialect, talk)
        if attempt.missing:
            notes += ("the template leaves out a part of the conversation",)
        ends = plain(text).rstrip()
        tag = next((tag for tag, _ in self.reasoning if ends.endswith(tag) and text.marks[len(ends) - 1] == OWN), None)
        return Rendered(
            segments=_segments(text),
            stop=self.stop,
            notes=notes,
            has_bos=has_bos,
            reasoning_open=tag,
            continued=plain(talk.messages[-1]["content"]) if talk.continues else "",
        )


@frozen
class _Facts:
    metadata: Mapping[str, Any]
    bos_token: str
    eos_token: str
    add_bos: bool | None
    now: Callable[[], datetime]


def _wants_bos(metadata: Mapping[str, Any]) -> bool | None:
    flag = metadata.get("tokenizer.ggml.add_bos_token")
    return flag if isinstance(flag, bool) else None


def _overriding(cls: type[ChatTemplate], override: str, facts: _Facts) -> ChatTemplate:
    named = catalogue().named(override.strip().lower())
    if named is not None:
        return _of_family(cls, named, facts, (), source="override")
    if "{" not in override:
        known = ", ".join(family.name for family in catalogue().families)
        raise BadInput(
            f"`{override}` is neither a template nor a family", hint=f"families are {known}", param="chat_template"
        )
    found = _working(cls, override, None, "override", facts)
    if isinstance(found, str):
        raise BadInput(f"the chat template does not work: {found}", param="chat_template")
    return found


def _of_family(
    cls: type[ChatTemplate], family: Family, facts: _Facts, warnings: tuple[str, ...], source: str = "family"
) -> ChatTemplate:
    return cls(
        family=family.name,
        source="generic" if family.name == "generic" and source == "family" else source,
        stop=family.stop,
        tool_format=family.tool_format,
        reasoning=family.reasoning,
        warnings=warnings,
        bos_token=facts.bos_token or family.bos_token,
        eos_token=facts.eos_token or family.eos_token,
        add_bos=facts.add_bos,
        text=family.source,
        now=facts.now,
    )


def _working(
    cls: type[ChatTemplate], text: str, family: Family | None, source: str, facts: _Facts
) -> ChatTemplate | str:
    """The template, if it compiles and writes a greeting into its prompt; else what is wrong with it."""
    shown = family_of_template(text) or family
    known = catalogue()
    variant = facts.metadata.get("tokenizer.chat_template.tool_use")
    try:
        template = cls(
            family=shown.name if shown else "generic",
            source=source,
            stop=tuple(mark for mark in known.end_marks if mark in text),
            tool_format=next((form for mark, form in known.tool_markers if mark in text), "hermes"),
            reasoning=tuple((o, c) for o, c in known.reasoning if o in text or c in text) or known.reasoning[:1],
            bos_token=facts.bos_token,
            eos_token=facts.eos_token,
            add_bos=facts.add_bos,
            text=text,
            tool_program=Program(variant, ChatEnvironment(facts.now)) if isinstance(variant, str) and variant else None,
            now=facts.now,
        )
        probe = template.render([{"role": "user", "content": "localllm"}])
    except BadInput as exc:
        return exc.message
    except Exception as exc:  # jinja2 and the Python compiler raise many kinds for a template that does not parse
        return _words(exc)
    if not any("localllm" in segment.text and not segment.special for segment in probe.segments):
        return "it does not write the user's text into the prompt"
    return template


def _words(exc: Exception) -> str:
    """The template's own words, on one line and bounded."""
    if isinstance(exc, RecursionError):
        return "it calls itself without end"
    kind = "" if isinstance(exc, (TemplateRaised, jinja2.TemplateError)) else f"{type(exc).__name__}: "
    line = f", line {exc.lineno}" if isinstance(exc, jinja2.TemplateSyntaxError) else ""
    words = str(exc).replace("'Traced'", "'str'")
    return (kind + re.sub(r"\s+", " ", words))[:500] + line


def _continued(text: Traced, talk: Conversation, *, appended: bool) -> Traced:
    if not talk.continues:
        return text
    if appended:
        return traced(joined("", [text, talk.messages[-1]["content"]]))
    return text.cut(0, text.marks.rfind(CONTINUED) + 1)


_WRITERS = bytes(0 if mark in (OWN, BOS) else 1 for mark in range(256))
_RUNS = re.compile(b"\0+|\1+")


def _segments(text: Traced) -> tuple[Segment, ...]:
    whole = plain(text)
    runs = _RUNS.finditer(text.marks.translate(_WRITERS))
    return tuple(Segment(whole[run.start() : run.end()], run[0][0] == 0) for run in runs)
