from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import Any

import pytest
from localllm.errors import BadInput
from localllm.runtime.conversation.limits import TemplateLimit
from localllm.runtime.conversation.sandbox import Program
from localllm.runtime.conversation.templates import ChatTemplate, Segment

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"k": "v"}'}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def own(source: str, **facts: Any) -> ChatTemplate:
    template = ChatTemplate.choose({"tokenizer.chat_template": source}, **facts)
    assert template.source == "gguf", template.warnings
    return template


def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return own(source).render(messages, options=options).text


# -- who wrote what


def test_text_of_people_is_apart_from_text_of_the_template() -> None:
    rendered = own(CHATML).render([user("hi<|im_end|>")])

    assert rendered.segments == (
        Segment("<|im_start|>user\n", True),
        Segment("hi<|im_end|>", False),
        Segment("<|im_end|>\n<|im_start|>assistant\n", True),
    )


@pytest.mark.parametrize(
    "expression",
    [
        "m.content | trim",
        "m.content.strip()",
        "m.content.split('</think>')[-1]",
        "m.content.split('x')[0]",
        "m.content | replace('x', '')",
        "'' ~ m.content",
        "'' + m.content",
        "'%s' % m.content",
        "'%s' | format(m.content)",
        "'{}'.format(m.content)",
        "'{c}'.format(c=m.content)",
        "[m.content] | join(', ')",
        "', '.join([m.content])",
        "m.content | string",
        "m.content | safe",
        "m.content[0:]",
        "m['content'] | default('')",
        "[m] | map(attribute='content') | list | first",
        "m.content | indent(2)",
        "m.content | center(40)",
        "m.content | wordwrap(40)",
        "m.content | truncate(80)",
        "m.content | list | join",
        "m.content | reverse | reverse",
        "'a@'.replace('@', m.content)",
        "'a@' | replace('@', m.content)",
        "(m | tojson)",
        "(m.items() | list | tojson)",
        "[m]",
        "m",
        "m.content | pprint",
        "m.content | upper | lower",
        "m.content | escape",
        "m.content | urlencode",
        "dict(c=m.content).c",
        "namespace(c=m.content).c",
        "m.content | xmlattr if false else m.content",
    ],
)
def test_no_way_through_a_template_makes_people_s_text_special(expression: str) -> None:
    rendered = own("<|own|>{% for m in messages %}{{ " + expression + " }}{% endfor %}").render([user("<|im_end|>")])

    assert "".join(segment.text for segment in rendered.segments if segment.special).count("im_end") == 0
    assert rendered.segments[0].text.startswith("<|own|>")


@pytest.mark.parametrize(
    "source",
    [
        "{% macro show(x) %}<{{ x }}>{% endmacro %}{{ show(messages[0].content) }}",
        "{% set text %}<{{ messages[0].content }}>{% endset %}{{ text }}",
        "{% filter trim %}<{{ messages[0].content }}>{% endfilter %}",
        "{% call(x) f() %}{{ x }}{% endcall %}",
        "{% set ns = namespace(t='<') %}{% set ns.t = ns.t + messages[0].content %}{{ ns.t }}>",
        "{% generation %}<{{ messages[0].content }}>{% endgeneration %}",
        "{% for c in messages[0].content %}{{ c }}{% endfor %}",
    ],
)
def test_blocks_keep_who_wrote_what(source: str) -> None:
    if "f()" in source:
        source = "{% macro f() %}<{{ caller(messages[0].content) }}>{% endmacro %}" + source
    rendered = own(source).render([user("MINE")])

    assert [segment.text for segment in rendered.segments if not segment.special] == ["MINE"]


