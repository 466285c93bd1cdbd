"""`localllm chat --show-prompt`: the prompt and its tokens instead of an answer, on a real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.model
CHATML = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def shown(cli: Any, models_dir: Path) -> Any:
    """Show the prompt that the arguments mean, with `hello` as the question."""

    def show(*args: str, code: int = 0) -> Any:
        common = ("--models-dir", str(models_dir), "--output", "json", "-m", "smollm2-135m", "--show-prompt")
        done = cli("chat", "hello", "--system", "Be brief.", *common, *args)
        assert done.code == code, done.err
        return json.loads(done.out)

    return show


def test_the_prompt_is_the_models_own_and_its_control_tokens_are_one_token_each(shown: Any) -> None:
    prompt = shown()

    assert prompt["text"] == CHATML
    assert prompt["tokens"][0] == 1  # `<|im_start|>`, also the token that a prompt begins with
    assert (prompt["tokens"].count(1), prompt["tokens"].count(2)) == (3, 2)
    assert prompt["notes"] == []


def test_a_dry_run_shows_the_same_prompt_and_loads_nothing(shown: Any) -> None:
    report = shown("--dry-run")

    assert report["resolved"]["prompt"] == CHATML
    assert report["resolved"]["template"] == {"family": "chatml", "source": "gguf", "stop": ["<|im_end|>"]}


def test_a_template_file_overrides_the_models_own(shown: Any, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}<<{{ m.role }}>> {{ m.content }}\n{% endfor %}<<me>>")

    assert shown("--chat-template", str(file))["text"] == "<<system>> Be brief.\n<<user>> hello\n<<me>>"


def test_a_template_file_that_is_not_there_is_named(shown: Any, tmp_path: Path) -> None:
    assert "gone.jinja" in shown("--chat-template", str(tmp_path / "gone.jinja"), code=3)["error"]["message"]
