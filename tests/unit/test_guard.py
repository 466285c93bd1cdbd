"""Who may speak to the server."""

from __future__ import annotations

import pytest
from localllm.api.guard import Policy, check_key, host_is_known, host_name, origin_is_allowed
from localllm.errors import Unauthorized

LOOPBACK = Policy()
OPEN = Policy(hosts=frozenset({"localhost", "box.lan"}), any_address=True)
PAGES = Policy(origins=frozenset({"https://chat.example"}))
ALL_PAGES = Policy(origins=frozenset({"*"}))
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost.:8484", "localhost"),
        ("127.0.0.1:8484", "127.0.0.1"),
        ("[::1]:8484", "::1"),
        ("[::1]", "::1"),
        ("[::1", None),
        ("localhost:port", None),
        ("::1", None),
        ("", None),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str | None) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize("header", ["localhost:1", "127.0.0.1", "[::1]:8484"])
def test_loopback_names_are_known(header: str) -> None:
    assert host_is_known(LOOPBACK, header)


@pytest.mark.parametrize(
    "header", [None, "", "evil.example", "evil.example:8484", "localhost.evil.example", "10.0.0.5"]
)
def test_other_names_are_not(header: str | None) -> None:
    assert not host_is_known(LOOPBACK, header)


def test_a_server_on_all_addresses_takes_any_address_but_only_known_names() -> None:
    assert host_is_known(OPEN, "192.168.1.7:8484")
    assert host_is_known(OPEN, "[fe80::1]:8484")
    assert host_is_known(OPEN, "box.lan")
    assert not host_is_known(OPEN, "evil.example")


def test_the_servers_own_pages_may_post_and_others_may_not() -> None:
    assert origin_is_allowed(LOOPBACK, "http://localhost:8484", "localhost:8484", CHAT)
    assert not origin_is_allowed(LOOPBACK, "http://localhost:3000", "localhost:8484", CHAT)
    assert not origin_is_allowed(LOOPBACK, "https://evil.example", "localhost:8484", CHAT)
    assert not origin_is_allowed(LOOPBACK, "null", "localhost:8484", CHAT)


def test_pages_of_the_settings_may_post() -> None:
    assert origin_is_allowed(PAGES, "https://chat.example", "localhost:8484", CHAT)
    assert origin_is_allowed(PAGES, "https://chat.example", "localhost:8484", "/admin/plans")
    assert not origin_is_allowed(PAGES, "http://chat.example", "localhost:8484", CHAT)


def test_a_star_opens_the_chat_but_not_the_administration() -> None:
    assert origin_is_allowed(ALL_PAGES, "https://any.example", "localhost:8484", CHAT)
    assert not origin_is_allowed(ALL_PAGES, "https://any.example", "localhost:8484", "/admin/plans")


def test_without_a_required_key_anything_goes() -> None:
    check_key(Policy(), None)
    check_key(Policy(), "Bearer whatever")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic right", "right", "Bearer wrong"])
def test_a_missing_or_wrong_key_is_refused(header: str | None) -> None:
    policy = Policy(key_is_required=lambda: True, key_is_valid=lambda key: key == "right")

    with pytest.raises(Unauthorized):
        check_key(policy, header)


@pytest.mark.parametrize("header", ["Bearer right", "bearer right", "Bearer  right "])
def test_the_right_key_is_let_in(header: str) -> None:
    check_key(Policy(key_is_required=lambda: True, key_is_valid=lambda key: key == "right"), header)
