"""A web page can't drive the server, and a key is asked for once there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from conftest import RunningServer

CHAT = "/v1/chat/completions"
PAGE = "https://chat.example"
ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
PLAN = {"plan": {"command": "status"}}
POSTS = [(CHAT, ASK), ("/admin/plans", PLAN)]


@pytest.fixture(scope="module")
def http(echo_server: RunningServer) -> Iterator[httpx.Client]:
    with echo_server.client() as client:
        yield client


@pytest.mark.parametrize(("path", "body"), POSTS)
@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:3000", "null"])
def test_a_foreign_page_may_not_post(http: httpx.Client, path: str, body: object, origin: str) -> None:
    answer = http.post(path, json=body, headers={"origin": origin})

    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(("path", "body"), POSTS)
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "10.1.2.3"])
def test_an_unknown_host_name_is_refused(http: httpx.Client, path: str, body: object, host: str) -> None:
    answer = http.post(path, json=body, headers={"host": host})

    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "forbidden"


def test_the_preflight_of_a_foreign_page_gets_no_allow_header(http: httpx.Client) -> None:
    answer = http.options(CHAT, headers={"origin": PAGE, "access-control-request-method": "POST"})

    assert not [name for name in answer.headers if name.startswith("access-control-allow")]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str]]:
    """A server that asks for a key and knows one page; and the key."""
    import subprocess
    import sys

    from conftest import environment_under, start_server

    folder = tmp_path_factory.mktemp("closed")
    env = environment_under(folder, {"LOCALLLM_ALLOWED_ORIGINS": PAGE})
    made = subprocess.run(
        [sys.executable, "-m", "localllm", "auth", "enable", "--output", "json"],
        env=env,
        capture_output=True,
        check=True,
        timeout=200,
    )
    key = json.loads(made.stdout)["key"]
    server = start_server(folder, ("--backend", "echo"), env)
    yield server, key
    server.kill()


def test_a_preflight_needs_no_key(closed: tuple[RunningServer, str]) -> None:
    server, _ = closed
    with server.client() as http:
        answer = http.options(
            CHAT,
            headers={
                "origin": PAGE,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type",
            },
        )

    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic eA=="])
def test_without_the_key_the_page_can_read_why(closed: tuple[RunningServer, str], header: str | None) -> None:
    server, _ = closed
    headers = {"origin": PAGE} | ({} if header is None else {"authorization": header})
    with server.client() as http:
        answer = http.post(CHAT, json=ASK, headers=headers)

    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"


def test_health_and_readiness_are_open_and_the_rest_is_closed(closed: tuple[RunningServer, str]) -> None:
    server, key = closed
    with server.client() as http:
        status = {
            path: http.get(path).status_code for path in ("/health", "/ready", "/v1/models", "/v1/nope", "/health/")
        }
        with_key = http.get("/v1/models", headers={"authorization": f"Bearer {key}"})

    assert status == {"/health": 200, "/ready": 200, "/v1/models": 401, "/v1/nope": 401, "/health/": 401}
    assert with_key.status_code == 200


def test_the_key_is_in_no_answer_and_not_in_the_log(closed: tuple[RunningServer, str]) -> None:
    server, key = closed
    headers = {"authorization": f"Bearer {key}"}
    with server.client(headers=headers) as http:
        texts = [
            http.post("/admin/plans", json={"plan": {"command": c}}).text for c in ("status", "logs", "auth.status")
        ]
        texts.append(http.post(CHAT, json={"messages": 5}).text)

    assert not [text for text in texts if key in text]
    assert key not in server.log()
