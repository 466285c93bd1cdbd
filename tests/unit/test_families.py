from __future__ import annotations

import pytest
from localllm.runtime.conversation.families import catalogue, family_of_names, family_of_template, generic
from localllm.runtime.conversation.templates import ChatTemplate
from localllm.runtime.conversation.tool_formats import FORMATS

FAMILIES = [family.name for family in catalogue().families]
TURNS = [
    {"role": "system", "content": "SYSTEM"},
    {"role": "user", "content": "FIRST"},
    {"role": "assistant", "content": "SECOND"},
    {"role": "user", "content": "THIRD"},
]


def test_every_family_has_its_data_in_order() -> None:
    assert len(set(FAMILIES)) == len(FAMILIES)
    for family in catalogue().families:
        assert family.tool_format in FORMATS
        assert family.source
        assert family.stop


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_can_be_asked_for_by_its_name(name: str) -> None:
    template = ChatTemplate.choose({}, override=name)

    assert (template.family, template.source) == (name, "override")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_keeps_every_turn_once_and_in_order_without_repair(name: str) -> None:
    rendered = ChatTemplate.choose({}, override=name).render(TURNS)
    places = [rendered.text.find(turn["content"]) for turn in TURNS]

    assert places == sorted(places)
    assert -1 not in places
    assert [rendered.text.count(turn["content"]) for turn in TURNS] == [1, 1, 1, 1]
    assert rendered.notes == ()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_continues_an_answer(name: str) -> None:
    rendered = ChatTemplate.choose({}, override=name).render([*TURNS, {"role": "assistant", "content": "BEGUN"}])

    assert rendered.text.endswith("BEGUN")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_s_own_template_is_known_by_its_marks(name: str) -> None:
    source = next(family.source for family in catalogue().families if family.name == name)
    found = family_of_template(source)

    # Qwen's form is ChatML's with tools; Phi's file makes its marks out of the role
    assert found is None or found.name == name or {found.name, name} <= {"qwen", "qwen3", "chatml"}
    assert (found is None) == (name in ("generic", "phi"))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_beginning_token_is_written_at_most_once_for_a_first_question(name: str) -> None:
    template = ChatTemplate.choose({}, override=name)
    rendered = template.render(TURNS[:2])

    assert not template.bos_token or rendered.text.count(template.bos_token) == 1
    assert rendered.has_bos == bool(template.bos_token)


def test_the_first_name_that_shows_a_family_counts() -> None:
    found = family_of_names(["fast", "my-gemma", "qwen"])

    assert found is not None
    assert found.name == "gemma"
    assert family_of_names(["fast", "model"]) is None
    assert generic().name == "generic"


@pytest.mark.parametrize(
    "eos, family", [("<|im_end|>", "chatml"), ("<end_of_turn>", "gemma"), ("<|eot_id|>", "llama3"), ("</s>", "generic")]
)
def test_an_end_token_shows_a_family_where_nothing_else_does(eos: str, family: str) -> None:
    assert ChatTemplate.choose({"general.architecture": "llama"}, ["model"], eos_token=eos).family == family
