from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest
from localllm.errors import BadInput, Unsupported
from localllm.runtime.conversation.constraints import (
    call_grammar,
    constraint_for,
    constraint_from_request,
    triggered_grammar,
)
from localllm.runtime.conversation.messages import calls_as_text
from localllm.runtime.conversation.reply import ReplyFormat, ReplyParser
from localllm.runtime.conversation.templates import ChatTemplate
from localllm.runtime.conversation.tool_formats import FORMATS
from localllm.runtime.conversation.tools import read_tool_choice, read_tools
from localllm.runtime.conversation.turn import open_turn
from localllm.runtime.types import Constraint, GenerateRequest

FUNCTIONS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    "g": {"type": "object", "properties": {"b": {"type": "string"}}},
}
TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": p, "strict": n == "f"}} for n, p in FUNCTIONS.items()
]
TWO = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {"b":"x\\"y"}}\n</tool_call>',
    "llama3": '{"name": "f", "parameters": {"a":1}}; {"name": "g", "parameters": {"b":"x\\"y"}}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"a":1}}, {"name": "g", "arguments": {"b":"x\\"y"}}]',
    "mistral by name": '[TOOL_CALLS]f[ARGS]{"a":1}[TOOL_CALLS]g[ARGS]{"b":"x\\"y"}',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
    '{"a":1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n'
    '{"b":"x\\"y"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek 3.1": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a":1}<｜tool▁call▁end｜>'
    '<｜tool▁call▁begin｜>g<｜tool▁sep｜>{"b":"x\\"y"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "kimi": '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a":1}'
    "<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>"
    '{"b":"x\\"y"}<|tool_call_end|><|tool_calls_section_end|>',
    "function_xml": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n"
    '<tool_call>\n<function=g>\n<parameter=b>\nx"y\n</parameter>\n</function>\n</tool_call>',
    "json": '[{"name": "f", "arguments": {"a":1}}, {"name": "g", "arguments": {"b":"x\\"y"}}]',
}


def form_of(name: str) -> str:
    return name.split(" ")[0]


def parse(
    tool_format: str, text: str, *, size: int | None = None, parallel: bool = True
) -> tuple[dict[str, Any], list[Any]]:
    parser = ReplyParser(ReplyFormat(tool_format=tool_format, functions=FUNCTIONS, parallel=parallel))
    size = size or max(len(text), 1)
    deltas = [delta for at in range(0, len(text), size) for delta in parser.feed(text[at : at + size])]
    deltas += parser.finish()
    message = parser.message()

    assert parser.finish_reason == ("tool_calls" if message.get("tool_calls") else "stop")
    return message, [delta.as_openai() for delta in deltas]


# -- reading calls


@pytest.mark.parametrize("size", [None, 1, 3])
@pytest.mark.parametrize("name", TWO)
def test_two_calls_are_read_in_every_format(name: str, size: int | None) -> None:
    message, deltas = parse(form_of(name), TWO[name], size=size)
    calls = message["tool_calls"]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]

    assert message["content"] is None
    assert [call["function"]["name"] for call in calls] == ["f", "g"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"a": 1}, {"b": 'x"y'}]
    assert all(isinstance(piece["function"]["arguments"], str) for piece in pieces)
    for index, call in enumerate(calls):
        own = [piece for piece in pieces if piece["index"] == index]
        assert [piece.get("id") for piece in own] == [call["id"], *[None] * (len(own) - 1)]
        assert [piece["function"].get("name") for piece in own] == [call["function"]["name"], *[None] * (len(own) - 1)]
        assert [piece.get("type") for piece in own] == ["function", *[None] * (len(own) - 1)]
        assert "".join(piece["function"]["arguments"] for piece in own) == call["function"]["arguments"]
    assert calls[0]["id"] != calls[1]["id"]
    assert not any(delta.get("content") for delta in deltas)


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("name", TWO)
def test_without_parallel_calls_only_the_first_is_returned(name: str, size: int | None) -> None:
    message, _ = parse(form_of(name), TWO[name], size=size, parallel=False)

    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]


