"""How each family writes calls of tools: the data that readers, writers and grammars of calls share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

After = Literal["tail", "call", "text"]


@frozen(kw_only=True)
class Shape:
    """How calls are written: `opening (call NAME middle ARGUMENTS close, between …) closing`.

    With a `counter`, it and the call's number, from 0, stand before `middle`.
    """

    opening: str = ""
    call: str
    counter: str = ""
    middle: str
    close: str
    between: str = ""
    closing: str = ""
    trigger: str
    """The text that tells a call from an answer."""
    quoted: bool = False
    """The name is a JSON string."""

    def numbered(self, number: int) -> str:
        """What stands between a call's name and its arguments."""
        return (f"{self.counter}{number}" if self.counter else "") + self.middle


@frozen(kw_only=True)
class ToolFormat:
    """How a family's calls are read and written."""

    name: str
    shape: Shape
    opens: tuple[str, ...]
    """Text that begins a call or a list of calls."""
    after: Mapping[str, After] = field(factory=dict)
    """Text that may follow a call, and what comes next: more of the same, another call, or the answer's text."""
    body: Literal["object", "kimi", "deepseek", "mistral", "xml", "python"] = "object"
    bare: tuple[str, ...] = ()
    """Characters with which an answer that is only calls may begin."""
    inside: tuple[str, ...] = ()
    """Further control tokens that calls are written with."""
    id_length: int = 24
    id_prefix: str = "call_"


_HERMES = ToolFormat(
    name="hermes",
    shape=Shape(
        call='<tool_call>\n{"name": ',
        middle=', "arguments": ',
        close="}\n</tool_call>",
        between="\n",
        trigger="<tool_call>",
        quoted=True,
    ),
    opens=("<tool_call>",),
    after={"</tool_call>": "text"},
)

_JSON = ToolFormat(
    name="json",
    shape=Shape(call='{"name": ', middle=', "arguments": ', close="}", between="; ", trigger='{"name": ', quoted=True),
    opens=(),
    after={",": "call", ";": "call", "]": "text"},
    bare=("{", "["),
)

_LLAMA3 = ToolFormat(
    name="llama3",
    shape=Shape(call='{"name": ', middle=', "parameters": ', close="}", between="; ", trigger='{"name": ', quoted=True),
    opens=("<|python_tag|>",),
    after={";": "call", "<|eom_id|>": "text"},
    body="python",
    bare=("{",),
)

_MISTRAL = ToolFormat(
    name="mistral",
    shape=Shape(
        opening="[TOOL_CALLS] [",
        call='{"name": ',
        middle=', "arguments": ',
        close="}",
        between=", ",
        closing="]",
        trigger="[TOOL_CALLS]",
        quoted=True,
    ),
    opens=("[TOOL_CALLS]",),
    after={",": "call", "]": "text"},
    body="mistral",
    inside=("[ARGS]", "[CALL_ID]"),
    id_length=9,
    id_prefix="",
)

_DEEPSEEK = ToolFormat(
    name="deepseek",
    shape=Shape(
        opening="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        middle="\n```json\n",
        close="\n```<｜tool▁call▁end｜>",
        between="\n",
        closing="<｜tool▁calls▁end｜>",
        trigger="<｜tool▁calls▁begin｜>",
    ),
    opens=("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    after={
        "```": "tail",
        "<｜tool▁call▁end｜>": "tail",
        "<｜tool▁call▁begin｜>": "call",
        "<｜tool▁calls▁end｜>": "text",
    },
    body="deepseek",
    inside=("<｜tool▁sep｜>",),
)

_KIMI = ToolFormat(
    name="kimi",
    shape=Shape(
        opening="<|tool_calls_section_begin|>",
        call="<|tool_call_begin|>functions.",
        counter=":",
        middle="<|tool_call_argument_begin|>",
        close="<|tool_call_end|>",
        closing="<|tool_calls_section_end|>",
        trigger="<|tool_calls_section_begin|>",
    ),
    opens=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    after={"<|tool_call_end|>": "tail", "<|tool_call_begin|>": "call", "<|tool_calls_section_end|>": "text"},
    body="kimi",
    inside=("<|tool_call_argument_begin|>",),
)

_FUNCTION_XML = ToolFormat(
    name="function_xml",
    shape=Shape(
        call="<tool_call>\n<function=",
        middle=">\n",
        close="</function>\n</tool_call>",
        between="\n",
        trigger="<tool_call>",
    ),
    opens=("<tool_call>", "<function="),
    after={"</tool_call>": "text"},
    body="xml",
)

FORMATS = {form.name: form for form in (_HERMES, _JSON, _LLAMA3, _MISTRAL, _DEEPSEEK, _KIMI, _FUNCTION_XML)}
"""The tool formats by name; `families.toml` says which template speaks which."""
