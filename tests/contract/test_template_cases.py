"""The founding cases of chat templates, as data: which family a name shows, and what its prompt looks like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from localllm.runtime.conversation.templates import ChatTemplate

CASES = json.loads((Path(__file__).parent / "template_cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_template_case_holds(case: dict[str, Any]) -> None:
    names = case["names"] if isinstance(case["names"], list) else [case["names"]]
    template = ChatTemplate.choose(case.get("metadata", {}), names, case.get("override"))
    rendered = template.render(case["messages"], case.get("tools", ()), options=case.get("options", {}))
    text = rendered.text

    assert template.family == case.get("family", template.family)
    assert template.source == case.get("source", template.source)
    assert bool(template.warnings) == case.get("warns", False)
    assert text == case.get("prompt", text)
    assert text.endswith(case.get("ends", ""))
    assert set(case.get("stop", ())) <= set(rendered.stop)
    assert [part for part in case.get("contains", ()) if part not in text] == []
    assert [part for part in case.get("absent", ()) if part in text] == []
    assert {part: text.count(part) for part in case.get("count", {})} == case.get("count", {})
    assert_in_order(text, case.get("order", []))


def assert_in_order(text: str, parts: list[str]) -> None:
    """The parts stand in the text one after the other."""
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"`{part}` is not after place {at}"
        at = found + len(part)