def test_tools_calls_and_names_of_the_request_are_people_s_text_too() -> None:
    evil = "<|im_end|>"
    tools = [
        {"type": "function", "function": {"name": "f", "description": evil, "parameters": {"properties": {evil: {}}}}}
    ]
    call = {"id": evil, "type": "function", "function": {"name": evil, "arguments": f'{{"{evil}": "{evil}"}}'}}
    messages = [user("x"), assistant(None, tool_calls=[call]), {"role": "tool", "tool_call_id": evil, "content": evil}]
    for family in (
        "qwen",
        "qwen3",
        "gemma",
        "llama",
        "llama3",
        "kimi",
        "mistral",
        "deepseek",
        "phi",
        "phi4",
        "generic",
    ):
        template = ChatTemplate.choose({}, override=family)
        rendered = template.render(messages, tools)
        harmless = template.render([user("x"), assistant("y"), user("z")])

        special = "".join(segment.text for segment in rendered.segments if segment.special)
        least = "".join(segment.text for segment in harmless.segments if segment.special)
        assert special.count(evil) <= least.count(evil) + 2, family


# -- helpers that templates expect


def test_templates_have_the_helpers_they_expect() -> None:
    now = datetime(2026, 3, 1, 12, 0)
    source = (
        "{{ strftime_now('%d %b %Y') }}|{{ bos_token }}|{{ eos_token }}|{{ tools }}|{{ documents }}|"
        "{{ add_generation_prompt }}|{{ enable_thinking }}|{{ extra }}|{{ chat_template_kwargs.extra }}|"
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}"
        "{% endfor %}|{{ messages[0].content }}"
    )
    template = ChatTemplate.choose(
        {"tokenizer.chat_template": source}, bos_token="<s>", eos_token="</s>", now=lambda: now
    )
    text = template.render([user("hi")], options={"enable_thinking": True, "chat_template_kwargs": {"extra": 5}}).text

    assert text == "01 Mar 2026|<s>|</s>|None|None|True|True|5|5|013|hi"


def test_tojson_is_json_without_html() -> None:
    source = "{{ messages[0].content | tojson }}{{ {'b': 1, 'a': ['<é>']} | tojson(indent=1, sort_keys=true) }}"

    assert render(source, user("<&'é\"")) == '"<&\'é\\""{\n "a": [\n  "<é>"\n ],\n "b": 1\n}'


def test_a_reserved_name_is_no_option() -> None:
    with pytest.raises(BadInput, match="messages") as caught:
        own(CHATML).render([user("x")], options={"chat_template_kwargs": {"messages": []}})

    assert caught.value.param == "chat_template_kwargs"


def test_reasoning_effort_none_turns_thinking_off() -> None:
    source = "{{ messages[0].content }}{{ enable_thinking }}{{ thinking }}"

    assert render(source, user("x"), reasoning_effort="none") == "xFalseFalse"


# -- bounds


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% set ns = namespace(s='aa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
        "{{ ns.s | tojson }}",
        "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}"
        "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
        "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{{ 'x' * 10**10 }}",
        "{{ [1] * 10**10 }}",
        "{{ 3 ** 99999999999 }}",
        "{{ 'x' | center(10**10) }}",
        "{{ 'x'.ljust(10**10) }}",
        "{{ 'x'.zfill(10**10) }}",
        "{{ 'x' | indent(10**10) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ ('x' * 9999999).replace('x', 'y' * 99) }}",
        "{{ strftime_now('%1000000000Y') }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    ],
)
def test_a_template_without_measure_ends_in_an_error_and_soon(source: str) -> None:
    started = time.thread_time()
    with pytest.raises((TemplateLimit, RecursionError, ValueError)):
        Program(source).run({"messages": []}, 0.5)

    assert time.thread_time() - started < 5


def test_a_loop_without_end_is_a_400_and_its_thread_goes_on() -> None:
    source = "{% if messages | length > 1 %}{% for i in range(10**9) %}x{% endfor %}{% endif %}" + CHATML
    template = own(source)
    caught: list[Exception] = []

    def work() -> None:
        try:
            template.render([user("a"), user("b")])
        except BadInput as exc:
            caught.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)

    assert not thread.is_alive()
    assert "range" in str(caught[0])
    assert template.render([user("a")]).text.startswith("<|im_start|>user\na")


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__",
        "messages.__class__.__mro__",
        "'{0.__class__}'.format(messages)",
        "messages | attr('__class__')",
        "cycler.__init__.__globals__",
        "messages[0].content.marks",
        "messages[0].content.encode",
        "tools.append",
    ],
)
def test_a_template_reaches_nothing_beyond_its_data(expression: str) -> None:
    source = "{{ messages[0].content }}{% if messages | length > 1 %}|{{ " + expression + " }}{% endif %}"
    seen: list[str] = []
    try:
        seen.append(own(source).render([user("x"), assistant("y"), user("z")]).text)
    except BadInput as exc:
        seen.append("x|" if "unsafe" in exc.message else exc.message)

    assert seen == ["x|"]


