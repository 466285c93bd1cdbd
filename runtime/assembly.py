"""Puts a loaded model together for the worker: backend, engine, chat template, and the report of what was applied."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from attrs import frozen

from .backend import Backend, LogLine, open_backend
from .engine.engine import Engine
from .messages import Loaded
from .protocol import LoadProgress
from .types import LoadSpec

if TYPE_CHECKING:
    from .prompt import Prompts

_NO_QUEUE_LIMIT = 1 << 20  # the pool bounds the queue, before a prompt is even sent


@frozen
class Assembled:
    """A model ready to answer."""

    engine: Engine
    prompts: Prompts
    report: Loaded


def assemble(spec: LoadSpec, on_progress: LoadProgress, on_log: LogLine) -> Assembled:
    """Load the model. Raises ModelLoadFailed, OutOfMemory, Unsupported, BadInput for a template that does not work."""
    # Jinja's import takes as long as a small model's load, which is native and leaves Python free.
    threading.Thread(target=importlib.import_module, args=(f"{__package__}.conversation.templates",)).start()
    backend = open_backend(spec, on_progress, on_log)
    from .conversation.templates import ChatTemplate
    from .prompt import Prompts

    info = backend.info
    template = ChatTemplate.choose(
        info.metadata,
        spec.names or (spec.model_id,),
        spec.chat_template,
        info.bos_text,
        info.eos_text,
        add_bos=info.add_bos,
    )
    prompts = Prompts(
        tokenize=_tokenizer(backend),
        bos=info.bos_token if info.add_bos else None,
        template=template,
    )
    report = Loaded(
        applied={
            **info.applied,
            "chat_template": template.source,
            "template_family": template.family,
            "tool_format": template.tool_format,
            "reasoning_tags": [list(pair) for pair in template.reasoning],
        },
        origins={**info.origins, "chat_template": "flag" if template.source == "override" else template.source},
        warnings=(*info.warnings, *template.warnings),
        memory=info.memory,
    )
    return Assembled(Engine(backend, max_queue=_NO_QUEUE_LIMIT), prompts, report)


def _tokenizer(backend: Backend) -> Callable[[str, bool], list[int]]:
    return lambda text, special: backend.tokenize(text, special=special)
