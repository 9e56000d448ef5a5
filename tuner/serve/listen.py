"""Where the server listens, and whether only this host can reach it."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from tuner._exceptions import InputError

_LISTEN = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<host>[^\s\[\]:/]*)):(?P<port>\d{1,5})")
_LARGEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Listener:
    """Addresses to listen on, all with one port; looked up once, so that what was judged is bound."""

    text: str
    """As the operator wrote it."""
    addresses: tuple[str, ...]
    """IP addresses; one empty string for every interface."""
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this host can connect."""
        return all(is_loopback(address) for address in self.addresses)


def read_listener(text: str) -> Listener:
    """Read ``host:port``, ``[v6]:port`` or ``:port`` (every interface), and look a host name up.

    Raises:
        InputError: it is none of these, or no such host is known.
    """
    match = _LISTEN.fullmatch(text)
    if match is None or int(match["port"]) > _LARGEST_PORT:
        raise InputError(
            f"web.listen {text!r} is not an address to listen on: write host:port, as in 127.0.0.1:9477"
        )
    host, port = match["v6"] or match["host"] or "", int(match["port"])
    if not host:
        return Listener(text, ("",), port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise InputError(
            f"web.listen {text!r}: no address is known for {host}: write an IP address, or mend its name"
        ) from None
    # An address may come with its scope, which binding needs: fe80::1%eth0.
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return Listener(text, tuple(addresses), port)


def is_loopback(address: str) -> bool:
    """Tell whether an IP address, or the name ``localhost``, is this host seen from itself only."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address.lower().rstrip(".") == "localhost"
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def bind(listener: Listener) -> list[socket.socket]:
    """Return bound sockets, one an address. Port 0 takes a free port, the same for all.

    An address of a host name whose protocol this host does not speak is left out, as long as one remains.

    Raises:
        InputError: nothing could be bound; the message names the address and what is wrong.
    """
    bound: list[socket.socket] = []
    failed: OSError | None = None
    port = listener.port
    for address in listener.addresses:
        try:
            bound.append(_bind(address, port))
        except OSError as error:
            failed = error
            continue
        port = bound[0].getsockname()[1]
    if not bound:
        reason = failed.strerror if failed is not None and failed.strerror else str(failed)
        raise InputError(
            f"web.listen {listener.text}: cannot listen there ({reason}): stop what uses the port, or take "
            "another address"
        )
    return bound


def _bind(address: str, port: int) -> socket.socket:
    if not address and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def format_address(address: tuple[str, int]) -> str:
    """Return ``host:port``, an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