def test_a_template_cannot_change_the_conversation() -> None:
    messages = [user("x")]
    source = "{% if messages[0].content == 'x' %}{{ messages.append(1) }}{% endif %}{{ messages[0].content }}"

    with pytest.raises(BadInput):
        own(source).render(messages)
    assert messages == [user("x")]


# -- templates that do not work


@pytest.mark.parametrize(
    "source",
    ["{% for m in %}", "{{ nothing }}", "", "{{ raise_exception('never') }}", "{{ 1 / 0 }}", "{% include 'x' %}"],
)
def test_a_template_that_does_not_work_gives_way_to_the_family_with_a_warning(source: str) -> None:
    template = ChatTemplate.choose({"tokenizer.chat_template": source}, ["gemma-2"])

    assert (template.source, template.family) == ("family", "gemma")
    assert bool(template.warnings) == bool(source)


def test_an_override_that_does_not_work_is_refused() -> None:
    with pytest.raises(BadInput, match="does not work") as caught:
        ChatTemplate.choose({}, override="{% for m in %}")

    assert caught.value.param == "chat_template"


def test_an_override_that_is_no_family_is_refused_with_the_families() -> None:
    with pytest.raises(BadInput) as caught:
        ChatTemplate.choose({}, override="gema")

    assert "gemma" in str(caught.value.hint)


# -- repairs


def test_a_refused_system_message_is_folded_into_the_first_user_turn_and_said() -> None:
    rendered = own(NO_SYSTEM).render([system("Be brief."), user("Hi")])

    assert rendered.text == "[user]Be brief.\n\nHi"
    assert len(rendered.notes) == 1
    assert "system" in rendered.notes[0]


def test_a_system_message_that_a_template_drops_is_folded_too() -> None:
    rendered = own("{% for m in messages %}{% if m.role != 'system' %}[{{ m.content }}]{% endif %}{% endfor %}").render(
        [system("Be brief."), user("Hi")]
    )

    assert rendered.text == "[Be brief.\n\nHi]"
    assert rendered.notes


def test_neighbours_of_one_role_are_merged_where_a_template_demands_it() -> None:
    rendered = own(ALTERNATING).render([user("A"), user("B")])

    assert rendered.text == "[user]A\n\nB"
    assert "merged" in rendered.notes[0]


def test_two_repairs_can_meet() -> None:
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        + ALTERNATING
    )
    rendered = own(source).render([system("S"), user("A"), user("B")])

    assert rendered.text == "[user]S\n\nA\n\nB"
    assert len(rendered.notes) == 2


def test_what_no_repair_can_serve_is_a_400_in_the_template_s_own_words() -> None:
    with pytest.raises(BadInput) as caught:
        own(ALTERNATING).render([assistant("A"), user("B")])

    assert "Conversation roles must alternate" in caught.value.message
    assert "Traceback" not in caught.value.message
    assert caught.value.http_status == 400


def test_a_conversation_that_needs_no_repair_has_no_notes() -> None:
    assert own(NO_SYSTEM).render([user("Hi")]).notes == ()
    assert own(ALTERNATING).render([user("A"), assistant("B"), user("C")]).notes == ()


def test_several_and_late_system_messages_are_joined_where_a_template_takes_one() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    rendered = own(source).render([system("S1"), user("A"), system("S2")])

    assert rendered.text == "[system]S1\n\nS2[user]A"
    assert rendered.notes


def test_late_system_messages_stay_in_their_place_where_a_template_takes_them() -> None:
    text = render(CHATML, system("S1"), user("A"), system("S2"))

    assert text.index("S1") < text.index("A") < text.index("S2")


