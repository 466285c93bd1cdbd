"""The thread between the worker's reader and its engine."""

from __future__ import annotations

import threading

from localllm.errors import LocalLLMError
from localllm.runtime.conversation.templates import ChatTemplate
from localllm.runtime.engine.engine import Work
from localllm.runtime.preparer import Preparer
from localllm.runtime.prompt import Prompt, Prompts
from localllm.runtime.types import GenerateRequest


def request(name: str) -> GenerateRequest:
    return GenerateRequest(request_id=name, messages=({"role": "user", "content": "hi"},))


def test_a_cancel_does_not_wait_for_a_grammar_that_is_being_compiled() -> None:
    compiling, compiled, told = threading.Event(), threading.Event(), threading.Event()
    submitted: list[str] = []
    refused: list[LocalLLMError] = []

    def make_ready(work: Work) -> None:
        if work.request.request_id == "slow":
            compiling.set()
            assert compiled.wait(200)

    def submit(work: Work, _: Prompt) -> None:
        submitted.append(work.request.request_id)
        told.set()

    prompts = Prompts(
        tokenize=lambda text, special: list(text.encode()),
        bos=None,
        template=ChatTemplate.choose({}, override="chatml"),
    )
    preparer = Preparer(prompts, make_ready, submit, lambda _, error: refused.append(error), lambda *_: None)
    preparer.add(request("slow"))
    assert compiling.wait(60)
    cancelling = threading.Thread(target=preparer.cancel, args=("slow",))
    cancelling.start()
    cancelling.join(60)
    waits = cancelling.is_alive()
    preparer.add(request("next"))
    compiled.set()

    assert not waits
    assert told.wait(60)
    assert submitted == ["next"]
    assert refused == []
