"""uvicorn's HTTP protocol with our error body for bytes that are no HTTP request."""

from __future__ import annotations

from msgspec import json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..errors import BadInput
from .errors import error_object


class HttpProtocol(HttpToolsProtocol):
    """One connection; what cannot be parsed gets the same shape as every other fault."""

    def send_400_response(self, _msg: str) -> None:
        """Answer and close: where the next request would begin is not known."""
        body = json.encode(error_object(BadInput("what came is not an HTTP request")))
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + body)
        self.transport.close()