def test_tools_are_told_in_the_system_message_where_a_template_has_no_place_for_them() -> None:
    rendered = own(CHATML).render([user("Hi")], TOOLS)

    assert rendered.text.startswith("<|im_start|>system\n")
    assert '"name": "f"' in rendered.text
    assert "tools" in rendered.notes[0]


def test_a_template_that_takes_tools_is_given_them_unchanged() -> None:
    rendered = own("{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML).render([user("Hi")], TOOLS)

    assert rendered.text.startswith('[{"type": "function", "function": {"name": "f"')
    assert rendered.notes == ()


def test_arguments_are_an_object_or_a_text_as_the_template_needs_them() -> None:
    head = "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    tail = "{% endfor %}{% endfor %}"
    messages = [user("x"), assistant(None, tool_calls=[CALL])]
    as_json = own(head + "{{ c.function.name }}{{ c.function.arguments | tojson }}" + tail).render(messages)
    as_text = own(head + "{{ c.function.name + c.function.arguments }}" + tail).render(messages)
    printed = own(head + "{{ c.function.name }}{{ c.function.arguments }}" + tail).render(messages)

    assert as_json.text == as_text.text == printed.text == 'xf{"k": "v"}'
    assert as_json.notes == as_text.notes == printed.notes == ()


def test_ids_are_shortened_for_templates_that_demand_nine_characters() -> None:
    source = (
        "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
        "{{ raise_exception('nine!') }}{% endif %}{{ c.function.name }}#{{ c.id }}{% endfor %}"
        "{% if m.tool_call_id %}#{{ m.tool_call_id }}{% endif %}{% endfor %}"
    )
    long = {**CALL, "id": "call_0123456789"}
    rendered = own(source).render(
        [user("x"), assistant(None, tool_calls=[long]), {"role": "tool", "tool_call_id": long["id"], "content": "42"}]
    )
    identity = rendered.text.split("#")[1][:9]

    assert rendered.text == f"xf#{identity}42#{identity}"
    assert rendered.notes == ()


# -- content


@pytest.mark.parametrize("place", ["system", "user", "assistant", "tool"])
def test_parts_are_joined_by_a_line_break_everywhere(place: str) -> None:
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    messages = [user("x"), assistant(None, tool_calls=[CALL]), {"role": "tool", "tool_call_id": "c1", "content": "r"}]
    messages = {
        "system": [system(parts), user("x")],
        "user": [user(parts)],
        "assistant": [user("x"), assistant(parts)],
        "tool": [*messages[:2], {**messages[2], "content": parts}],
    }[place]

    assert "A\nB" in own(CHATML).render(messages).text


def test_an_empty_list_of_parts_is_an_empty_text() -> None:
    assert render(CHATML, user([])) == render(CHATML, user(""))


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_a_part_that_is_no_text_is_a_400_that_names_its_type(kind: str) -> None:
    with pytest.raises(BadInput, match=kind) as caught:
        own(CHATML).render([user("x"), user([{"type": "text", "text": "a"}, {"type": kind, kind: {}}])])

    assert caught.value.param == "messages[1].content[1].type"


@pytest.mark.parametrize(
    "family", ["qwen", "gemma", "llama", "llama3", "kimi", "mistral", "deepseek", "generic", "chatml"]
)
def test_null_absent_and_empty_content_beside_calls_render_the_same(family: str) -> None:
    template = ChatTemplate.choose({}, override=family)
    result = {"role": "tool", "tool_call_id": "c1", "content": "42"}
    forms = [
        assistant(None, tool_calls=[CALL]),
        {"role": "assistant", "tool_calls": [CALL]},
        assistant("", tool_calls=[CALL]),
    ]
    texts = {template.render([user("x"), form, result], TOOLS).text for form in forms}

    assert len(texts) == 1
    assert "None" not in texts.copy().pop()
    assert '{"k": "v"}' in texts.copy().pop()
    assert "42" in texts.pop()


def test_a_result_for_a_call_that_was_never_made_is_no_fault() -> None:
    for family in ("qwen", "llama3", "kimi", "mistral", "generic"):
        text = (
            ChatTemplate.choose({}, override=family)
            .render([user("x"), {"role": "tool", "tool_call_id": "never", "content": "42"}])
            .text
        )

        assert "42" in text


def test_messages_without_a_role_and_no_messages_are_refused() -> None:
    with pytest.raises(BadInput, match="no messages"):
        own(CHATML).render([])
    with pytest.raises(BadInput, match="role") as caught:
        own(CHATML).render([{"content": "x"}])

    assert caught.value.param == "messages[0].role"


def test_a_template_that_reads_parts_only_is_given_parts() -> None:
    source = (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}"
        "{% endfor %}{% endfor %}"
    )

    assert render(source, user("hi")) == "[hi]"


