"""Prometheus' ``web-config.yml``: TLS, headers and users, as exporters and Prometheus itself read it.

The format is that of exporter-toolkit (docs/web-configuration.md of its repository). What would change who
gets in and is not supported here is refused, never passed over.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tuner._exceptions import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_BYTES: Final = 1 << 20
"""A configuration of a megabyte holds ten thousand users."""
COSTS: Final = range(4, 15)
"""Bcrypt costs that are taken. Cost 14 is a second of one core for each password that is tried; 31, the
largest there is, would be a day."""
BCRYPT_LENGTH: Final = 60

SECTIONS: Final = ("tls_server_config", "http_server_config", "basic_auth_users")
TLS_KEYS: Final = (
    "cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version", "max_version",
    "prefer_server_cipher_suites",
)  # fmt: skip
HTTP_KEYS: Final = ("http2", "headers")
HEADERS: Final = (
    "Content-Security-Policy", "Strict-Transport-Security", "X-Content-Type-Options", "X-Frame-Options",
    "X-XSS-Protection",
)  # fmt: skip
"""Headers that the format lets an operator set."""

CLIENT_AUTH: Final = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
UNVERIFIED: Final = ("RequestClientCert", "RequireClientCert", "RequireAnyClientCert")
"""Kinds that take certificates nobody vouches for; Python's TLS cannot ask for one without checking it."""
VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class Tls:
    """How connections are encrypted, and whose certificates are asked for."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    max_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that are read."""
        more = () if self.client_ca_file is None else (self.client_ca_file,)
        return (self.cert_file, self.key_file, *more)

    def context(self) -> ssl.SSLContext:
        """Return a context of the files as they are now.

        Raises:
            InputError: a certificate, key or authority cannot be read, or they do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version, context.maximum_version = self.min_version, self.max_version
        try:
            # A password callback keeps OpenSSL from asking for one on the terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.cert_file} and {self.key_file}: not a certificate and its unencrypted key "
                f"({_reason(error)}): give both in PEM form, readable by the tuner's user"
            ) from None
        if self.client_ca_file is not None:
            try:
                context.load_verify_locations(self.client_ca_file)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"{self.client_ca_file}: no certificate authority ({_reason(error)}): give it in PEM form"
                ) from None
        context.verify_mode = self.client_auth
        return context


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says."""

    path: Path
    tls: Tls | None = None
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Name -> bcrypt hash."""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def authenticates(self) -> bool:
        """Whether a stranger is kept out: by a password, or by a certificate that is required."""
        return bool(self.users) or self.requires_certificate

    @property
    def requires_certificate(self) -> bool:
        """Whether every connection shows a verified certificate."""
        return self.tls is not None and self.tls.client_auth is ssl.CERT_REQUIRED

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file whose change matters."""
        return (self.path, *(() if self.tls is None else self.tls.files))


def read_web_config(path: Path) -> WebConfig:
    """Read a ``web-config.yml``, and everything that it names.

    Raises:
        InputError: the file cannot be read, has an unknown or unsupported key, or a bad value.
    """
    document = _load(path)
    _only(document, SECTIONS, path, "")
    tls = document.get("tls_server_config")
    server = document.get("http_server_config") or {}
    _mapping(server, path, "http_server_config")
    _only(server, HTTP_KEYS, path, "http_server_config.")
    config = WebConfig(
        path,
        None if tls is None else _tls(tls, path),
        _users(document.get("basic_auth_users") or {}, path),
        _headers(server.get("headers") or {}, path),
    )
    if config.tls is not None:
        config.tls.context()
    return config


def _load(path: Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415  # 15 ms that only a daemon with such a file pays

    try:
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise InputError(f"{path}: larger than 1 MiB, no web configuration is")
        document = yaml.safe_load(body.decode())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): name a readable file") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        # The text of the fault is left out: it quotes the line, which may hold a hash.
        raise InputError(f"{path}{where}: not YAML: mend it as in Prometheus' web-config.yml") from None
    return _mapping({} if document is None else document, path, "the file")


def _mapping(value: Any, path: Path, where: str) -> dict[str, Any]:  # noqa: ANN401  # anything YAML gives
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{path}: {where} must be a mapping of names to values")
    return value


