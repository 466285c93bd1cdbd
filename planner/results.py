"""What each command's result holds: the source of the published `result.<command>` schemas.

Results are open: a newer localllm may say more. A field with a default may be missing. Facts only, no behaviour.
"""

from __future__ import annotations

from typing import Any, Literal

from attrs import frozen


@frozen(kw_only=True)
class VersionResult:
    """The version of localllm and of what it runs on."""

    version: str
    python: str
    platform: str
    packages: dict[str, str]


@frozen(kw_only=True)
class StatusResult:
    """Whether a server runs, and what it has loaded; `reason` where none does."""

    running: bool
    server: str
    version: str | None = None
    pid: int | None = None
    instance: str | None = None
    default_model: str | None = None
    limits: dict[str, Any] | None = None
    models: tuple[LoadedModel, ...] = ()


@frozen(kw_only=True)
class LoadedModel:
    """A model that is loaded, with the parameters it runs on."""

    model_id: str
    state: str
    backend: str
    spec: dict[str, Any]
    applied: dict[str, Any]
    origins: dict[str, Any]
    warnings: tuple[str, ...]
    memory: dict[str, Any]
    requests_running: int
    requests_queued: int
    pinned: bool


@frozen(kw_only=True)
class LoadResult(LoadedModel):
    """The loaded model; `changed` is false where it was loaded already."""

    changed: bool
    default_model: str | None


@frozen(kw_only=True)
class UnloadResult:
    """Which models went and which are left, by id."""

    unloaded: tuple[str, ...]
    loaded: tuple[str, ...]
    changed: bool


@frozen(kw_only=True)
class ModelRow:
    """A GGUF file; `reason` says why one that is not valid is not."""

    id: str
    path: str
    parts: int
    size_bytes: int
    modified: float
    kind: str
    valid: bool
    reason: str | None
    architecture: str | None
    name: str | None
    context_length: int | None
    quantization: str | None
    parameter_count: int | None
    aliases: tuple[str, ...]
    duplicate_of: str | None


@frozen(kw_only=True)
class ScanResult:
    """Every GGUF file of the models folder."""

    files: tuple[ModelRow, ...]
    total: int
    invalid: int
    warnings: tuple[str, ...]
    models_dir: str | None = None


@frozen(kw_only=True)
class ModelsResult:
    """The models of one kind."""

    models: tuple[ModelRow, ...]
    warnings: tuple[str, ...]
    models_dir: str | None = None


@frozen(kw_only=True)
class ShowResult(ModelRow):
    """One model with its header; `loaded` on a server only, `fingerprint` where it was asked for.

    `measured` is what its last load here took, beside the estimate.
    """

    header: dict[str, Any] | None = None
    loaded: LoadedModel | None = None
    measured: dict[str, Any] | None = None
    fingerprint: dict[str, Any] | None = None


@frozen(kw_only=True)
class PullResult:
    """The fetched model; `changed` is false where it was there already."""

    model_id: str
    name: str
    file: str
    size_bytes: int
    sha256: str
    license: str
    changed: bool


@frozen(kw_only=True)
class AuthEnableResult:
    """The new key, shown this once."""

    enabled: bool
    key: str
    replaced: bool
    note: str


@frozen(kw_only=True)
class AuthDisableResult:
    """Auth is off; `changed` is false where it was off already."""

    enabled: bool
    changed: bool


@frozen(kw_only=True)
class AuthStatusResult:
    """Whether a key is asked for, and since when."""

    enabled: bool
    keys: int
    created: int | None = None
    private: bool | None = None
    client_has_key: bool | None = None


@frozen(kw_only=True)
class SettingResult:
    """A setting, where its value comes from, and its default."""

    key: str
    value: Any
    origin: str
    default: Any
    env: str
    help: str


@frozen(kw_only=True)
class SettingsResult:
    """Every setting, in the order of the help page."""

    config_file: str
    revision: str
    settings: tuple[SettingResult, ...]
    warnings: tuple[str, ...]


@frozen(kw_only=True)
class ChangedSettingResult:
    """What the config file said and says now; null is "not in it"."""

    key: str
    before: Any
    after: Any
    changed: bool
    config_file: str
    note: str


@frozen(kw_only=True)
class Sample:
    """One request of a bench."""

    latency_ms: float
    prompt_tokens: int | None
    completion_tokens: int | None
    error: str | None


@frozen(kw_only=True)
class LatencyResult:
    """How long requests took, one after the other."""

    p95_ms: float | None
    p50_ms: float | None
    mean_ms: float | None
    min_ms: float | None
    max_ms: float | None
    success_count: int
    failed_count: int
    model: str
    where: str
    max_tokens: int
    raw: tuple[Sample, ...]
    completion_tps_mean: float | None = None


@frozen(kw_only=True)
class ThroughputResult(LatencyResult):
    """How much came out for all clients together."""

    completion_tps: float | None
    requests_per_s: float | None
    wall_s: float
    clients: int


@frozen(kw_only=True)
class LogsResult:
    """The newest lines of the server's log, oldest first."""

    lines: tuple[dict[str, Any], ...]
    file: str | None = None


@frozen(kw_only=True)
class DoctorCheck:
    """One thing that the doctor looked at."""

    name: str
    status: Literal["ok", "warn", "fail", "skip"]
    message: str
    hint: str | None


