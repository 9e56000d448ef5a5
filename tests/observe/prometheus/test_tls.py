"""Metrics servers behind TLS: trusted by a file, refused without, and bounded in time as plain ones are."""

from __future__ import annotations

import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.observe.prometheus.stub import Stub, hang, matrix, reply, trickle
from tests.observe.prometheus.test_client import NOW, TOKENS, UP, ask
from tests.servers import program
from tuner.observe.prometheus import PrometheusSource

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 with its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    pem, key = folder / "server.pem", folder / "key.pem"
    subprocess.run(
        [
            program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", "/CN=tests", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key),
            "-out", str(pem),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    pem.write_text(pem.read_text() + key.read_text())
    return pem


def served(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def source(url: str, ca_file: Path | None = None) -> PrometheusSource:
    return PrometheusSource("main", url, ca_file=ca_file, scrape_interval=15.0, timeout=0.5)


def test_a_certificate_named_by_file_is_trusted(certificate: Path) -> None:
    """The file's authority counts in place of the system's; it is read at each use."""
    with Stub(reply(matrix(UP, TOKENS)), tls=served(certificate)).serve() as stub:
        got = ask(source(stub.url, certificate))
        assert got.error is None
        assert [len(scrapes) for scrapes in got.scraped.values()] == [1]


def test_an_unknown_certificate_is_refused(certificate: Path) -> None:
    """Nothing is sent to a server that cannot prove who it is, and nothing is tried again."""
    with Stub(reply(matrix(UP)), tls=served(certificate)).serve() as stub:
        error = ask(source(stub.url)).error
        assert error is not None
        assert "certificate refused" in error.reason
        assert not error.retryable
        assert stub.requests == []


@pytest.mark.parametrize("answer", [hang, trickle])
def test_a_hang_under_tls_ends_in_time(answer: object, certificate: Path) -> None:
    """The deadline reaches through the encryption."""
    assert callable(answer)
    with Stub(answer, tls=served(certificate)).serve() as stub:
        error = ask(source(stub.url, certificate), NOW).error
        assert error is not None
        assert "no whole answer within" in error.reason


def test_a_server_that_is_silent_before_tls_ends_in_time(certificate: Path) -> None:
    """A port that accepts and never speaks is no handshake for ever."""
    with Stub(hang).serve() as stub:
        error = ask(source(stub.url.replace("http:", "https:"), certificate)).error
        assert error is not None
        assert error.retryable
