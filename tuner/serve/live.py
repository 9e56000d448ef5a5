"""The web configuration as it is now: read again when one of its files changes, kept when that fails."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from tuner._exceptions import InputError
from tuner.serve.webconfig import WebConfig, read_web_config

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

_LOG = structlog.get_logger(__name__)


class LiveWebConfig:
    """Follows the files of a :class:`WebConfig`; thread-safe.

    Users, headers, and the certificate with its key change at once. Whether there is TLS, and whose
    certificates clients must show, takes a restart: what was asked of a connection that is open cannot be
    asked again, and mixing the two could let a stranger in.
    """

    def __init__(self, config: WebConfig) -> None:
        """Begin with what was read at the start."""
        self._lock = threading.Lock()
        self._config = config
        self._seen = _state(config.files)
        self._context = None if config.tls is None else config.tls.context()
        self.must_authenticate = False
        """A file that would let strangers in is refused; set where others can reach the listener."""

    def current(self) -> WebConfig:
        """Return the configuration; a bad file keeps the old one and is logged once for each change."""
        with self._lock:
            seen = _state(self._config.files)
            if seen != self._seen:
                self._seen = seen
                self._reload()
            return self._config

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the certificate as it is now, ``None`` without TLS."""
        self.current()
        return self._context

    def _reload(self) -> None:
        try:
            config = self._merged(read_web_config(self._config.path))
            context = None if config.tls is None else config.tls.context()
        except InputError as error:
            _LOG.error("web configuration refused, the old one stays", reason=str(error))
            return
        self._config, self._context = config, context
        self._seen = _state(config.files)
        _LOG.info("web configuration read again", file=str(config.path), users=len(config.users))

    def _merged(self, new: WebConfig) -> WebConfig:
        """Return ``new`` with what cannot change while the server runs as it was.

        Raises:
            InputError: nothing would keep strangers out.
        """
        old = self._config.tls
        kept = old
        if old is not None and new.tls is not None:
            kept = replace(old, cert_file=new.tls.cert_file, key_file=new.tls.key_file)
        if kept != new.tls:
            _LOG.warning("TLS on or off, versions and client certificates change with a restart only")
        merged = replace(new, tls=kept)
        if self.must_authenticate and not merged.authenticates:
            raise InputError(
                f"{new.path}: no basic_auth_users are left, and others can reach this listener: keep one"
            )
        return merged


def _state(files: tuple[Path, ...]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what tells a file that was changed or replaced, as Kubernetes does by a link."""
    out: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            found = file.stat()
        except OSError:
            out.append(None)
        else:
            out.append((found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(out)


def follow_certificate(live: LiveWebConfig) -> ssl.SSLContext:
    """Return the context for a listener, which shows each new connection the newest certificate."""
    base = live.context()
    assert base is not None, "no TLS is configured"

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _base: ssl.SSLContext) -> None:
        newest = live.context()
        if newest is not None and newest is not base:
            connection.context = newest

    base.sni_callback = choose
    return base
