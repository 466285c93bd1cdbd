"""What every POST has to be: JSON, said so, and not too long."""

from __future__ import annotations

from typing import Any

from litestar import Request

from ..errors import BadInput
from .json_body import parse_object

AnyRequest = Request[Any, Any, Any]


async def json_object(request: AnyRequest) -> dict[str, Any]:
    """The request's JSON object.

    Raises BadInput for another content type: a page may send a form across origins without asking, JSON never.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadInput("the content type must be `application/json`", hint="send `content-type: application/json`")
    return parse_object(await request.body())


def asks_for_dry_run(request: AnyRequest) -> bool:
    """The query parameter `dry_run`. Raises BadInput for what is neither true nor false."""
    value = request.query_params.get("dry_run", "false")
    known = {"true": True, "1": True, "": True, "false": False, "0": False}
    if value not in known:
        raise BadInput("`dry_run` must be true or false", param="dry_run")
    return known[value]