@pytest.mark.parametrize("name", [name for name in TWO if form_of(name) not in ("json", "llama3")])
def test_text_before_a_call_is_content(name: str) -> None:
    message, _ = parse(form_of(name), "Let me see.\n" + TWO[name], size=2)

    assert message["content"] == "Let me see."
    assert len(message["tool_calls"]) == 2


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize(
    "text",
    [
        "plain text  ",
        "<tool_call> is how calls begin",
        '{"name": "nobody", "arguments": {}}',
        '{"answer": 42}',
        "[1, 2]",
        "<function=nobody></function>",
        "[TOOL_CALLS] none",
        "<｜tool▁calls▁begin｜>",
        "<|tool_call_begin|>x",
        "<|python_tag|>1 + 1",
        '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
        "{",
        "",
    ],
)
def test_what_is_no_call_of_an_offered_function_stays_text(name: str, text: str) -> None:
    message, _ = parse(name, text, size=1)

    assert message == {"role": "assistant", "content": text}


def test_python_tag_calls_are_read() -> None:
    assert parse("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}')[0]["tool_calls"][0]["function"] == {
        "name": "f",
        "arguments": '{"a": 1}',
    }
    assert parse("llama3", '<|python_tag|>g.call(b="x")')[0]["tool_calls"][0]["function"] == {
        "name": "g",
        "arguments": '{"b": "x"}',
    }


def test_arguments_before_the_name_as_a_text_or_left_out_are_understood() -> None:
    def function(text: str) -> dict[str, Any]:
        found: dict[str, Any] = parse("hermes", f"<tool_call>{text}</tool_call>", size=1)[0]["tool_calls"][0][
            "function"
        ]
        return found

    assert function('{"arguments": {"a": 2}, "name": "f"}') == {"name": "f", "arguments": '{"a": 2}'}
    assert function('{"name": "f", "arguments": "{\\"a\\": 2}"}') == {"name": "f", "arguments": '{"a": 2}'}
    assert function('{"name": "f"}') == {"name": "f", "arguments": "{}"}


def test_a_call_that_the_limit_cuts_gives_what_came() -> None:
    message, _ = parse("hermes", '<tool_call>{"name": "f", "arguments": {"a": 12', size=1)

    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": 12'
    assert message["content"] is None


def test_arguments_are_streamed_before_they_end() -> None:
    parser = ReplyParser(ReplyFormat(tool_format="hermes", functions=FUNCTIONS))
    deltas = parser.feed('<tool_call>{"name": "g", "arguments": {"b": "long')

    assert [delta.as_openai()["tool_calls"][0]["function"]["arguments"] for delta in deltas] == ["", '{"b": "long']


def test_ids_have_the_length_that_mistral_s_templates_demand() -> None:
    message, _ = parse("mistral", TWO["mistral"])

    assert [len(call["id"]) for call in message["tool_calls"]] == [9, 9]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_calls_that_are_written_for_a_model_are_read_from_it(name: str) -> None:
    calls = [
        {"function": {"name": "f", "arguments": '{"a": 1}'}},
        {"function": {"name": "g", "arguments": '{"b": "</tool_call> ]}"}'}},
    ]
    text = str(calls_as_text(calls, FORMATS[name]))
    found = parse(name, text, size=5)[0]["tool_calls"]

    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found] == [
        ("f", {"a": 1}),
        ("g", {"b": "</tool_call> ]}"}),
    ]


# -- the choice among tools


def test_the_choice_is_read() -> None:
    assert read_tool_choice(TOOLS, None).mode == "auto"
    assert read_tool_choice(TOOLS, "none").mode == "none"
    assert read_tool_choice((), None).mode == "none"
    assert read_tool_choice(TOOLS, "required").mode == "required"
    named = read_tool_choice(TOOLS, {"type": "function", "function": {"name": "g"}})
    assert (named.mode, [function.name for function in named.functions]) == ("required", ["g"])


@pytest.mark.parametrize(
    "tools, choice",
    [
        (TOOLS, {"type": "function", "function": {"name": "nope"}}),
        (TOOLS, {"type": "function"}),
        (TOOLS, {"type": "retrieval"}),
        (TOOLS, "sometimes"),
        ([], "required"),
        ([], {"type": "function", "function": {"name": "f"}}),
        (TOOLS, 3),
    ],
)
def test_a_choice_that_makes_no_sense_is_a_400_on_tool_choice(tools: list[Any], choice: Any) -> None:
    with pytest.raises(BadInput) as caught:
        read_tool_choice(tools, choice)

    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    "tool, param",
    [
        ({"type": "retrieval"}, "tools[0].type"),
        ({"type": "function"}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": "no spaces"}}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": "f", "parameters": []}}, "tools[0].function.parameters"),
    ],
)
def test_a_tool_that_is_malformed_is_named(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_tools([tool])

    assert caught.value.param == param


def test_a_function_listed_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="twice"):
        read_tools([TOOLS[0], TOOLS[0]])


