"""Every fault localllm raises on purpose, with its exit code and its HTTP status.

Edges (CLI, HTTP, frames) read `code`, `exit_code`, `http_status`, and never ask for a class::

    LocalLLMError
    ├── BadInput              2   400   usage, plan, schema, prompt
    │   ├── UsageError        2   400
    │   ├── InvalidPlan       2   400   carries every problem found
    │   ├── ConfigInvalid     2   400
    │   ├── PromptTooLong     2   400   code `context_length_exceeded`
    │   ├── Unsupported       2   400   asked for something this build or model cannot do
    │   ├── AmbiguousName     2   400   carries the candidates
    │   ├── PayloadTooLarge   2   413
    │   └── MethodNotAllowed  2   405
    ├── NotFound              3   404   key, setting, file
    │   ├── ModelNotFound     3   404   carries what exists
    │   └── NotRecorded       3   404   carries the nearest recorded request
    ├── NotAllowed            4   403   scope, policy, foreign origin
    │   └── Unauthorized      4   401   no key, wrong key
    ├── TryLater              5   503   carries `retry_after_s`
    │   ├── QueueFull         5   429
    │   ├── InUse             5   409
    │   ├── StalePlan         5   409   carries the preconditions that no longer hold
    │   ├── ModelLoading      5   503
    │   ├── CoolingDown       5   503
    │   ├── ShuttingDown      5   503
    │   └── TimedOut          5   503   the request's own `timeout_s` ran out
    ├── RuntimeFailed         6   500   load, decode, worker
    │   ├── ModelLoadFailed   6   500
    │   ├── OutOfMemory       6   507
    │   ├── DecodeFailed      6   500
    │   └── WorkerDied        6   500
    ├── ServerUnreachable     7   503   no server answers and the command needs one
    ├── Interrupted         130   499
    └── InternalError        70   500   a bug of ours
"""

from __future__ import annotations

from typing import Any, ClassVar


class LocalLLMError(Exception):
    """One sentence for people, an optional way out, and data for programs.

    `param` names the offending input as a JSONPath or an OpenAI parameter name. `data` travels in JSON
    output and in worker frames, so it holds JSON values only.
    """

    code: ClassVar[str] = "internal_error"
    exit_code: ClassVar[int] = 70
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str | None = None, param: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message or self.code
        self.hint = hint
        self.param = param
        self.data = data

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON: `code`, `message`, `exit_code`, and `hint`, `param`, `data` where present."""
        out: dict[str, Any] = {"code": self.code, "message": self.message, "exit_code": self.exit_code}
        if self.hint is not None:
            out["hint"] = self.hint
        if self.param is not None:
            out["param"] = self.param
        if self.data:
            out["data"] = self.data
        return out


class BadInput(LocalLLMError):
    """What was asked is malformed."""

    code = "bad_input"
    exit_code = 2
    http_status = 400


class UsageError(BadInput):
    """The command line does not parse."""

    code = "usage"


class InvalidPlan(BadInput):
    """A plan breaks its schema; `data["problems"]` lists every `{path, message}`."""

    code = "invalid_plan"


class ConfigInvalid(BadInput):
    """A setting in the file, the environment or a flag is wrong."""

    code = "config_invalid"


class PromptTooLong(BadInput):
    """The prompt does not fit the context."""

    code = "context_length_exceeded"


class Unsupported(BadInput):
    """The request is well formed, but this build, model or executor cannot do it."""

    code = "unsupported"


class AmbiguousName(BadInput):
    """A short name fits several models; `data["candidates"]` lists them."""

    code = "ambiguous_name"


class PayloadTooLarge(BadInput):
    """The request body is over the limit."""

    code = "payload_too_large"
    http_status = 413


class MethodNotAllowed(BadInput):
    """The HTTP path exists, but not for this method."""

    code = "method_not_allowed"
    http_status = 405


class NotFound(LocalLLMError):
    """A key, setting, file or path does not exist."""

    code = "not_found"
    exit_code = 3
    http_status = 404


class ModelNotFound(NotFound):
    """No model has that name; `data["available"]` lists those that exist."""

    code = "model_not_found"


class NotRecorded(NotFound):
    """A playback holds no such request; `data["nearest"]` says which comes closest and what differs."""

    code = "not_recorded"


class NotAllowed(LocalLLMError):
    """Policy forbids it."""

    code = "forbidden"
    exit_code = 4
    http_status = 403


class Unauthorized(NotAllowed):
    """No key, or a wrong one."""

    code = "invalid_api_key"
    http_status = 401


class TryLater(LocalLLMError):
    """It would work later; `retry_after_s` is the hint for the `Retry-After` header."""

    code = "unavailable"
    exit_code = 5
    http_status = 503
    default_retry_after_s: ClassVar[int] = 1

    @property
    def retry_after_s(self) -> int:
        return int(self.data.get("retry_after_s", self.default_retry_after_s))


class QueueFull(TryLater):
    """More requests wait than the queue holds."""

    code = "queue_full"
    http_status = 429


class InUse(TryLater):
    """A running request or another process holds it."""

    code = "in_use"
    http_status = 409


class StalePlan(TryLater):
    """A saved report's preconditions no longer hold; `data["failed"]` names them."""

    code = "stale_plan"
    http_status = 409