@frozen(kw_only=True)
class DoctorResult:
    """What the doctor found."""

    healthy: bool
    ok: int
    warnings: int
    failures: int
    checks: tuple[DoctorCheck, ...]


@frozen(kw_only=True)
class PromptTokensDetails:
    """Of the prompt's tokens: those that were computed for an earlier request."""

    cached_tokens: int


@frozen(kw_only=True)
class CompletionTokensDetails:
    """Of the answer's tokens: those of its thoughts."""

    reasoning_tokens: int


@frozen(kw_only=True)
class Usage:
    """Tokens in and out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None


@frozen(kw_only=True)
class ChatChoice:
    """One answer to a conversation."""

    index: int
    message: dict[str, Any]
    finish_reason: str | None


@frozen(kw_only=True)
class ChatResult:
    """OpenAI's `chat.completion` with timings and the seed that was used."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage


@frozen(kw_only=True)
class TextChoice:
    """One text that goes on."""

    index: int
    text: str
    finish_reason: str | None


@frozen(kw_only=True)
class CompleteResult:
    """OpenAI's `text_completion`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    usage: Usage


@frozen(kw_only=True)
class Explanation:
    """A plan through all its doors; what there is no door for is null, and `error` says what a dry run ends with."""

    name: str
    plan: dict[str, Any]
    plan_id: str | None
    argv: tuple[str, ...] | None = None
    command_line: str | None = None
    http: dict[str, Any] | None = None
    curl: str | None = None
    python: str | None = None
    report: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


@frozen(kw_only=True)
class ExplainResult:
    """Each plan that was meant."""

    plans: tuple[Explanation, ...]


@frozen(kw_only=True)
class ValidatedFile:
    """A file without fault, and how many plans it holds."""

    file: str
    kind: Literal["plan", "report", "plan-file"]
    plans: int


@frozen(kw_only=True)
class ValidateResult:
    """The files, none of which has a fault."""

    files: tuple[ValidatedFile, ...]
    plans: int


@frozen(kw_only=True)
class ComparedFile:
    """One side of a comparison."""

    file: str
    kind: Literal["plan", "report", "plan-file"]
    plan_ids: tuple[str | None, ...]


@frozen(kw_only=True)
class DifferenceRow:
    """One value that differs; `before` or `after` is missing where only one side has it."""

    path: str
    before: Any = None
    after: Any = None


@frozen(kw_only=True)
class DiffResult:
    """What differs between two files."""

    same: bool
    differences: tuple[DifferenceRow, ...]
    a: ComparedFile
    b: ComparedFile


@frozen(kw_only=True)
class NamedPlan:
    """A plan's id; `reason` says why there is none yet."""

    name: str
    plan_id: str | None
    reason: str | None = None


@frozen(kw_only=True)
class IdResult:
    """The ids of a file's plans; `plan_id` where it holds one plan only."""

    file: str
    kind: Literal["plan", "report", "plan-file"]
    plans: tuple[NamedPlan, ...]
    plan_id: str | None = None


@frozen(kw_only=True)
class LogEntry:
    """One entry of the ledger."""

    entry: str
    command: str
    outcome: str
    reversible: bool
    undone_by: str | None
    time: str | None = None
    plan_id: str | None = None
    plan: dict[str, Any] | None = None
    actor: dict[str, Any] | None = None
    effects: tuple[str, ...] | None = None


@frozen(kw_only=True)
class PlanLogResult:
    """The newest entries of the ledger, oldest first."""

    ledger: str
    total: int
    entries: tuple[LogEntry, ...]


@frozen(kw_only=True)
class UndoResult:
    """What was taken back."""

    undid: str
    kind: Literal["config", "keys", "models"]


@frozen(kw_only=True)
class LockResult:
    """What a plan file is locked to."""

    file: str
    lock: dict[str, Any]
    changed: bool


@frozen(kw_only=True)
class ReplayResult:
    """How many steps passed; `score` is 100 times passed by total."""

    passed: int
    failed: int
    skipped: int
    total: int
    score: float


RESULTS: dict[str, type[Any] | None] = {
    "status": StatusResult,
    "models.scan": ScanResult,
    "models.list": ModelsResult,
    "models.show": ShowResult,
    "models.load": LoadResult,
    "models.unload": UnloadResult,
    "models.pull": PullResult,
    "auth.enable": AuthEnableResult,
    "auth.disable": AuthDisableResult,
    "auth.status": AuthStatusResult,
    "config.get": SettingResult,
    "config.set": ChangedSettingResult,
    "config.unset": ChangedSettingResult,
    "config.list": SettingsResult,
    "bench.latency": LatencyResult,
    "bench.throughput": ThroughputResult,
    "logs": LogsResult,
    "doctor": DoctorResult,
    "chat": ChatResult,
    "complete": CompleteResult,
    "serve": None,
    "apply": None,
    "explain": ExplainResult,
    "plan.validate": ValidateResult,
    "plan.diff": DiffResult,
    "plan.id": IdResult,
    "plan.lock": LockResult,
    "plan.log": PlanLogResult,
    "plan.undo": UndoResult,
    "replay": ReplayResult,
    "schema": None,
    "version": VersionResult,
}
"""The class that describes a command's result; None where any object may come: `apply` gives what the saved plan gives,
`schema` a schema, and `serve` how it ended."""