# -- constraints


def ask(**more: Any) -> GenerateRequest:
    return GenerateRequest(request_id="r", messages=({"role": "user", "content": "x"},), tools=tuple(TOOLS), **more)


def accepts(source: str, text: str) -> bool:
    """Whether a grammar takes the text whole and may end there."""
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(source), log_level=0)
    taken = matcher.try_consume_tokens(list(text.encode()))
    return bool(taken == len(text.encode()) and matcher.is_accepting())


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_required_calls_are_held_to_the_format_and_the_schema(name: str) -> None:
    source = call_grammar(name, read_tool_choice(TOOLS, "required"), parallel=True)
    right = str(calls_as_text([{"function": {"name": "f", "arguments": '{"a": 1}'}}], FORMATS[name]))
    both = [
        {"function": {"name": "f", "arguments": '{"a": 1}'}},
        {"function": {"name": "g", "arguments": '{"b": "x"}'}},
    ]
    wrong = str(calls_as_text([{"function": {"name": "f", "arguments": '{"a": true}'}}], FORMATS[name]))

    assert accepts(source, right)
    assert accepts(source, str(calls_as_text(both, FORMATS[name])))
    assert not accepts(source, wrong)
    assert not accepts(source, right.replace("f", "h", 1))
    assert not accepts(source, "It is noon.")


def kimi_calls(*numbers: int) -> str:
    """Calls of `f` as Kimi writes them, with these numbers."""
    calls = "".join(
        f'<|tool_call_begin|>functions.f:{number}<|tool_call_argument_begin|>{{"a": 1}}<|tool_call_end|>'
        for number in numbers
    )
    return f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"


def test_required_calls_of_kimi_are_numbered_from_nothing() -> None:
    source = call_grammar("kimi", read_tool_choice(TOOLS, "required"), parallel=True)
    one = call_grammar("kimi", read_tool_choice(TOOLS, "required"), parallel=False)

    assert [accepts(source, kimi_calls(*range(count))) for count in range(6)] == [False, *[True] * 4, False]
    assert not any(accepts(source, kimi_calls(*numbers)) for numbers in [(1,), (0, 0), (0, 2), (1, 0)])
    assert accepts(one, kimi_calls(0))
    assert not accepts(one, kimi_calls(0, 1))


def test_chosen_calls_of_kimi_may_count_on() -> None:
    trigger, source = triggered_grammar("kimi", read_tool_choice(TOOLS, "auto"), parallel=True)

    assert all(accepts(source, kimi_calls(*ns).removeprefix(trigger)) for ns in [(0,), (0, 1), (7, 8, 9, 10)])
    assert not accepts(source, kimi_calls(0).replace(":0", ":x").removeprefix(trigger))


def test_kimi_calls_are_written_with_their_numbers() -> None:
    calls = [{"function": {"name": "f", "arguments": '{"a": 1}'}}] * 3

    assert str(calls_as_text(calls, FORMATS["kimi"])) == kimi_calls(0, 1, 2)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_without_parallel_calls_the_grammar_takes_one(name: str) -> None:
    source = call_grammar(name, read_tool_choice(TOOLS, "required"), parallel=False)
    one = {"function": {"name": "f", "arguments": '{"a": 1}'}}

    assert accepts(source, str(calls_as_text([one], FORMATS[name])))
    assert not accepts(source, str(calls_as_text([one, one], FORMATS[name])))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_chosen_call_is_constrained_behind_its_opening(name: str) -> None:
    trigger, source = triggered_grammar(name, read_tool_choice(TOOLS, "auto"), parallel=True)
    strict = str(calls_as_text([{"function": {"name": "f", "arguments": '{"a": 1}'}}], FORMATS[name]))
    loose = str(calls_as_text([{"function": {"name": "g", "arguments": '{"zzz": 1}'}}], FORMATS[name]))
    wrong = str(calls_as_text([{"function": {"name": "f", "arguments": '{"zzz": 1}'}}], FORMATS[name]))

    assert strict.startswith(trigger)
    assert accepts(source, strict.removeprefix(trigger))
    assert name == "function_xml" or accepts(source, loose.removeprefix(trigger))
    assert not accepts(source, wrong.removeprefix(trigger))


