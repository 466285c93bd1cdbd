"""Every fault has OpenAI's shape, on every path, and the server lives on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from conftest import RunningServer

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
ASK = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def http(echo_server: RunningServer) -> Iterator[httpx.Client]:
    with echo_server.client() as client:
        yield client


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error object, once its shape is checked."""
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'{"messages": NaN}',
        b'{"messages": {}}',
        b'{"messages": []}',
        b'{"messages": "hi"}',
    ],
)
def test_a_malformed_body_is_a_400(http: httpx.Client, body: bytes) -> None:
    answer = http.post(CHAT, content=body, headers=JSON)

    assert answer.status_code == 400
    assert error_of(answer)["type"] == "invalid_request_error"
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "sent",
    [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"],
    ids=["text", "header", "TLS"],
)
def test_bytes_that_are_no_http_request_are_a_400_and_close_the_connection(
    echo_server: RunningServer, http: httpx.Client, sent: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", echo_server.port), timeout=100) as link:
        link.sendall(sent)
        with link.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")  # up to the end: it is closed
    headers = dict(line.lower().split(": ") for line in head.decode().splitlines()[1:])

    assert head.startswith(b"HTTP/1.1 400 ")
    assert error_of(httpx.Response(400, headers=headers, content=body))["type"] == "invalid_request_error"
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_value_is_a_400_also_for_a_stream(http: httpx.Client, stream: bool) -> None:
    answer = http.post(CHAT, json=ASK | {"temperature": "hot", "stream": stream})

    assert answer.status_code == 400
    assert error_of(answer)["param"] == "temperature"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
@pytest.mark.parametrize("path", [CHAT, "/admin/plans"])
def test_another_content_type_is_a_400(http: httpx.Client, path: str, kind: str) -> None:
    answer = http.post(path, content=b"{}", headers={"content-type": kind})

    assert answer.status_code == 400
    assert "application/json" in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/nope", 404),
        ("GET", "/", 404),
        ("GET", "/v1/models/no/such/model", 404),
        ("GET", "/v1/models/../../etc/passwd", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("PUT", "/admin/plans", 405),
    ],
)
def test_a_wrong_path_or_method_has_the_same_shape(http: httpx.Client, method: str, path: str, status: int) -> None:
    answer = http.request(method, path, headers=JSON)

    assert answer.status_code == status
    assert error_of(answer)["type"] == "invalid_request_error"


def test_a_405_says_what_is_allowed(http: httpx.Client) -> None:
    assert "POST" in http.get(CHAT).headers["allow"]


def test_a_body_over_the_limit_is_a_413(http: httpx.Client) -> None:
    answer = http.post(CHAT, content=b" " * 20_000_000, headers=JSON)

    assert answer.status_code == 413
    assert error_of(answer)["code"] == "payload_too_large"


def test_a_body_over_the_limit_without_a_length_is_a_413(http: httpx.Client) -> None:
    answer = http.post(CHAT, content=(b" " * 1_000_000 for _ in range(20)), headers=JSON)

    assert answer.status_code == 413


def test_a_declared_length_is_refused_before_the_body_comes(echo_server: RunningServer) -> None:
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", echo_server.port), timeout=100) as raw:
        raw.sendall(head.encode())

        assert raw.recv(4096).startswith(b"HTTP/1.1 413")


def test_an_unknown_model_is_a_404_and_never_another_models_answer(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=ASK | {"model": "beta"})

    error = error_of(answer)
    assert answer.status_code == 404
    assert error["code"] == "model_not_found"
    assert error["type"] == "invalid_request_error"
    assert "`beta`" in error["message"]


def test_models_are_listed_as_openai_lists_them(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    (model,) = listed["data"]

    assert listed["object"] == "list"
    assert model["object"] == "model"
    assert isinstance(model["created"], int)
    assert model["owned_by"]
    assert http.get(f"/v1/models/{model['id']}").json() == model


def test_health_says_who_answers(http: httpx.Client) -> None:
    health = http.get("/health").json()

    assert health["status"] == "ok"
    assert health["server"] == "localllm"
    assert health["instance"]
    assert health["version"]


def test_every_answer_has_an_id_that_the_log_has_too(http: httpx.Client, echo_server: RunningServer) -> None:
    request_id = http.get("/v1/models").headers["x-request-id"]

    logged = http.post("/admin/plans", json={"plan": {"command": "logs", "lines": 200}})
    assert request_id in logged.text


def test_probes_may_ask_for_the_head_alone(http: httpx.Client) -> None:
    assert [http.head(path).status_code for path in ("/health", "/ready")] == [200, 200]


def test_an_empty_stop_text_is_a_400(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=ASK | {"stop": ["x", ""]})

    assert answer.status_code == 400
    assert error_of(answer)["param"] == "stop[1]"
    assert "is empty" in error_of(answer)["message"]
