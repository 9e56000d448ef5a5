"""Prometheus' web configuration: what is taken, what is refused, and on one line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import bcrypt
import pytest
import structlog

from tuner._exceptions import InputError
from tuner.serve.live import LiveWebConfig
from tuner.serve.webconfig import read_web_config

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = bcrypt.hashpw(b"hunter2", bcrypt.gensalt(4)).decode()


def write(path: Path, text: str) -> Path:
    """Write a file so that its change shows, and return it."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before + 1_000_000_000, before + 1_000_000_000))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the configuration is."""
    return tmp_path / "web-config.yml"


def test_users_and_headers_are_read(file: Path) -> None:
    """The sections of the format that an exporter's file usually has."""
    text = (
        f"basic_auth_users:\n  alice: {DIGEST}\n  bob: {DIGEST.replace('$2b$', '$2y$')}\n"
        "http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: SAMEORIGIN\n"
    )
    config = read_web_config(write(file, text))
    assert set(config.users) == {"alice", "bob"}
    assert config.headers == {"x-frame-options": "SAMEORIGIN"}
    assert config.authenticates
    assert DIGEST not in repr(config)


def test_an_empty_file_asks_for_nothing(file: Path) -> None:
    """As with exporters, an empty file is a file without TLS and users."""
    config = read_web_config(write(file, ""))
    assert (config.tls, dict(config.users), config.authenticates) == (None, {}, False)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("tls_server_config: [", "line 1"),
        ("- a", "mapping"),
        ("basic_auth_user: {}", "basic_auth_user"),
        ("basic_auth_users: [a]", "basic_auth_users"),
        ("basic_auth_users: {alice: hunter2}", "bcrypt"),
        ("basic_auth_users: {alice: 5}", "bcrypt"),
        (f"basic_auth_users: {{'a:b': {DIGEST}}}", "colon"),
        (f"basic_auth_users: {{alice: {DIGEST.replace('$04$', '$31$')}}}", "cost 31"),
        (f"basic_auth_users: {{alice: {DIGEST.replace('$04$', '$03$')}}}", "cost 3"),
        ("http_server_config: {headers: {Server: x}}", "headers.Server"),
        ('http_server_config: {headers: {X-Frame-Options: "a\\nb"}}', "one line"),
        ("http_server_config: {rate_limit: {}}", "rate_limit"),
        ("tls_server_config: {cert_file: a}", "key_file is missing"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}", "min_version"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS13, max_version: TLS12}", "above"),
        ("tls_server_config: {cert_file: a, key_file: b, client_allowed_sans: [x]}", "client_allowed_sans"),
        ("tls_server_config: {cert_file: a, key_file: b, cipher_suites: [x]}", "cipher_suites"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAnyClientCert}", "vouches"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: Nonsense}", "client_auth_type"),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "need each other"),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}",
            "need each other",
        ),
        ("tls_server_config: {cert_file: a, key_file: b}", "not a certificate"),
        ("tls_server_config: {cert_file: [a], key_file: b}", "must be text"),
    ],
)
def test_a_bad_file_is_refused_on_one_line(file: Path, text: str, part: str) -> None:
    """The file and the fault are named, and no hash is repeated."""
    with pytest.raises(InputError) as refused:
        read_web_config(write(file, text))
    line = str(refused.value)
    assert str(file.parent) in line
    assert part in line
    assert "\n" not in line
    assert DIGEST not in line


def test_a_missing_and_a_binary_file_are_refused(file: Path) -> None:
    """What cannot be read is one line too."""
    with pytest.raises(InputError, match="cannot be read"):
        read_web_config(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not YAML"):
        read_web_config(file)
    file.write_bytes(b"#" * (1 << 21))
    with pytest.raises(InputError, match="1 MiB"):
        read_web_config(file)


def test_a_change_of_users_counts_at_once(file: Path) -> None:
    """A user who was added or removed is so with the next request."""
    live = LiveWebConfig(read_web_config(write(file, f"basic_auth_users: {{alice: {DIGEST}}}")))
    assert set(live.current().users) == {"alice"}
    write(file, f"basic_auth_users: {{bob: {DIGEST}}}")
    assert set(live.current().users) == {"bob"}


def test_a_bad_change_keeps_the_old_users_and_is_logged_once(file: Path) -> None:
    """An operator's slip of the pen locks nobody out and lets nobody in."""
    live = LiveWebConfig(read_web_config(write(file, f"basic_auth_users: {{alice: {DIGEST}}}")))
    write(file, "basic_auth_users: {alice: hunter2}")
    with structlog.testing.capture_logs() as logs:
        assert [set(live.current().users) for _ in range(3)] == [{"alice"}] * 3
    assert [entry["log_level"] for entry in logs] == ["error"]
    assert "bcrypt" in logs[0]["reason"]
    assert "hunter2" not in str(logs)
    file.unlink()
    assert set(live.current().users) == {"alice"}
    write(file, f"basic_auth_users: {{carol: {DIGEST}}}")
    assert set(live.current().users) == {"carol"}


def test_users_may_not_vanish_where_others_can_reach(file: Path) -> None:
    """Emptying the file of a public listener keeps the old users instead of opening it."""
    live = LiveWebConfig(read_web_config(write(file, f"basic_auth_users: {{alice: {DIGEST}}}")))
    live.must_authenticate = True
    write(file, "")
    assert set(live.current().users) == {"alice"}
    live.must_authenticate = False
    write(file, "# empty")
    assert not live.current().users
