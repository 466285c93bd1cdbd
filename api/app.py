"""The HTTP application: routes inside, the guard outside, every fault in one shape."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Response
from litestar.exceptions import HTTPException

from ..errors import InternalError
from .admin import admin_routes
from .body import AnyRequest
from .chat import chat_routes
from .errors import as_error, error_headers, error_object
from .guard import ADMIN_PATHS, OPEN_PATHS, Guard
from .metrics import metric_routes
from .models import model_routes, probe_routes
from .server import Server

ROUTES = (chat_routes, model_routes, probe_routes, metric_routes, admin_routes)
POLLED = OPEN_PATHS | {"/metrics"}


def create_app(server: Server) -> Litestar:
    """The application of one server; each request passes the guard first."""

    def answer_fault(request: AnyRequest, fault: Exception) -> Response[dict[str, Any]]:
        error = as_error(fault)
        if isinstance(error, InternalError):
            server.log_fault(fault)
        headers = {**(getattr(fault, "headers", None) or {}), **error_headers(error)}
        detailed = request.scope["path"] in ADMIN_PATHS
        return Response(
            error_object(error, detailed=detailed),
            status_code=error.http_status,
            headers=headers,
            media_type="application/json",
        )

    def record(entry: dict[str, Any]) -> None:
        # orchestrators poll these every second: their lines would push all others out of the log
        polled = entry["path"] in POLLED and entry["status"] == 200
        server.write_log("debug" if polled else "info", "request", entry)

    app = Litestar(
        [route for routes in ROUTES for route in routes(server)],
        exception_handlers={HTTPException: answer_fault, Exception: answer_fault},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=server.max_body_bytes,
    )
    # Litestar's own middleware runs only after a route matched: 404 and 405 would pass unguarded
    app.asgi_handler = Guard(app.asgi_handler, server.policy, server.traffic, record)
    return app
