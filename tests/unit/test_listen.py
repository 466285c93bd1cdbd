"""Where the server may listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from localllm.api.listen import bind, check_exposure, find_place, url_of
from localllm.errors import BadInput, InUse, NotAllowed


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_free_port_is_found_and_told() -> None:
    place = find_place("127.0.0.1", 0)
    (bound,) = bind(place)

    with bound:
        port = bound.getsockname()[1]
        assert port > 0
        assert url_of(place, bound) == f"http://127.0.0.1:{port}"


def test_a_taken_port_is_named_with_its_host(taken: int) -> None:
    with pytest.raises(InUse, match=f"port {taken} on `127.0.0.1` is taken") as caught:
        bind(find_place("127.0.0.1", taken))

    assert "--port 0" in (caught.value.hint or "")


def test_localhost_listens_on_both_loopbacks_with_one_port() -> None:
    sockets = bind(find_place("localhost", 0))

    try:
        assert sockets[0].family == socket.AF_INET
        assert len({bound.getsockname()[1] for bound in sockets}) == 1
    finally:
        for bound in sockets:
            bound.close()


@pytest.mark.parametrize("host", ["999.1.1.1", "127.0.0", "1.2.3.4.5", "no such host", "192.0.2.1"])
def test_a_host_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(BadInput) as caught:
        bind(find_place(host, 0))

    assert f"`{host}`" in caught.value.message


def test_an_ipv6_address_is_written_in_brackets() -> None:
    place = find_place("::1", 0)
    assert place.is_loopback
    if not socket.has_ipv6:
        return
    sockets = bind(place)

    with sockets[0] as bound:
        assert url_of(place, bound).startswith("http://[::1]:")


def test_a_server_on_all_addresses_is_reached_by_loopback() -> None:
    place = find_place("0.0.0.0", 0)
    (bound,) = bind(place)

    with bound:
        assert place.is_wildcard
        assert url_of(place, bound).startswith("http://127.0.0.1:")


def test_off_loopback_a_key_or_a_clear_word_is_needed() -> None:
    everywhere = find_place("0.0.0.0", 0)
    with pytest.raises(NotAllowed, match="no API key"):
        check_exposure(everywhere, key_is_required=False, insecure=False)
    check_exposure(everywhere, key_is_required=True, insecure=False)
    check_exposure(everywhere, key_is_required=False, insecure=True)
    check_exposure(find_place("127.0.0.1", 0), key_is_required=False, insecure=False)
