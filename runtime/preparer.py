"""The worker's thread that turns requests into prompts, so that neither the reader nor the engine waits for it."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable

from attrs import evolve

from ..errors import InternalError, LocalLLMError
from .engine.engine import Work
from .prompt import Prompt, Prompts
from .types import GenerateRequest

Refuse = Callable[[str, LocalLLMError], None]


class Preparer:
    """Renders and tokenizes requests in order and has their grammars compiled, away from the reader.

    The reader must stay free to see a cancel, so nothing here holds a lock for longer than a moment.
    """

    def __init__(
        self,
        prompts: Prompts,
        make_ready: Callable[[Work], None],
        submit: Callable[[Work, Prompt], None],
        refuse: Refuse,
        show: Callable[[str, Prompt], None],
    ) -> None:
        self._prompts = prompts
        self._make_ready = make_ready
        self._submit = submit
        self._refuse = refuse
        self._show = show
        self._waiting: queue.SimpleQueue[GenerateRequest] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: set[str] = set()
        threading.Thread(target=self._run, name="preparer", daemon=True).start()

    def add(self, request: GenerateRequest) -> None:
        """Prepare this request as soon as those before it are done."""
        with self._lock:
            self._open.add(request.request_id)
        self._waiting.put(request)

    def cancel(self, request_id: str) -> bool:
        """Forget a request that is not prepared yet; False where it has gone on to the engine."""
        with self._lock:
            if request_id not in self._open:
                return False
            self._open.discard(request_id)
            return True

    def _run(self) -> None:
        while True:
            request = self._waiting.get()
            try:
                self._prepare(request)
            except LocalLLMError as error:
                self._end(request, error)
            except Exception:
                traceback.print_exc()
                self._end(request, InternalError("the prompt could not be prepared", hint="`localllm logs` shows why"))

    def _prepare(self, request: GenerateRequest) -> None:
        if request.request_id not in self._open:
            return
        prompt = self._prompts.prompt(request)
        if request.only_prompt:
            if self.cancel(request.request_id):
                self._show(request.request_id, prompt)
            return
        work = Work(
            request=evolve(request, constraint=prompt.constraint),
            prompt_tokens=prompt.tokens,
            stop=(*request.stop, *prompt.stop),
            notes=prompt.notes,
            thinking=prompt.thinking,
        )
        self._make_ready(work)
        with self._lock:  # a cancel comes either before this and finds the request here, or after it at the engine
            if request.request_id in self._open:
                self._open.discard(request.request_id)
                self._submit(work, prompt)

    def _end(self, request: GenerateRequest, error: LocalLLMError) -> None:
        if self.cancel(request.request_id):
            self._refuse(request.request_id, error)
