"""A model file whose chat template does not work, loaded by a whole worker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fixtures.tiny_models import write_llama
from localllm.errors import BadInput
from localllm.runtime.pool import LocalRuntime
from localllm.runtime.types import Done, GenerateRequest, LoadSpec

ENDLESS_FOR_TWO = (
    "{% if messages | length > 1 %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
)


def request(*texts: str) -> GenerateRequest:
    roles = ("user", "assistant", "user")
    messages = tuple({"role": role, "content": text} for role, text in zip(roles, texts, strict=False))
    return GenerateRequest(request_id=" ".join(texts), messages=messages, max_tokens=2)


@pytest.mark.parametrize(
    ("template", "words"), [("{% for m in %}", "of `qwen` is"), ("{# nothing #}", "does not write the user's text")]
)
def test_a_load_warns_of_a_template_that_does_not_work_and_uses_the_family(
    tmp_path: Path, template: str, words: str
) -> None:
    async def whole() -> None:
        runtime = LocalRuntime()
        path = write_llama(tmp_path / "qwen2.5-tiny.gguf", chat_template=template)
        try:
            model = await runtime.load(LoadSpec(model_id="qwen2.5-tiny", path=str(path), n_ctx=256))
            outputs = [output async for output in runtime.generate("qwen2.5-tiny", request("hello"))]
        finally:
            await runtime.aclose()

        assert (model.applied["template_family"], model.applied["chat_template"]) == ("qwen", "family")
        assert [warning for warning in model.warnings if words in warning] != []
        assert isinstance(outputs[-1], Done)

    asyncio.run(whole())


def test_a_template_that_does_not_end_is_an_error_and_its_worker_lives(tmp_path: Path) -> None:
    async def whole() -> None:
        runtime = LocalRuntime()
        path = write_llama(tmp_path / "tiny.gguf", chat_template=ENDLESS_FOR_TWO)
        try:
            model = await runtime.load(LoadSpec(model_id="tiny", path=str(path), n_ctx=256))
            with pytest.raises(BadInput, match="the chat template"):
                _ = [output async for output in runtime.generate("tiny", request("a", "b", "c"))]
            outputs = [output async for output in runtime.generate("tiny", request("hello"))]
            (after,) = runtime.loaded()
        finally:
            await runtime.aclose()

        assert isinstance(outputs[-1], Done)
        assert after.pid == model.pid

    asyncio.run(whole())
