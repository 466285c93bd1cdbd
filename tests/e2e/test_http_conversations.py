"""Tools, forms, reasoning and prompts over HTTP, on scripted answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.append(str(Path(__file__).parent.parent / "fixtures"))
from scripted import scripted

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('I know no system') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}{% endfor %}"
)
STRICTLY_ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}] {{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server that echoes, byte by byte; its model is loaded, and a stream's headers wait for a refusal."""
    folder, settings = tmp_path_factory.mktemp("echo"), {"keep_alive_s": "600"}
    with scripted(folder, {"tokens": "bytes"}, settings=settings) as server, server.client() as client:
        client.post("/admin/plans", json={"plan": {"command": "models.load", "model": "echo"}})
        yield client


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server whose every answer thinks, then calls `f` twice."""
    text = f"<think>which?</think>I call.\n{CALL}\n{CALL}"
    with scripted(tmp_path_factory.mktemp("calls"), {"script": list(text)}) as server, server.client() as client:
        yield client


def streamed(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    *events, done, _ = answer.text.split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def deltas(chunks: list[dict[str, Any]], name: str) -> list[Any]:
    return [choice["delta"][name] for chunk in chunks for choice in chunk["choices"] if choice["delta"].get(name)]


def test_thoughts_words_and_calls_are_apart_whole_and_streamed(calling: httpx.Client) -> None:
    ask = {"messages": HELLO, "tools": [F], "tool_choice": "none"}
    off = calling.post(CHAT, json=ask).json()["choices"][0]
    ask["tool_choice"] = "auto"
    whole = calling.post(CHAT, json=ask).json()["choices"][0]
    chunks = streamed(calling.post(CHAT, json=ask | {"stream": True}))

    assert off["finish_reason"] == "stop"
    assert off["message"]["content"] == f"I call.\n{CALL}\n{CALL}"
    message = whole["message"]
    assert whole["finish_reason"] == "tool_calls"
    assert (message["reasoning_content"], message["content"]) == ("which?", "I call.")
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "f", "arguments": '{"a": 1}'}] * 2
    assert "".join(deltas(chunks, "content")) == "I call."
    assert "".join(deltas(chunks, "reasoning_content")) == "which?"
    news = [call for calls in deltas(chunks, "tool_calls") for call in calls]
    assert [call["index"] for call in news if "id" in call] == [0, 1]
    assert "".join(call["function"]["arguments"] for call in news if call["index"] == 1) == '{"a": 1}'


def test_one_call_is_all_without_parallel_calls(calling: httpx.Client) -> None:
    ask = {"messages": HELLO, "tools": [F], "parallel_tool_calls": False}
    message = calling.post(CHAT, json=ask).json()["choices"][0]["message"]

    assert len(message["tool_calls"]) == 1
    assert message["content"] == "I call."


def test_reasoning_left_in_the_text_is_the_models_own_bytes(calling: httpx.Client) -> None:
    message = calling.post(CHAT, json={"messages": HELLO, "reasoning_format": "none"}).json()["choices"][0]["message"]

    assert message == {"role": "assistant", "content": f"<think>which?</think>I call.\n{CALL}\n{CALL}"}


def test_reasoning_tokens_are_counted(calling: httpx.Client) -> None:
    usage = calling.post(CHAT, json={"messages": HELLO}).json()["usage"]

    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


def test_a_thinking_budget_ends_the_thought(calling: httpx.Client) -> None:
    choice = calling.post(CHAT, json={"messages": HELLO, "thinking_budget": 1, "max_tokens": 60}).json()["choices"][0]

    assert "which?" not in choice["message"]["reasoning_content"]
    assert choice["message"]["content"]


@pytest.mark.parametrize("off", [{"reasoning_effort": "none"}, {"enable_thinking": False}])
def test_a_thought_that_the_template_opens_unasked_is_closed_at_once(http: httpx.Client, off: dict[str, Any]) -> None:
    opening = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    ask = {"messages": HELLO, "chat_template": opening, "max_tokens": 40}
    left = http.post(CHAT, json=ask).json()["choices"][0]["message"]
    closed = http.post(CHAT, json=ask | off).json()["choices"][0]["message"]
    called = http.post(CHAT, json=ask | off | {"tools": [F], "tool_choice": "required", "max_tokens": 300}).json()

    assert left["reasoning_content"]
    assert not left["content"]
    assert not closed.get("reasoning_content")
    assert closed["content"]
    assert called["choices"][0]["message"]["tool_calls"]
    assert not called["choices"][0]["message"].get("reasoning_content")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_call_that_must_come_comes(http: httpx.Client, choice: Any) -> None:
    schema = {"properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    functions = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("g", "f")]
    ask = {"messages": HELLO, "tools": functions, "tool_choice": choice, "parallel_tool_calls": False}
    answer = http.post(CHAT, json=ask).json()["choices"][0]

    (call,) = answer["message"]["tool_calls"]
    assert answer["finish_reason"] == "tool_calls"
    assert call["function"]["name"] in ("f", "g") if choice == "required" else ("f",)
    assert isinstance(json.loads(call["function"]["arguments"])["ok"], bool)


@pytest.mark.parametrize(
    ("form", "right"),
    [
        ({"guided_choice": ["yes", "no"]}, ("yes", "no")),
        ({"structured_outputs": {"choice": ["yes"]}}, ("yes",)),
        ({"guided_regex": "(ab){2}"}, ("abab",)),
        ({"grammar": 'root ::= "x" [0-1]'}, ("x0", "x1")),
        ({"guided_grammar": 'start: "lark"'}, ("lark",)),
        ({"guided_json": {"const": 5}}, ("5",)),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["a"]}}}}, ('"a"',)),
    ],
)
def test_an_answer_has_the_form_that_was_asked_for(
    http: httpx.Client, form: dict[str, Any], right: tuple[str, ...]
) -> None:
    choice = http.post(CHAT, json={"messages": HELLO, **form}).json()["choices"][0]

    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] in right


def test_a_json_object_comes_where_one_is_asked_for(http: httpx.Client) -> None:
    ask = {"messages": [{"role": "user", "content": '["a": 1}'}]}
    free = http.post(CHAT, json=ask).json()["choices"][0]
    formed = http.post(CHAT, json=ask | {"response_format": {"type": "json_object"}}).json()["choices"][0]

    assert free["message"]["content"] == '["a": 1}'
    assert json.loads(formed["message"]["content"]) == {"a": 1}
    assert formed["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("form", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"not": {}}}}}}},
            "response_format.json_schema.schema.properties.a.not",
        ),
        ({"guided_json": {"items": {"uniqueItems": True}}}, "guided_json.items.uniqueItems"),
        ({"structured_outputs": {"regex": "(?=x)"}}, "structured_outputs.regex"),
        ({"grammar": "root ::= missing"}, "grammar"),
        (
            {
                "tools": [
                    F,
                    {"type": "function", "function": {"name": "g", "parameters": {"properties": {"a": {"not": {}}}}}},
                ],
                "tool_choice": "required",
            },
            "tools[1].function.parameters.properties.a.not",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_enforced_is_refused_by_its_place(
    http: httpx.Client, form: dict[str, Any], param: str, stream: bool
) -> None:
    answer = http.post(CHAT, json={"messages": HELLO, "stream": stream, **form})

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_the_prompt_is_shown_with_its_tokens(http: httpx.Client) -> None:
    shown = http.post("/apply-template", json={"messages": HELLO, "stream": True}).json()

    assert shown["prompt"] == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert all(isinstance(token, int) for token in shown["tokens"])
    assert shown["notes"] == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("template", "messages", "word"),
    [
        (NO_SYSTEM, [{"role": "system", "content": "be brief"}, *HELLO], "folded"),
        (STRICTLY_ALTERNATING, [*HELLO, *HELLO], "merged"),
    ],
)
def test_a_repair_is_told_in_a_header_and_in_the_dry_run(
    http: httpx.Client, template: str, messages: list[dict[str, Any]], word: str, stream: bool
) -> None:
    ask = {"messages": messages, "chat_template": template}
    answer = http.post(CHAT, json=ask | {"stream": stream})
    plain = http.post(CHAT, json=ask | {"messages": HELLO})
    report = http.post(f"{CHAT}?dry_run=true", json=ask).json()

    assert answer.status_code == 200
    assert word in answer.headers["x-localllm-notes"]
    assert "x-localllm-notes" not in plain.headers
    assert any(word in warning for warning in report["warnings"])


def test_a_template_that_does_not_work_is_refused_in_its_own_words(http: httpx.Client) -> None:
    raising = "{% if messages | length > 1 %}{{ raise_exception('only one') }}{% endif %}{{ messages[0].content }}"
    ask = {"messages": [*HELLO, {"role": "assistant", "content": "a"}, *HELLO]}
    refused = http.post(CHAT, json=ask | {"chat_template": raising})
    broken = http.post(CHAT, json=ask | {"chat_template": "{% for"})

    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "only one" in refused.json()["error"]["message"]
    assert (broken.status_code, broken.json()["error"]["param"]) == (400, "chat_template")


def test_every_prompt_of_a_list_is_continued_in_order(http: httpx.Client) -> None:
    ask = {"prompt": ["abc", "xyz"], "n": 2, "max_tokens": 2}
    whole = http.post("/v1/completions", json=ask).json()
    tokens = http.post("/v1/completions", json={"prompt": [[97, 98], [99]], "max_tokens": 2}).json()
    chunks = streamed(http.post("/v1/completions", json=ask | {"stream": True}))

    assert whole["object"] == "text_completion"
    assert whole["id"].startswith("cmpl-")
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in whole["choices"]] == ["ab", "ab", "xy", "xy"]
    assert whole["usage"]["completion_tokens"] == 8
    assert len(tokens["choices"]) == 2
    for index, choice in enumerate(whole["choices"]):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]


def test_a_text_is_continued_by_sixteen_tokens_unless_said(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "a" * 40}).json()

    assert answer["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("ask", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 5.5]}, "prompt[1]"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": [[1, 99999]]}, "prompt"),
    ],
)
def test_a_wrong_completion_is_a_400_that_names_the_field(http: httpx.Client, ask: dict[str, Any], param: str) -> None:
    answer = http.post("/v1/completions", json=ask)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
