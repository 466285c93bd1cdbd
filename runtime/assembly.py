"""Puts a loaded model together for the worker: backend, engine, chat template, and the report of what was applied."""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any

from attrs import frozen

from .backend import BackendInfo, LogLine, open_backend
from .engine.engine import Engine
from .messages import Loaded
from .protocol import LoadProgress
from .types import LoadSpec

if TYPE_CHECKING:
    from .conversation.templates import ChatTemplate
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

    def choose(override: str | None) -> ChatTemplate:
        names = spec.names or (spec.model_id,)
        return ChatTemplate.choose(info.metadata, names, override, info.bos_text, info.eos_text, add_bos=info.add_bos)

    template = choose(spec.chat_template)
    backend.show(template.answer_marks)
    prompts = Prompts(
        tokenize=lambda text, special: backend.tokenize(text, special=special),
        bos=info.bos_token if info.add_bos else None,
        template=template,
        control_texts=info.control_texts,
        choose_template=choose,
    )
    report = _report(info, template)
    return Assembled(Engine(backend, max_queue=_NO_QUEUE_LIMIT), prompts, report)


def _report(info: BackendInfo, template: ChatTemplate) -> Loaded:
    applied = {
        **info.applied,
        "chat_template": template.source,
        "template_family": template.family,
        "tool_format": template.tool_format,
        "reasoning_tags": [list(pair) for pair in template.reasoning],
    }
    origin = {"override": "flag", "gguf": "GGUF"}.get(template.source, template.source)
    warnings = dict.fromkeys((*info.warnings, *template.warnings))
    return Loaded(applied, {**info.origins, "chat_template": origin}, tuple(warnings), with_total(info.memory))


def with_total(memory: dict[str, Any]) -> dict[str, Any]:
    """The backend's buffers by kind and device, and `total_bytes` of them all where it told any."""
    buffers = [sizes for name, sizes in memory.items() if name.endswith("_buffers")]
    return {**memory, "total_bytes": sum(sum(sizes.values()) for sizes in buffers)} if buffers else memory
