"""Addresses of engines: what counts as one, and templates that make one of a target's labels.

The settings check a template with it before discovery fills it in, so both mean the same thing.
Placeholders are names, never expressions: what a label says cannot run anything.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from tuner._exceptions import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMES = ("http", "https")
"""All that is ever asked: discovery cannot point the tuner at files or other protocols."""
DEFAULT_PORTS = {"http": 80, "https": 443}
PARTS = ("address", "host", "port", "scheme", "path")
"""Placeholders of an engine's own address; ``labels.NAME`` and ``__meta_NAME`` are its labels."""

_PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_NAME = re.compile(r"(?:labels\.)?([A-Za-z_][A-Za-z0-9_]*)")
_SAFE = re.compile(r"[A-Za-z0-9._~-]{1,253}")
"""What a label may put into an address: no character that ends a host or begins something else.
253 is the longest host name (RFC 1035, 2.3.4)."""


_V4_IN_V6 = tuple(map(ipaddress.ip_network, ("::/96", "64:ff9b::/96")))
"""IPv4-compatible addresses (RFC 4291) and those of NAT64 (RFC 6052): the last 32 bits are of IPv4."""


def split_any(url: str) -> SplitResult:
    """Split a URL of any scheme.

    Raises:
        InputError: ``url`` is none; the message does not repeat it, it may hold a secret.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port  # a property that raises for ports above 65535
    except ValueError:
        raise InputError("is not a URL: write it as in http://127.0.0.1:9090") from None
    if any(character.isspace() or not character.isprintable() for character in url):
        raise InputError("is not a URL: remove the blanks in it")
    return parts


def split_url(url: str) -> SplitResult:
    """Split an HTTP address; a query is allowed, a user name is not.

    Raises:
        InputError: ``url`` is no such address; the message does not repeat it, it may hold a secret.
    """
    parts = split_any(url)
    if "@" in parts.netloc:
        raise InputError(
            "holds a user name or password: put the secret in a file and name it by a *_file key"
        )
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise InputError("is not an HTTP address: write it as in http://127.0.0.1:9090")
    return parts


def same_address(url: str) -> tuple[str, str, int | None, str, str] | None:
    """Return what tells one address from another, or ``None`` for what is none.

    Scheme, host, port, path and query: two spellings of one engine give the same.
    """
    try:
        parts = split_any(url)
    except InputError:
        return None
    port = parts.port or DEFAULT_PORTS.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), port, parts.path.rstrip("/"), parts.query


def is_link_local(host: str) -> bool:
    """Whether a host is a link-local address, where clouds serve the credentials of a machine.

    In every spelling that the system's resolver takes for one: IPv4 within IPv6 (mapped, compatible, 6to4,
    NAT64), one number, hexadecimal, octal, fewer than four parts. Names are not looked up.
    """
    text = host.strip("[]").rstrip(".")
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(text))
        except (OSError, UnicodeError, ValueError):
            return False
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _V4_IN_V6):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        return address.is_link_local or (inner is not None and inner.is_link_local)
    return address.is_link_local


def check_template(template: str) -> None:
    """Refuse a template that could never give an HTTP address.

    Raises:
        InputError: an unknown placeholder, an unclosed one, or no HTTP address around them.
    """
    for name in _PLACEHOLDER.findall(template):
        if not _known(name):
            raise InputError(
                "has an unknown placeholder: use {{ address }}, {{ host }}, {{ port }}, {{ scheme }}, "
                "{{ path }}, {{ labels.NAME }} or {{ __meta_NAME }}"
            )
    sample = {"scheme": "http", "path": "", "port": "80", "address": "127.0.0.1:80"}
    filled = _PLACEHOLDER.sub(lambda found: sample.get(found[1], "127.0.0.1"), template)
    if "{" in filled or "}" in filled:
        raise InputError("has a placeholder that does not end: write {{ address }}")
    parts = split_url(re.sub(r":127\.0\.0\.1(?=/|$)", ":80", filled))
    if parts.query or parts.fragment:
        raise InputError("has a query or fragment: give the address and path only")


def fill_template(template: str, url: str, labels: Mapping[str, str]) -> str:
    """Return the address that ``template`` gives for the engine at ``url``.

    Args:
        template: as :func:`check_template` accepts it.
        url: the engine's base address, without the path of its metrics.
        labels: all labels of the target, those that begin with ``__`` too.

    Raises:
        InputError: a label is missing, or its value has characters that do not belong in an address.
    """
    parts = split_url(url)
    host = _bracketed(parts.hostname or "")
    port = str(parts.port or DEFAULT_PORTS[parts.scheme])
    own = {
        "address": f"{host}:{port}", "host": host, "port": port,
        "scheme": parts.scheme, "path": parts.path.rstrip("/"),
    }  # fmt: skip

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return own[name] if name in own else _from_label(name.removeprefix("labels."), labels)

    filled = _PLACEHOLDER.sub(value, template)
    split_url(filled)
    return filled.rstrip("/")


def _known(name: str) -> bool:
    """Whether a placeholder is a part of the address, or a label's name."""
    return name in PARTS or (
        _NAME.fullmatch(name) is not None and name.startswith(("labels.", "__meta_", "__address__"))
    )


def _from_label(name: str, labels: Mapping[str, str]) -> str:
    """Return a label's value for use in an address."""
    value = labels.get(name, "")
    if not value:
        raise InputError(f"label {name} is not set: take another placeholder, or set it in discovery")
    bracketed = _bracketed(value)
    if bracketed == value and not _SAFE.fullmatch(value):
        raise InputError(
            f"label {name} cannot be part of an address: use one of letters, digits, dots and dashes"
        )
    return bracketed


def _bracketed(host: str) -> str:
    """Return an IPv6 address in brackets, anything else as it is."""
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host  # noqa: PLR2004 - of IP
    except ValueError:
        return host
