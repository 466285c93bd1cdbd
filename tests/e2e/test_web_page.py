"""A web page in the user's browser cannot drive the server, whatever it posts to the loopback port."""

from __future__ import annotations

import json

import pytest

CHAT = {"model": "local-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/admin/plans": {"plan": {"command": "status"}, "dry_run": False},
}
JSON = {"content-type": "application/json"}
FOREIGN: list[tuple[str, dict[str, str], int]] = [
    ("a form's content type", {"content-type": "application/x-www-form-urlencoded"}, 400),
    ("plain text, which needs no preflight", {"content-type": "text/plain"}, 400),
    ("multipart", {"content-type": "multipart/form-data; boundary=x"}, 400),
    ("a foreign origin", JSON | {"origin": "https://evil.example"}, 403),
    ("a foreign port of this machine", JSON | {"origin": "http://127.0.0.1:1"}, 403),
    ("a sandboxed page", JSON | {"origin": "null"}, 403),
    ("a rebound name", JSON | {"host": "evil.example"}, 403),
    ("a rebound name with our port", JSON | {"host": "evil.example:8484"}, 403),
    ("a name that only begins like ours", JSON | {"host": "localhost.evil.example"}, 403),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("headers, status", [row[1:] for row in FOREIGN], ids=[row[0] for row in FOREIGN])
def test_it_is_refused(echo_server, path, headers, status):
    with echo_server.client() as http:
        reply = http.post(path, content=json.dumps(BODIES[path]), headers=headers)

    assert reply.status_code == status, reply.text
    assert set(reply.json()["error"]) >= {"message", "type", "param", "code"}
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("path", BODIES)
def test_no_content_type_at_all_is_refused(echo_server, path):
    with echo_server.client() as http:
        reply = http.post(path, content=json.dumps(BODIES[path]))

    assert reply.status_code == 400


@pytest.mark.parametrize("path", BODIES)
def test_a_preflight_of_a_foreign_page_grants_nothing(echo_server, path):
    with echo_server.client() as http:
        reply = http.options(
            path,
            headers={"origin": "https://evil.example", "access-control-request-method": "POST"},
        )

    assert not [name for name in reply.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "LOCALHOST"])
def test_a_program_of_this_machine_is_served(echo_server, path, name):
    with echo_server.client() as http:
        host = f"{name}:{echo_server.port}"
        reply = http.post(path, content=json.dumps(BODIES[path]), headers=JSON | {"host": host})

    assert reply.status_code == 200, reply.text


def test_the_own_origin_is_served(echo_server):
    with echo_server.client() as http:
        reply = http.post("/v1/chat/completions", content=json.dumps(CHAT), headers=JSON | {"origin": echo_server.url})

    assert reply.status_code == 200, reply.text


def test_refused_plans_have_no_effect(echo_server):
    """The refused post asks to unload everything; the model is still there afterwards."""
    with echo_server.client() as http:
        assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
        http.post(
            "/admin/plans",
            content=json.dumps({"plan": {"command": "models.unload", "all": True}, "dry_run": False}),
            headers={"content-type": "text/plain", "origin": "https://evil.example"},
        )
        reply = http.post("/admin/plans", json=BODIES["/admin/plans"])

    assert json.loads(reply.text.splitlines()[-1])["data"]["models"]