def test_the_constraint_follows_the_choice() -> None:
    template = ChatTemplate.choose({}, override="qwen")
    named = {"type": "function", "function": {"name": "g"}}
    required = constraint_for(template, ask(tool_choice="required"))
    auto = constraint_for(template, ask())
    only_g = constraint_for(template, ask(tool_choice=named))

    assert constraint_for(template, ask(tool_choice="none")) is None
    assert required is not None
    assert (required.kind, required.trigger) == ("lark", None)
    assert auto is not None
    assert auto.trigger == "<tool_call>"
    assert only_g is not None
    assert '\\"g\\"' in only_g.source
    assert '\\"f\\"' not in only_g.source


def test_a_schema_keeps_its_references_inside_a_call() -> None:
    schema = {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/P"}},
        "required": ["p"],
        "$defs": {"P": {"type": "string", "enum": ["x"]}},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    source = call_grammar("hermes", read_tool_choice(tools, "required"), parallel=False)

    assert accepts(source, '<tool_call>\n{"name": "f", "arguments": {"p": "x"}}\n</tool_call>')
    assert not accepts(source, '<tool_call>\n{"name": "f", "arguments": {"p": "y"}}\n</tool_call>')


def test_a_structured_answer_and_chosen_tools_go_together() -> None:
    template = ChatTemplate.choose({}, override="qwen")
    both = constraint_for(template, ask(constraint=Constraint(kind="json_schema", source={"type": "integer"})))

    assert both is not None
    assert accepts(both.source, "17")
    assert accepts(both.source, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
    assert not accepts(both.source, "hello")
    with pytest.raises(Unsupported):
        constraint_for(template, ask(constraint=Constraint(kind="regex", source="a+")))


def test_after_a_prompt_that_opens_the_thinking_the_constraint_waits_for_its_end() -> None:
    source = "{{ messages[0].content }}<think>"
    template = ChatTemplate.choose({"tokenizer.chat_template": source})
    turn = open_turn(template, ask(tool_choice="required"))

    assert turn.rendered.reasoning_open == "<think>"
    assert turn.constraint is not None
    assert turn.constraint.trigger == "</think>"


def test_with_tool_choice_none_the_model_is_not_told_of_tools() -> None:
    template = ChatTemplate.choose({}, override="qwen")

    assert "<tools>" in open_turn(template, ask()).rendered.text
    turn = open_turn(template, ask(tool_choice="none"))
    assert "<tools>" not in turn.rendered.text
    assert turn.reply.tool_format is None
    assert turn.constraint is None


# -- structured answers

SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    "params, kind, source",
    [
        ({"response_format": {"type": "json_object"}}, "json_object", None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json_schema",
            SCHEMA,
        ),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA),
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA),
        ({"grammar": 'root ::= "a"'}, "gbnf", 'root ::= "a"'),
        ({"grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"regex": "a+"}, "regex", "a+"),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["yes", 'n"o']}, "lark", 'start: "yes" | "n\\"o"'),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"choice": ["a"]}}, "lark", 'start: "a"'),
        ({"structured_outputs": {"json_object": True}}, "json_object", None),
    ],
)
def test_every_way_to_ask_for_structure_becomes_a_constraint(params: dict[str, Any], kind: str, source: Any) -> None:
    constraint = constraint_from_request(params)

    assert constraint is not None
    assert (constraint.kind, constraint.source) == (kind, source)


@pytest.mark.parametrize("params", [{}, {"response_format": {"type": "text"}}, {"response_format": None}])
def test_text_is_not_constrained(params: dict[str, Any]) -> None:
    assert constraint_from_request(params) is None


@pytest.mark.parametrize(
    "params, param",
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"regex": 3}, "regex"),
        ({"regex": "a", "grammar": "b"}, "regex"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": []}, "structured_outputs"),
    ],
)
def test_what_is_not_understood_is_a_400_that_names_it(params: dict[str, Any], param: str) -> None:
    with pytest.raises(BadInput) as caught:
        constraint_from_request(params)

    assert caught.value.param == param
