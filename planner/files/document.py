"""What a plan file may say, field by field: the source of its schema and of the editor's help."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from ..fields import option

FORMAT_MAJOR, FORMAT_MINOR = 1, 0
NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"


@frozen(kw_only=True)
class RetryDocument:
    """How often a step is tried again, and until when."""

    times: int = option(1, help="How many more tries there are", ge=0, le=10_000)
    interval_s: float = option(1.0, help="Seconds between two tries", ge=0, le=86_400)
    until: dict[str, Any] | None = option(
        None, help="Go on until the outcome is like this, written like `expect`; unset means until `expect` holds"
    )


@frozen(kw_only=True)
class StepDocument:
    """One step: a plan with what should come of it, or another file's steps (`include`)."""

    name: str | None = option(None, help="What the step is called; unset means its command", min_length=1)
    plan: dict[str, Any] | None = option(None, help="The plan to run; `${name}` stands for a variable")
    include: str | None = option(None, help="Another plan file, relative to this one, to run here", min_length=1)
    vars: dict[str, Any] = option(factory=dict, help="Variables of the included file")
    if_: Any = option(
        True, help="Run only where this is true: a boolean, `${name}`, or variables with what they must be"
    )
    for_each: Any = option(
        None,
        help="Run once for each: a list (`${item}`, `${index}`), or lists by name, of which every combination runs",
    )
    expect: dict[str, Any] | None = option(
        None, help="What the outcome must be: JSONPaths with values or operators, or JSON Schema; unset means `ok`"
    )
    capture: dict[str, str] = option(factory=dict, help="Variables to take from the outcome, each by a JSONPath")
    retry: RetryDocument | None = option(None, help="Try again where the outcome is not what it should be")
    timeout_s: float | None = option(None, help="Seconds after which the step has failed", gt=0, le=86_400)
    continue_on_error: bool | None = option(None, help="Go on with the next step even where this one fails")
    dry_run: bool = option(False, help="Only report what the plan would do; the report is the result")
    tags: tuple[str, ...] = option((), help="Words to select steps by", max_length=100)
    recorded: dict[str, Any] | None = option(None, help="The outcome that was recorded, which a replay compares with")


@frozen(kw_only=True)
class DefaultsDocument:
    """What holds for every step of the file that says nothing else."""

    timeout_s: float | None = option(None, help="Seconds after which a step has failed", gt=0, le=86_400)
    retry: RetryDocument | None = option(None, help="How often a step is tried again")
    continue_on_error: bool = option(False, help="Go on with the next step even where one fails")
    tags: tuple[str, ...] = option((), help="Tags of every step", max_length=100)
    plans: dict[str, dict[str, Any]] = option(
        factory=dict, help="Plan fields by command, such as `chat: {temperature: 0}`"
    )


@frozen(kw_only=True)
class ModelLockDocument:
    """What a model was when the file was written."""

    sha256: str | None = option(None, help="SHA-256 of the GGUF file", pattern="^[0-9a-f]{64}$")
    template_hash: str | None = option(None, help="Hash of the chat template")
    tokenizer_hash: str | None = option(None, help="Hash of the tokenizer")


@frozen(kw_only=True)
class LockDocument:
    """What the file was written against; a replay checks it."""

    build: str | None = option(None, help="The runtime's build")
    models: dict[str, ModelLockDocument] = option(factory=dict, help="Each model by its name")


@frozen(kw_only=True)
class PlanFileDocument:
    """Plans as steps, with variables, expectations and what always runs at the end."""

    format_version: str | float = option(help="Version of the format, `1.0`")
    name: str | None = option(None, help="What the file is called; unset means the file's own name", min_length=1)
    vars: dict[str, Any] = option(
        factory=dict, help='Variables; a secret is `{"$secret": "env:NAME"}`, and is shown nowhere'
    )
    defaults: DefaultsDocument | None = option(None, help="What holds for every step")
    steps: tuple[StepDocument, ...] = option((), help="The steps, in order", max_length=1_000_000)
    finally_: tuple[StepDocument, ...] = option((), help="Steps that always run at the end", max_length=10_000)
    lock: LockDocument | None = option(None, help="Weights, templates and build the file was written against")