class ModelLoading(TryLater):
    """The model is still being loaded."""

    code = "model_loading"
    default_retry_after_s = 2


class CoolingDown(TryLater):
    """The worker died too often and is left alone for a while."""

    code = "cooling_down"
    default_retry_after_s = 10


class ShuttingDown(TryLater):
    """The server takes no new work."""

    code = "shutting_down"


class TimedOut(TryLater):
    """The answer was not complete within the request's own `timeout_s`."""

    code = "timed_out"


class RuntimeFailed(LocalLLMError):
    """llama.cpp or a worker failed."""

    code = "runtime_failed"
    exit_code = 6
    http_status = 500


class ModelLoadFailed(RuntimeFailed):
    """The model cannot be loaded; the message gives the reason in plain words."""

    code = "model_load_failed"


class OutOfMemory(RuntimeFailed):
    """The model or its context does not fit in memory."""

    code = "out_of_memory"
    http_status = 507


class DecodeFailed(RuntimeFailed):
    """A decode step failed."""

    code = "decode_failed"


class WorkerDied(RuntimeFailed):
    """The worker process ended while a request ran."""

    code = "worker_died"


class ServerUnreachable(LocalLLMError):
    """No server answers at `--server`, and the command needs one."""

    code = "server_unreachable"
    exit_code = 7
    http_status = 503


class Interrupted(LocalLLMError):
    """Ctrl-C, or the client went away."""

    code = "interrupted"
    exit_code = 130
    http_status = 499


class InternalError(LocalLLMError):
    """A bug of ours; the traceback is in the log."""


def error_classes() -> dict[str, type[LocalLLMError]]:
    """Every error class by its `code`, so that an error that crossed a process boundary keeps its class."""
    found: dict[str, type[LocalLLMError]] = {}
    waiting = LocalLLMError.__subclasses__()
    while waiting:
        cls = waiting.pop()
        found.setdefault(cls.code, cls)
        waiting.extend(cls.__subclasses__())
    return found


def error_from_dict(raw: dict[str, Any]) -> LocalLLMError:
    """Rebuild the error that `as_dict` wrote; an unknown code becomes `RuntimeFailed` with that code in `data`."""
    cls = error_classes().get(str(raw.get("code")))
    data = dict(raw.get("data") or {})
    if cls is None:
        cls, data = RuntimeFailed, {**data, "code": raw.get("code")}
    return cls(str(raw.get("message") or ""), hint=raw.get("hint"), param=raw.get("param"), **data)
