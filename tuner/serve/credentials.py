"""Who asks: passwords and tokens, compared in constant time and at a bounded price.

A bcrypt check costs 50 ms to a second of one core by design. A scrape every 15 s must not pay that, and a
stranger who guesses must not make the tuner pay it all day.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

REMEMBERED: Final = 100
"""Pairs of user and password that are remembered, right and wrong ones apart, least recently used go first.
A misconfigured scraper that sends one wrong password for ever costs one check."""
BURST: Final = 10.0
"""Wrong passwords that are checked at once before the rate counts."""
PER_SECOND: Final = 0.5
"""Then so many a second: 43 000 guesses a day, against 2^46 in a password of eight random letters and
digits. At cost 10 (59 ms measured) that is 3 % of one core, at cost 14 (0.95 s) half a core."""
BCRYPT_BYTES: Final = 72
"""bcrypt reads so many bytes of a password; hashes of longer ones were made of these."""
MAX_TOKEN: Final = 4096

_KEY = secrets.token_bytes(32)
"""Of this process: what is remembered cannot be looked up elsewhere, and times tell nothing about it."""
_NOBODY: Final = b"-"
"""Stands for the hash of a user who does not exist where pairs are named."""


class Basic(NamedTuple):
    """What a Basic authorisation header holds."""

    user: str
    password: bytes


def read_basic(header: str) -> Basic | None:
    """Return user and password of a header, ``None`` for anything else."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(text.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return Basic(user.decode("utf-8", "replace"), password) if colon else None


def read_bearer(header: str) -> str | None:
    """Return the token of a Bearer authorisation header, ``None`` for anything else."""
    scheme, _, token = header.partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def token_matches(given: str, file: Path | None) -> bool:
    """Tell whether a token is the one in a file, read now; an absent, empty or unreadable one never does."""
    if file is None:
        return False
    try:
        with file.open("rb") as opened:
            expected = opened.read(MAX_TOKEN + 1).strip()
    except OSError:
        return False
    if not expected or len(expected) > MAX_TOKEN:
        return False
    return hmac.compare_digest(_digest(given.encode("utf-8", "surrogateescape")), _digest(expected))


class Passwords:
    """Checks passwords against bcrypt hashes; thread-safe, one check at a time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Take the clock of the rate, in seconds."""
        self._monotonic = monotonic
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self._allowance, self._seen = BURST, monotonic()
        self.checks = 0
        """bcrypt computations so far."""

    def remembered(self, users: Mapping[str, bytes], basic: Basic) -> bool | None:
        """Return what is known of a pair without computing anything, ``None`` if it was never seen."""
        key = _key(users.get(basic.user, _NOBODY), basic)
        with self._lock:
            for held, verdict in ((self._right, True), (self._wrong, False)):
                if key in held:
                    held.move_to_end(key)
                    return verdict
        return None

    def admit(self) -> bool:
        """Take one check off the allowance; False when strangers have used it up for now."""
        with self._lock:
            now = self._monotonic()
            self._allowance = min(BURST, self._allowance + PER_SECOND * (now - self._seen))
            self._seen = now
            if self._allowance < 1.0:
                return False
            self._allowance -= 1.0
            return True

    def check(self, users: Mapping[str, bytes], basic: Basic) -> bool:
        """Compute whether the password is the user's, and remember it. Takes 50 ms to a second.

        A right password gives its part of the allowance back.
        """
        with self._checking:
            known = self.remembered(users, basic)
            if known is not None:
                return known
            digest = users.get(basic.user)
            # For a name that does not exist the same work is done, so that time does not tell names.
            matches = _bcrypt(basic.password, digest or next(iter(users.values())))
            right = matches and digest is not None
            with self._lock:
                self.checks += 1
                held = self._right if right else self._wrong
                held[_key(digest or _NOBODY, basic)] = None
                if len(held) > REMEMBERED:
                    held.popitem(last=False)
                if right:
                    self._allowance = min(BURST, self._allowance + 1.0)
            return right


def _bcrypt(password: bytes, digest: bytes) -> bool:
    import bcrypt  # noqa: PLC0415  # a compiled module that only a server with users needs

    try:
        return bcrypt.checkpw(password[:BCRYPT_BYTES], digest)
    except ValueError:  # a byte that bcrypt does not take: nobody has such a password
        return False


def _key(digest: bytes, basic: Basic) -> bytes:
    """Name a pair: another hash in the file, and what was remembered counts no more."""
    parts = (digest, basic.user.encode("utf-8", "replace"), basic.password)
    return _digest(b"".join(len(part).to_bytes(4, "big") + part for part in parts))


def _digest(value: bytes) -> bytes:
    return hmac.new(_KEY, value, hashlib.sha256).digest()