def _only(section: Mapping[str, Any], known: tuple[str, ...], path: Path, prefix: str) -> None:
    for key in section:
        if key not in known:
            raise InputError(
                f"{path}: {prefix}{key} is not supported: use only {', '.join(known)}, and remove the rest"
            )


def _tls(value: Any, path: Path) -> Tls | None:  # noqa: ANN401  # anything YAML gives
    section = _mapping(value, path, "tls_server_config")
    _only(section, TLS_KEYS, path, "tls_server_config.")
    if not section:
        return None
    texts = {key: section.get(key) or "" for key in TLS_KEYS[:-1]}
    for key, text in texts.items():
        if not isinstance(text, str):
            raise InputError(f"{path}: tls_server_config.{key} must be text")
    for key in ("cert_file", "key_file"):
        if not texts[key]:
            raise InputError(f"{path}: tls_server_config.{key} is missing: TLS needs a certificate and a key")
    mode = _client_auth(texts["client_auth_type"], path)
    if bool(texts["client_ca_file"]) != (mode is not ssl.CERT_NONE):
        raise InputError(
            f"{path}: tls_server_config: client_ca_file and a client_auth_type that verifies "
            "(RequireAndVerifyClientCert) need each other: give both or none"
        )
    low, high = (_version(texts[key], key, path) for key in ("min_version", "max_version"))
    if low and high and low > high:
        raise InputError(f"{path}: tls_server_config: min_version lies above max_version")
    folder = path.parent
    return Tls(
        folder / texts["cert_file"],
        folder / texts["key_file"],
        folder / texts["client_ca_file"] if texts["client_ca_file"] else None,
        mode,
        low or ssl.TLSVersion.TLSv1_2,
        high or ssl.TLSVersion.TLSv1_3,
    )


def _client_auth(kind: str, path: Path) -> ssl.VerifyMode:
    if kind in UNVERIFIED:
        raise InputError(
            f"{path}: tls_server_config.client_auth_type {kind} would take certificates nobody vouches for, "
            "which is not supported: use RequireAndVerifyClientCert"
        )
    if kind not in CLIENT_AUTH:
        known = ", ".join(name for name in CLIENT_AUTH if name)
        raise InputError(f"{path}: tls_server_config.client_auth_type is unknown: use one of {known}")
    return CLIENT_AUTH[kind]


def _version(text: str, key: str, path: Path) -> ssl.TLSVersion | None:
    if text and text not in VERSIONS:
        raise InputError(f"{path}: tls_server_config.{key}: use TLS12 or TLS13, older ones are not safe")
    return VERSIONS.get(text)


def _users(value: Any, path: Path) -> dict[str, bytes]:  # noqa: ANN401  # anything YAML gives
    users: dict[str, bytes] = {}
    for number, (name, digest) in enumerate(_mapping(value, path, "basic_auth_users").items(), start=1):
        where = f"{path}: basic_auth_users, entry {number}"
        if not name or ":" in name:
            raise InputError(f"{where}: a user name is not empty and has no colon")
        if not _is_bcrypt(digest):
            raise InputError(f"{where}: not a bcrypt hash: make one with `htpasswd -nBC 10 NAME`")
        if int(digest[4:6]) not in COSTS:
            raise InputError(
                f"{where}: bcrypt cost {int(digest[4:6])} is out of bounds: each password tried would take "
                f"too long or too little, use {COSTS.start} to {COSTS.stop - 1}"
            )
        users[name] = digest.encode()
    return users


def _is_bcrypt(digest: object) -> bool:
    return (
        isinstance(digest, str)
        and len(digest) == BCRYPT_LENGTH
        and digest.isascii()
        and digest[:4] in {"$2a$", "$2b$", "$2y$"}
        and digest[4:6].isdigit()
        and digest[6] == "$"
    )


def _headers(value: Any, path: Path) -> dict[str, str]:  # noqa: ANN401  # anything YAML gives
    headers = _mapping(value, path, "http_server_config.headers")
    _only(headers, HEADERS, path, "http_server_config.headers.")
    for name, text in headers.items():
        if not isinstance(text, str) or not text.isascii() or not text.isprintable():
            raise InputError(f"{path}: http_server_config.headers.{name} must be one line of ASCII text")
    return {name.lower(): text for name, text in headers.items() if text}


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return str(error.reason).lower().replace("_", " ")
    return getattr(error, "strerror", None) or "unusable"
