"""The chat templates of llama.cpp's source distribution render as transformers renders them."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from localllm.errors import BadInput
from localllm.runtime.conversation.templates import ChatTemplate

sys.path.insert(0, str(Path(__file__).parents[1]))
from fetch_templates import templates_folder

sys.path.pop(0)

FOLDER = templates_folder()
FILES = sorted(FOLDER.glob("*.jinja"))

NOT_USED = {
    "fireworks-ai-llama-3-firefunction-v2.jinja": "it needs variables `functions` and `datetime` that no caller passes",
}
"""Templates that cannot render, with the reason; the family's form stands in for them."""

DIFFERENT = {
    "meetkai-functionary-medium-v3.1.jinja": "`|safe` makes jinja2 escape the tools as HTML; here text stays text",
}
"""Templates that render otherwise with tools, with the reason."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Look up the <weather> & more.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "City, e.g. Köln"},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    }
]
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}},
}


def said(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


SYSTEM, HELLO, WEATHER = said("system", "You are terse."), said("user", "Hello there"), said("user", "Weather?  ")
CALLED = said("assistant", None, tool_calls=[CALL])
RESULT = said("tool", '{"temp": 21}', tool_call_id="call00001", name="get_weather")
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]] = {
    "plain": ([HELLO], [], {}),
    "system": ([SYSTEM, HELLO], [], {}),
    "turns": ([SYSTEM, HELLO, said("assistant", "Hi!"), said("user", "And now?\n")], [], {}),
    "tools": ([WEATHER], TOOLS, {}),
    "tools and system": ([SYSTEM, WEATHER], TOOLS, {}),
    "result": ([WEATHER, CALLED, RESULT], TOOLS, {}),
    "after the result": ([WEATHER, CALLED, RESULT, said("assistant", "21."), said("user", "Thanks")], TOOLS, {}),
    "thinking": ([HELLO], [], {"enable_thinking": True, "thinking": True}),
    "no thinking": ([HELLO], [], {"enable_thinking": False, "thinking": False}),
    "thought before": (
        [HELLO, said("assistant", "4", reasoning_content="Add them."), said("user", "3+3?")],
        [],
        {"enable_thinking": True, "thinking": True},
    ),
}


def test_the_templates_are_there() -> None:
    assert len(FILES) >= 60, f"`{FOLDER}` is empty; hint: `python tests/fetch_templates.py` fills it"


def test_few_templates_are_listed_as_exceptions() -> None:
    assert len(NOT_USED | DIFFERENT) <= 5


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_template_renders_as_transformers_renders_it(path: Path, name: str) -> None:
    messages, tools, options = CONVERSATIONS[name]
    source, template = loaded(path)
    if path.name in NOT_USED:
        assert template.warnings
        return
    rendered = template.render(messages, tools, options=options)
    theirs = list(rendered_by_transformers(source, messages, tools, options))
    differs = path.name in DIFFERENT and bool(tools)

    assert template.source == "gguf", template.warnings
    assert "".join(segment.text for segment in rendered.segments) == rendered.text
    if rendered.notes:
        assert [note for note in rendered.notes if not is_called_for(note, rendered.text, theirs)] == []
    elif not differs:
        assert rendered.text in theirs


@cache
def loaded(path: Path) -> tuple[str, ChatTemplate]:
    """A template's source, and our template made of it."""
    source = path.read_text(encoding="utf-8")
    metadata = {"tokenizer.chat_template": source}
    return source, ChatTemplate.choose(metadata, [path.stem], bos_token="<s>", eos_token="</s>")


REPAIRED = {
    "the tools are described": ["Look up the"],
    "tool calls and results": ["Zürich", "temp"],
    "the system message is folded": ["terse"],
}
"""What each repair brings into the prompt."""


def is_called_for(note: str, text: str, theirs: list[str | None]) -> bool:
    """Whether a repair brings in what transformers leaves out, or where it fails."""
    needles = next(needles for beginning, needles in REPAIRED.items() if note.startswith(beginning))
    complete = [other for other in theirs if other is not None and all(needle in other for needle in needles)]
    return not complete and all(needle in text for needle in needles)


def rendered_by_transformers(
    source: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], options: dict[str, Any]
) -> Iterator[str | None]:
    """What transformers makes of the conversation in each form a client may send it, None where it fails."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers.utils.chat_template_utils import render_jinja_template

    calls = any(message.get("tool_calls") for message in messages)
    for as_text, content, no_tools in product((False, True)[: 1 + calls], (None, "")[: 1 + calls], (None, [])):
        form = copy.deepcopy(messages)
        for message in form:
            for call in message.get("tool_calls", ()):
                message["content"] = content
                if as_text:
                    arguments = call["function"]["arguments"]
                    call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
        try:
            texts, _ = render_jinja_template(
                [form],
                tools=tools or no_tools,
                chat_template=source,
                add_generation_prompt=True,
                bos_token="<s>",
                eos_token="</s>",
                **options,
            )
            yield texts[0]
        except Exception:  # templates raise what they like
            yield None


def test_what_a_template_refuses_is_refused_in_its_own_words() -> None:
    path = FOLDER / "mistralai-Mistral-Nemo-Instruct-2407.jinja"
    template = ChatTemplate.choose({"tokenizer.chat_template": path.read_text(encoding="utf-8")})

    with pytest.raises(BadInput, match="alternat"):
        template.render([said("assistant", "first"), HELLO])
