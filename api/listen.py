"""Where the server listens: the address is resolved, judged and bound before anything is loaded."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

from attrs import frozen

from ..errors import BadInput, InUse, LocalLLMError, NotAllowed

BACKLOG = 2048
HOST_HINT = "`127.0.0.1` keeps it on this machine, `0.0.0.0` and `::` are all addresses"


@frozen(kw_only=True)
class Place:
    """A host as asked for, and the addresses it means, IPv4 first."""

    host: str
    port: int
    addresses: tuple[tuple[socket.AddressFamily, str], ...]

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return all(_address(text).is_loopback for _, text in self.addresses)

    @property
    def is_wildcard(self) -> bool:
        """Whether it means every address of the machine."""
        return any(_address(text).is_unspecified for _, text in self.addresses)


def needs_no_resolver(host: str) -> bool:
    """Whether the host's meaning is known without asking a name server."""
    return host == "localhost" or _is_address(host.removeprefix("[").removesuffix("]"))


def find_place(host: str, port: int) -> Place:
    """What the host means here. Raises BadInput for a name that means nothing."""
    name = host.removeprefix("[").removesuffix("]")
    if name and all(c in "0123456789." for c in name) and not _is_address(name):
        # a resolver could take seconds to say so
        raise BadInput(f"`{host}` is not an IP address", hint=HOST_HINT, param="host")
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise BadInput(f"host `{host}` is not an address of this machine", hint=HOST_HINT, param="host") from None
    addresses = dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found if _is_ip(family))
    if not addresses:
        raise BadInput(f"host `{host}` is not an address of this machine", hint=HOST_HINT, param="host")
    ordered = sorted(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    kept = ordered[:1]
    if name == "localhost" and (socket.AF_INET6, "::1") not in kept:
        # some clients reach it at ::1 and others at 127.0.0.1, whatever the hosts file says here
        kept.append((socket.AF_INET6, "::1"))
    return Place(host=host, port=port, addresses=tuple(kept))


def check_exposure(place: Place, *, key_is_required: bool, insecure: bool) -> None:
    """Raise NotAllowed where others on the network could use the server without a key."""
    if not (place.is_loopback or key_is_required or insecure):
        raise NotAllowed(
            f"host `{place.host}` is open to the network and no API key is required",
            hint="run `localllm auth enable` first, or accept it with `--insecure`",
            param="host",
        )


def bind(place: Place) -> list[socket.socket]:
    """Listening sockets for the place, all on one port.

    They listen at once: a second server then fails here, in milliseconds, and not after its model is loaded.
    Raises InUse for a taken port, NotAllowed for a privileged one, BadInput for a foreign address.
    """
    first = _listen(place, *place.addresses[0], place.port)
    sockets = [first]
    for family, address in place.addresses[1:]:
        try:
            sockets.append(_listen(place, family, address, first.getsockname()[1]))
        except LocalLLMError:
            # the second address of `localhost` is a convenience: IPv6 may be off, its port another's
            continue
    return sockets


def url_of(place: Place, bound: socket.socket) -> str:
    """The URL at which this machine reaches the server; all addresses are reached by loopback."""
    host, port = bound.getsockname()[:2]
    if place.is_wildcard:
        host = "::1" if bound.family == socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(place: Place, family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    bound = None
    try:
        # the protocol must be named: asyncio turns Nagle's delay off only where it sees TCP, and a delay is 40 ms
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` takes IPv4 clients too
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not _address(address).is_unspecified))
        bound.bind((address, port))
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError as fault:
        if bound is not None:
            bound.close()
        raise _refusal(place, port, fault) from None
    return bound


def _refusal(place: Place, port: int, fault: OSError) -> LocalLLMError:
    match fault.errno:
        case errno.EADDRINUSE:
            return InUse(
                f"port {port} on `{place.host}` is taken",
                hint="`localllm status` shows whether it is a localllm server; `--port 0` takes a free port",
                param="port",
            )
        case errno.EACCES | errno.EPERM:
            return NotAllowed(
                f"port {port} on `{place.host}` needs more rights", hint="take one above 1023", param="port"
            )
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            return BadInput(f"host `{place.host}` is not an address of this machine", hint=HOST_HINT, param="host")
    return BadInput(f"cannot listen on `{place.host}` port {port}: {fault.strerror}", hint=HOST_HINT, param="host")


def _is_ip(family: socket.AddressFamily) -> bool:
    return family in (socket.AF_INET, socket.AF_INET6)


def _address(text: str):  # type: ignore[no-untyped-def]
    return ip_address(text.partition("%")[0])


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
