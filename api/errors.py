"""How a fault looks over HTTP: OpenAI's error object, for every path and every cause."""

from __future__ import annotations

from typing import Any

from litestar.exceptions import HTTPException
from litestar.response.base import ASGIResponse
from msgspec import json

from ..errors import (
    BadInput,
    InternalError,
    InvalidPlan,
    LocalLLMError,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    TryLater,
)

REPORT_HINT = "`localllm logs` has the traceback"


def error_object(error: LocalLLMError, *, detailed: bool = False) -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}` and the `hint`.

    `detailed` adds the whole error under `localllm`, from which our own client rebuilds it; it may name files of
    this machine, so only the administration endpoint sends it.
    """
    body: dict[str, Any] = {
        "message": error.message,
        "type": error_type(error.http_status),
        "param": parameter(error),
        "code": str(error.data.get("code", error.code)),
    }
    if error.hint is not None:
        body["hint"] = error.hint
    if detailed:
        body["localllm"] = error.as_dict()
    return {"error": body}


def error_type(status: int) -> str:
    """OpenAI's `type` for a status."""
    if status >= 500:
        return "server_error"
    return {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error"
    )


def parameter(error: LocalLLMError) -> str | None:
    """The field at fault as OpenAI writes it: `messages[0].role`, where a plan's path says `$.messages[0].role`."""
    path = error.param
    if path is None and isinstance(error, InvalidPlan):
        problems = error.data.get("problems") or [{}]
        path = problems[0].get("path")
    if path is None:
        return None
    return path.removeprefix("$").removeprefix(".") or None


def error_headers(error: LocalLLMError) -> dict[str, str]:
    """The headers that a status asks for: `Retry-After`, `WWW-Authenticate`, `Allow`."""
    headers: dict[str, str] = {}
    if isinstance(error, TryLater):
        headers["retry-after"] = str(error.retry_after_s)
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if "allow" in error.data:
        headers["allow"] = error.data["allow"]
    return headers


def error_response(error: LocalLLMError, *, detailed: bool = False) -> ASGIResponse:
    """The whole answer for a fault that came before the answer's first byte."""
    return json_response(
        error_object(error, detailed=detailed), status_code=error.http_status, headers=error_headers(error)
    )


def json_response(data: Any, *, status_code: int = 200, headers: dict[str, str] | None = None) -> ASGIResponse:
    """A JSON document as an ASGI application."""
    return ASGIResponse(
        body=json.encode(data), media_type="application/json", status_code=status_code, headers=headers or {}
    )


def as_error(fault: Exception) -> LocalLLMError:
    """What any exception means to a client; one that nobody foresaw becomes an `InternalError` without detail."""
    if isinstance(fault, LocalLLMError):
        return fault
    if isinstance(fault, HTTPException):
        return _from_framework(fault)
    return InternalError("the server failed on this request", hint=REPORT_HINT)


def _from_framework(fault: HTTPException) -> LocalLLMError:
    """Litestar's own refusals, all of which come before a handler runs."""
    match fault.status_code:
        case 404:
            return NotFound("no such path", hint="the API lives under `/v1`; `GET /health` answers always")
        case 405:
            return MethodNotAllowed("this path does not take that method")
        case 413:
            return PayloadTooLarge("the request body is too large")
        case status if status >= 500:
            return InternalError("the server failed on this request", hint=REPORT_HINT)
        case _:
            return BadInput(fault.detail or "the request is malformed")
