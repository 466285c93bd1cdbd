from __future__ import annotations

import pytest
from localllm.runtime.conversation.reply import ReplyFormat, ReplyParser, reply_format
from localllm.runtime.conversation.templates import ChatTemplate
from localllm.runtime.types import GenerateRequest

THINK = (("<think>", "</think>"),)


def parts(pieces: list[str], *, opened: str | None = None, split: bool = True) -> tuple[str | None, str | None]:
    """(reasoning, content), the same streamed and not."""
    form = ReplyFormat(reasoning=THINK if split else (), reasoning_open=opened if split else None)
    parser = ReplyParser(form)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    message = parser.message()

    assert "".join(delta.content or "" for delta in deltas) == (message["content"] or "")
    assert "".join(delta.reasoning or "" for delta in deltas) == message.get("reasoning_content", "")
    return message.get("reasoning_content"), message["content"]


CASES = {
    "tags in pieces": (["<thi", "nk>r</th", "ink>ans"], None),
    "the prompt opened the tag": (["r", "</think>ans"], "<think>"),
    "both tags in one piece": (["<think>r</think>ans"], None),
    "blank space around": (["\n<think>\n", "r \n", "</think>\n", "\nans"], None),
}


@pytest.mark.parametrize("name", CASES)
def test_thinking_is_apart_from_the_answer(name: str) -> None:
    pieces, opened = CASES[name]

    assert parts(pieces, opened=opened) == ("r", "ans")


@pytest.mark.parametrize("name", CASES)
def test_with_separation_off_the_text_is_the_model_s_byte_for_byte(name: str) -> None:
    pieces, opened = CASES[name]

    assert parts(pieces, opened=opened, split=False) == (None, "".join(pieces))


def test_a_tag_later_in_the_answer_is_text() -> None:
    assert parts(["<think>r</think>write </think> here"]) == ("r", "write </think> here")
    assert parts(["<think>r</think>", "a <think>b</think>"]) == ("r", "a <think>b</think>")


def test_thinking_that_the_limit_cuts_leaves_no_answer() -> None:
    assert parts(["<think>r", "easons"]) == ("reasons", None)
    assert parts(["<think>reasons</thi"]) == ("reasons</thi", None)


def test_a_model_that_does_not_think_is_left_alone() -> None:
    assert parts(["use `<think>`"]) == (None, "use `<think>`")
    assert parts(["  <thin ice>  "]) == (None, "  <thin ice>  ")
    assert parts(["<thi"]) == (None, "<thi")


def test_an_empty_thought_is_none() -> None:
    assert parts(["<think>\n\n</think>\n\nans"]) == (None, "ans")


def test_tokens_count_as_thinking_until_the_tag_closes() -> None:
    parser = ReplyParser(ReplyFormat(reasoning=THINK, reasoning_open="<think>"))
    seen = []
    for piece in ["a", "b</think>", "c"]:
        seen.append(parser.thinking)
        parser.feed(piece)

    assert seen == [True, True, False]


def request(**options: object) -> GenerateRequest:
    return GenerateRequest(request_id="r", messages=({"role": "user", "content": "x"},), template_options=dict(options))


def test_tags_come_from_the_template() -> None:
    source = "{{ messages[0].content }}{% if false %}[THINK][/THINK]{% endif %}"
    template = ChatTemplate.choose({"tokenizer.chat_template": source})

    assert reply_format(template, request()).reasoning == (("[THINK]", "[/THINK]"),)


@pytest.mark.parametrize("options", [{"separate_reasoning": False}, {"reasoning_format": "none"}])
def test_separation_can_be_turned_off_by_a_request(options: dict[str, object]) -> None:
    template = ChatTemplate.choose({}, override="qwen3")

    assert reply_format(template, request()).reasoning
    assert reply_format(template, request(**options)).reasoning == ()


def test_a_format_travels_as_plain_data() -> None:
    form = ReplyFormat(
        reasoning=THINK,
        reasoning_open="<think>",
        tool_format="hermes",
        functions={"f": {"type": "object"}},
    )
    travelled = {name: list(value) if isinstance(value, tuple) else value for name, value in form.as_dict().items()}

    assert ReplyFormat.from_dict(travelled) == form
