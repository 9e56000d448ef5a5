"""TLS by a real certificate, made here: encryption, rotation, client certificates."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.serve.test_webconfig import DIGEST, write
from tuner._exceptions import InputError
from tuner.serve.server import WebServer
from tuner.serve.webconfig import read_web_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.applications import Starlette

    AppOf = Callable[..., Starlette]
    Started = Callable[..., WebServer]


def _openssl(*arguments: str) -> None:
    binary = shutil.which("openssl")
    if binary is None:
        assert not os.environ.get("CI"), "openssl is missing: install openssl"
        pytest.skip("openssl is not installed (Debian: openssl)")
    subprocess.run([binary, *arguments], check=True, capture_output=True, timeout=60)


def _certificate(folder: Path, name: str, serial: int) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1 and localhost, with its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-keyout", str(key), "-out", str(certificate), "-days", "2", "-set_serial", str(serial),
        "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
    )  # fmt: skip
    return certificate, key


@pytest.fixture
def started(app_of: AppOf, tmp_path: Path) -> Iterator[Started]:
    """Start a server with a web configuration of this text; it has a certificate ``server``."""
    servers: list[WebServer] = []
    _certificate(tmp_path, "server", 11)

    def start(text: str, listen: str = "127.0.0.1:0") -> WebServer:
        config = read_web_config(write(tmp_path / "web-config.yml", text))
        servers.append(WebServer(app_of(), listen, config))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def _trusting(*certificates: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for certificate in certificates:
        context.load_verify_locations(certificate)
    return context


def _serial(server: WebServer, context: ssl.SSLContext) -> int:
    """Return the serial number of the certificate that a new connection is shown."""
    import socket

    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20.0) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        return int(str(secure.getpeercert()["serialNumber"]), 16)  # type: ignore[index]  # it is verified


TLS = "tls_server_config: {cert_file: server.crt, key_file: server.key}\n"


def test_answers_are_encrypted(started: Started, tmp_path: Path) -> None:
    """HTTPS with the certificate of the file; plain HTTP gets nothing."""
    server = started(TLS)
    assert server.url.startswith("https://127.0.0.1:")
    trusted = _trusting(tmp_path / "server.crt")
    assert httpx2.get(f"{server.url}/-/healthy", verify=trusted).status_code == 200
    with pytest.raises(httpx2.HTTPError):
        httpx2.get(f"http://{server.address}/-/healthy")
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{server.url}/-/healthy")


def test_old_versions_of_tls_are_refused(started: Started, tmp_path: Path) -> None:
    """With TLS13 as the least, a client that speaks TLS 1.2 does not get through."""
    server = started(TLS.replace("}", ", min_version: TLS13}"))
    old = _trusting(tmp_path / "server.crt")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{server.url}/-/healthy", verify=old)
    assert httpx2.get(f"{server.url}/-/healthy", verify=_trusting(tmp_path / "server.crt")).is_success


def test_a_renewed_certificate_is_shown_without_a_restart(started: Started, tmp_path: Path) -> None:
    """New connections see the new certificate; a broken one leaves the last good one in place."""
    server = started(TLS)
    first = tmp_path / "first.crt"
    shutil.copy(tmp_path / "server.crt", first)
    assert _serial(server, _trusting(first)) == 11
    certificate, key = _certificate(tmp_path, "next", 22)
    shutil.move(key, tmp_path / "server.key")
    shutil.move(certificate, tmp_path / "server.crt")
    assert _serial(server, _trusting(tmp_path / "server.crt")) == 22
    second = tmp_path / "second.crt"
    shutil.copy(tmp_path / "server.crt", second)
    write(tmp_path / "server.crt", "broken")
    assert _serial(server, _trusting(second)) == 22


def test_a_client_without_a_certificate_is_turned_away(started: Started, tmp_path: Path) -> None:
    """A required client certificate is authentication enough for every interface."""
    certificate, key = _certificate(tmp_path, "client", 33)
    text = TLS.replace("}", ", client_ca_file: client.crt, client_auth_type: RequireAndVerifyClientCert}")
    server = started(text, "0.0.0.0:0")
    url = f"https://127.0.0.1:{server.port}/metrics"
    with pytest.raises(httpx2.HTTPError):
        httpx2.get(url, verify=_trusting(tmp_path / "server.crt"))
    known = _trusting(tmp_path / "server.crt")
    known.load_cert_chain(certificate, key)
    assert httpx2.get(url, verify=known).status_code == 200


def test_giving_up_client_certificates_takes_a_restart(started: Started, tmp_path: Path) -> None:
    """The demand taken out of the file, or users in its place: strangers stay out all the same."""
    certificate, key = _certificate(tmp_path, "client", 33)
    text = TLS.replace("}", ", client_ca_file: client.crt, client_auth_type: RequireAndVerifyClientCert}")
    server = started(text, "0.0.0.0:0")
    url = f"https://127.0.0.1:{server.port}/metrics"
    known = _trusting(tmp_path / "server.crt")
    known.load_cert_chain(certificate, key)
    for later in (TLS, "", f"basic_auth_users: {{p: {DIGEST}}}"):
        write(tmp_path / "web-config.yml", later)
        assert httpx2.get(url, verify=known).status_code in {200, 401}
        with pytest.raises(httpx2.HTTPError):
            httpx2.get(url, verify=_trusting(tmp_path / "server.crt"))


def test_a_key_of_another_certificate_refuses_to_start(started: Started, tmp_path: Path) -> None:
    """The line names both files."""
    _certificate(tmp_path, "other", 44)
    with pytest.raises(InputError, match=r"server\.crt and .*other\.key") as refused:
        started(TLS.replace("server.key", "other.key"))
    assert "\n" not in str(refused.value)
