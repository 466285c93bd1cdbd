"""Schemas and grammars: how JSON is written beside tools and without, what is refused, what is compiled once."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import llguidance
import pytest
from attrs import define
from fixtures.asking import chat, echo
from localllm.errors import BadInput
from localllm.runtime.conversation.constraints import constraint_for
from localllm.runtime.conversation.templates import ChatTemplate
from localllm.runtime.engine.constraint import CACHED_GRAMMARS, Grammars
from localllm.runtime.types import Constraint, GenerateRequest

N_BYTES = 257
LENIENT = {"x-guidance": {"lenient": True}, "uniqueItems": True}
SAID = '{"a": {"b": [1, 2]}, "c": "d"}'
TIGHT = '{"a":{"b":[1,2]},"c":"d"}'
BLANKS = "\n" * 20
OBJECT = Constraint(kind="json_object", source=None)
ANY = Constraint(kind="json_schema", source=True)


def beside_tools(constraint: Constraint | None, *, choice: str = "auto", schema: Any = None) -> Constraint:
    """What the request's constraint becomes where the model may call a function as well, or must."""
    function = {"name": "f", "parameters": schema or {"type": "object"}}
    request = GenerateRequest(
        request_id="r",
        messages=({"role": "user", "content": "x"},),
        tools=({"type": "function", "function": function},),
        tool_choice=choice,
        constraint=constraint,
    )
    made = constraint_for(ChatTemplate.choose({}, override="qwen"), request)
    assert made is not None
    return made


def loose(constraint: Constraint) -> Constraint:
    return Constraint(kind=constraint.kind, source=constraint.source, whitespace=True)


@pytest.mark.parametrize("said", [SAID, SAID.replace(" ", "\n")])
@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("constraint", [OBJECT, ANY], ids=["object", "any"])
def test_json_has_its_usual_separators_whatever_the_model_would_write(
    constraint: Constraint, tools: bool, said: str
) -> None:
    used = beside_tools(constraint) if tools else constraint
    told = echo(tokens="bytes", prefer="\n").ask(chat(said), constraint=used, max_tokens=400)

    assert (told.text, told.reason) == (SAID, "stop")


@pytest.mark.parametrize("tools", [False, True])
def test_a_schema_that_leaves_no_choice_brings_the_usual_separators(tools: bool) -> None:
    fixed = Constraint(kind="json_schema", source={"const": json.loads(SAID)})
    told = echo(tokens="bytes").ask(chat(TIGHT), constraint=beside_tools(fixed) if tools else fixed, max_tokens=400)

    assert (told.text, told.reason) == (SAID, "stop")


@pytest.mark.parametrize("said", [SAID, TIGHT, SAID.replace(" ", "\n"), SAID.replace(":", " : ")])
@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("constraint", [OBJECT, ANY], ids=["object", "any"])
def test_json_whose_blanks_are_free_is_written_as_the_model_would(
    constraint: Constraint, tools: bool, said: str
) -> None:
    used = beside_tools(loose(constraint)) if tools else loose(constraint)
    told = echo(tokens="bytes").ask(chat(said), constraint=used, max_tokens=400)

    assert (told.text, told.reason) == (said, "stop")


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("constraint", [OBJECT, ANY], ids=["object", "any"])
def test_free_blanks_come_to_an_end(constraint: Constraint, tools: bool) -> None:
    used = beside_tools(loose(constraint)) if tools else loose(constraint)
    told = echo(tokens="bytes", prefer="\n").ask(chat('{"a":1}'), constraint=used, max_tokens=400)

    assert told.text.strip() == BLANKS.join(["{", '"a"', ":", "1", "}"])
    assert told.reason == "stop"


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(kind="json_schema", source=LENIENT),
        Constraint(kind="json_schema", source={"properties": {"a": LENIENT}}),
        Constraint(kind="json_schema", source=LENIENT, whitespace=True),
        beside_tools(Constraint(kind="json_schema", source=LENIENT)),
        beside_tools(None, choice="required", schema=LENIENT),
    ],
    ids=["schema", "below", "loose", "beside tools", "arguments"],
)
def test_a_schema_cannot_ask_that_its_keywords_be_dropped(constraint: Constraint) -> None:
    error = echo(tokens="bytes").ask(chat("x"), constraint=constraint).error

    assert isinstance(error, BadInput)
    assert error.param is not None
    assert error.param.endswith("uniqueItems")


@define
class Counting:
    """Makes tokenizers, slowly, and counts them."""

    made: int = 0

    def __call__(self) -> Any:
        self.made += 1
        time.sleep(0.05)
        return llguidance.LLTokenizer("byte")


def word(number: int) -> Constraint:
    return Constraint(kind="regex", source=f"word {number}")


def test_a_grammar_is_compiled_once_and_each_answer_has_its_own_place_in_it() -> None:
    counting = Counting()
    grammars = Grammars(counting, N_BYTES)
    first, second = grammars.open(word(1)), grammars.open(word(1))
    first.accept(ord("w"), b"w")

    assert grammars.compile(word(1)) is grammars.compile(word(1))
    assert grammars.compile(word(1)) is not grammars.compile(word(2))
    assert bytes(first.forced()) == b"ord 1"
    assert bytes(second.forced()) == b"word 1"
    assert counting.made == 1


@pytest.mark.parametrize(
    "other",
    [
        Constraint(kind="json_schema", source={"type": "object"}, whitespace=True),
        Constraint(kind="json_schema", source={"type": "array"}),
        Constraint(kind="regex", source="x"),
    ],
    ids=["blanks", "source", "kind"],
)
def test_constraints_that_differ_have_grammars_of_their_own(other: Constraint) -> None:
    grammars = Grammars(Counting(), N_BYTES)
    one = Constraint(kind="json_schema", source={"type": "object"})

    assert grammars.compile(one) is not grammars.compile(other)


def test_of_many_grammars_those_used_last_are_kept() -> None:
    grammars = Grammars(Counting(), N_BYTES)
    first, second = grammars.compile(word(0)), grammars.compile(word(1))
    for number in range(2, CACHED_GRAMMARS):
        grammars.compile(word(number))
    used_again = grammars.compile(word(0))
    grammars.compile(word(CACHED_GRAMMARS))

    assert used_again is first
    assert len(grammars._compiled) == CACHED_GRAMMARS == 64
    assert grammars.compile(word(0)) is first
    assert grammars.compile(word(1)) is not second


def test_requests_that_come_at_once_make_one_tokenizer() -> None:
    counting = Counting()
    grammars = Grammars(counting, N_BYTES)
    threads = [threading.Thread(target=grammars.compile, args=(word(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counting.made == 1
    assert len(grammars._compiled) == 8