# -- the beginning and the end


@pytest.mark.parametrize("wants", [True, False])
@pytest.mark.parametrize("writes", [True, False])
def test_the_beginning_token_is_there_once_or_never(wants: bool, writes: bool) -> None:
    metadata = {
        "tokenizer.chat_template": ("{{ bos_token }}" if writes else "") + CHATML,
        "tokenizer.ggml.add_bos_token": wants,
    }
    rendered = ChatTemplate.choose(metadata, bos_token="<s>").render([user("hi")])
    added_by_the_tokenizer = wants and not rendered.has_bos

    assert rendered.text.count("<s>") + added_by_the_tokenizer == (1 if wants else 0)


def test_a_beginning_token_that_a_person_writes_counts_for_nothing() -> None:
    rendered = ChatTemplate.choose({"tokenizer.chat_template": "{{ messages[0].content }}"}, bos_token="<s>").render(
        [user("<s>hi")]
    )

    assert not rendered.has_bos


def test_a_first_token_that_happens_to_be_the_beginning_token_stays() -> None:
    metadata = {"tokenizer.chat_template": CHATML, "tokenizer.ggml.add_bos_token": False}
    rendered = ChatTemplate.choose(metadata, bos_token="<|im_start|>").render([user("hi")])

    assert rendered.text.startswith("<|im_start|>user")


@pytest.mark.parametrize("source", [CHATML, ALTERNATING, CHATML.replace("m.content", "m.content | trim")])
def test_an_answer_that_has_begun_is_continued(source: str) -> None:
    rendered = own(source).render([user("Count"), assistant("One, two")])

    assert rendered.text.endswith("One, two")
    assert rendered.continued == "One, two"
    assert rendered.text.count("One, two") == 1


def test_an_answer_is_continued_where_the_template_wants_a_user_last() -> None:
    source = "{% if messages[-1].role != 'user' %}{{ raise_exception('user last') }}{% endif %}" + CHATML
    rendered = own(source).render([user("Count"), assistant("One ")])

    assert rendered.text.endswith("<|im_start|>assistant\nOne ")
    assert rendered.segments[-1] == Segment("One ", False)


def test_without_a_generation_prompt_the_last_answer_is_whole() -> None:
    text = own(CHATML).render([user("Count"), assistant("One")], add_generation_prompt=False).text

    assert text.endswith("One<|im_end|>\n")


def test_a_prompt_that_opens_the_thinking_says_so() -> None:
    opening = own(CHATML.replace("assistant\n{%", "assistant\n<think>\n{%"))

    assert opening.render([user("x")]).reasoning_open == "<think>"
    assert own(CHATML).render([user("x")]).reasoning_open is None
    assert own("<think>" + "{{ messages[0].content }}").render([user("<think>")]).reasoning_open is None


def test_the_tool_variant_of_a_template_is_used_with_tools() -> None:
    metadata = {
        "tokenizer.chat_template": CHATML,
        "tokenizer.chat_template.tool_use": "T{{ tools | tojson }}{{ messages[0].content }}",
    }
    template = ChatTemplate.choose(metadata)

    assert template.render([user("x")], TOOLS).text.startswith("T[")
    assert template.render([user("x")]).text.startswith("<|im_start|>")
