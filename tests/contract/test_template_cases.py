"""The founding cases of chat templates, as a plan file: which family a name shows, and what its prompt looks like."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fixtures import gguf_bytes

FILE = Path(__file__).parent / "templates.plan.yaml"
ALIASES = {"my-qwen": "model-5", "kimi-here": "qwen-7b", "fast": "gemma-2-2b"}
METADATA: dict[str, dict[str, str]] = {
    "model-2": {"general.architecture": "gemma2"},
    "model-3": {"general.name": "Qwen2 7B Instruct"},
    "model-4": {"tokenizer.chat_template": "{{ messages[0].content }}"},
    "qwen2.5-own": {"tokenizer.chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"},
    "qwen2.5-broken": {"tokenizer.chat_template": "{% for m in %}"},
    "qwen2.5-silent": {"tokenizer.chat_template": "{# nothing #}"},
}


def _asked() -> list[tuple[str, str]]:
    """The name of each step, and the model it asks for."""
    found: list[tuple[str, str]] = []
    for step in yaml.safe_load(FILE.read_text("utf-8"))["steps"]:
        for name in step.get("for_each", {}).get("name", [""]):
            model = step["plan"]["model"]
            found.append((step["name"].replace("${name}", name), model.replace("${name}", name)))
    return found


ASKED = _asked()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each step of the plan file came to; the models are files of a header only."""
    from conftest import environment_under

    folder = tmp_path_factory.mktemp("templates")
    for name in {ALIASES.get(model, model) for _, model in ASKED}:
        metadata = {"general.architecture": "llama", **METADATA.get(name, {})}
        gguf_bytes.write(folder / "models", {f"{name}.gguf": gguf_bytes.gguf(metadata)})
    aliases = "".join(f'"{alias}" = "{name}"\n' for alias, name in ALIASES.items())
    (folder / "config.toml").write_text(f"[aliases]\n{aliases}")
    options = ["--models-dir", str(folder / "models"), "--config", str(folder / "config.toml")]
    command = [sys.executable, "-m", "localllm", "replay", str(FILE), "--report", f"json={folder}/report.json"]
    done = subprocess.run(
        [*command, *options], env=environment_under(folder), capture_output=True, text=True, timeout=250
    )
    assert re.search(r"passed=\d+ failed=\d+ skipped=\d+ total=\d+ score=", done.stdout), done.stdout + done.stderr
    (suite,) = json.loads((folder / "report.json").read_text())["suites"]
    found = {step["name"]: step for step in suite["steps"]}
    assert len(found) == len(ASKED) == suite["total"]
    return found


@pytest.mark.parametrize("name", [name for name, _ in ASKED])
def test_a_template_case_holds(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    assert outcomes[name]["status"] == "passed", json.dumps(outcomes[name], indent=2, ensure_ascii=False)
