"""Example command lines for the help pages; a test parses every one."""

from __future__ import annotations

import attrs

from .fields import METADATA_KEY, FieldSpec
from .plans import plan_class

OPENING = (
    "localllm models pull smollm2-135m",
    'localllm chat "Why is the sky blue?" --model smollm2-135m',
    "localllm serve --model smollm2-135m",
    "localllm --dry-run --output json models load smollm2-135m",
)
"""What a newcomer tries first, in this order."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "models.list": ("localllm models list --output json",),
    "models.load": (
        "localllm models load smollm2-135m",
        "localllm models load smollm2-135m --n-ctx 4096 --n-slots 4 --make-default",
        "localllm models load smollm2-135m --dry-run --output json > load.json",
    ),
    "models.unload": ("localllm models unload smollm2-135m", "localllm models unload --all"),
    "config.set": ("localllm config set port 8485", "localllm config set aliases.tiny SmolLM2-135M-Instruct.Q4_1"),
    "bench.throughput": ("localllm bench throughput --clients 8 --requests 2",),
    "logs": ("localllm logs --lines 100 --level warning", "localllm logs --follow"),
    "chat": (
        'localllm chat "Why is the sky blue?"',
        'localllm chat --system "Answer in one sentence." "Why is the sky blue?" --temperature 0',
        "localllm chat - < question.txt",
        'localllm chat "Name three colours" --response-format \'{"type": "json_object"}\'',
        'localllm chat "Hello" --show-prompt',
    ),
    "complete": (
        'localllm complete "Once upon a time" --max-tokens 64',
        "localllm complete \"The answer, in digits: \" --regex '[0-9]{1,4}'",
    ),
    "serve": (
        "localllm serve --model smollm2-135m",
        "localllm serve --port 0 --backend echo",
    ),
    "replay": (
        "localllm replay tour.plan.yaml",
        "localllm replay *.plan.yaml --jobs 4 --tags smoke --report junit=report.xml",
        "localllm replay tour.plan.yaml --update",
    ),
    "plan.log": ("localllm plan log", "localllm plan log --lines 5 --output json"),
    "plan.undo": ("localllm plan undo last", "localllm --dry-run plan undo last"),
    "explain": ("localllm explain load.json", 'localllm explain -- chat "Why is the sky blue?" --temperature 0'),
    "schema": ("localllm schema", "localllm schema plan-file"),
    "apply": ("localllm apply load.json", "localllm --dry-run apply load.json"),
}
"""Better examples than the one that is made of a command and its operands."""


def examples_of(command: str) -> tuple[str, ...]:
    """At least one example of a command."""
    if command in EXAMPLES:
        return EXAMPLES[command]
    operands = []
    for attribute in attrs.fields(plan_class(command)):
        spec: FieldSpec | None = attribute.metadata.get(METADATA_KEY)
        if spec is not None and spec.positional:
            operands.append(str(spec.example or attribute.name.upper()))
    return (" ".join(["localllm", *command.split("."), *operands]),)
