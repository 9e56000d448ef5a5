"""The listener: where it may listen, what it takes, how it starts and stops."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import bcrypt
import httpx2
import pytest

from tuner._exceptions import InputError
from tuner.serve.listen import is_loopback, read_listener
from tuner.serve.server import WebServer
from tuner.serve.webconfig import WebConfig, read_web_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.applications import Starlette

    Served = Callable[..., httpx2.Client]
    AppOf = Callable[..., Starlette]

OPEN_TO_OTHERS = ("0.0.0.0:0", "[::]:0", ":0", "192.0.2.7:0", "[2001:db8::1]:0")


@pytest.fixture
def users(tmp_path: Path) -> WebConfig:
    """A web configuration with one user."""
    path = tmp_path / "web-config.yml"
    path.write_text(f"basic_auth_users:\n  p: {bcrypt.hashpw(b'hunter2', bcrypt.gensalt(4)).decode()}\n")
    return read_web_config(path)


@pytest.mark.parametrize("listen", OPEN_TO_OTHERS)
def test_a_listener_for_others_refuses_to_start_without_authentication(app_of: AppOf, listen: str) -> None:
    """The line names the address and what to do, before anything is bound."""
    with pytest.raises(InputError, match="basic_auth_users") as refused:
        WebServer(app_of(), listen, None)
    assert listen in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_web_config_without_users_does_not_open_a_listener(app_of: AppOf, tmp_path: Path) -> None:
    """A file alone is no authentication."""
    path = tmp_path / "web-config.yml"
    path.write_text("http_server_config: {}")
    with pytest.raises(InputError, match="keeps strangers out"):
        WebServer(app_of(), "0.0.0.0:0", read_web_config(path))


def test_a_listener_for_others_asks_for_a_password(app_of: AppOf, users: WebConfig) -> None:
    """With users it starts; reads need the password, whatever the name, and health does not."""
    server = WebServer(app_of(), "0.0.0.0:0", users)
    server.start()
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
            assert client.get("/metrics").status_code == 401
            assert client.get("/-/healthy", headers={"host": "tuner.example"}).status_code == 200
            answer = client.get("/metrics", auth=("p", "hunter2"), headers={"host": "tuner.example"})
            assert answer.status_code == 200
    finally:
        assert server.stop()


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0", "127.0.0.2:0"])
def test_loopback_listens_without_authentication(app_of: AppOf, listen: str) -> None:
    """IPv4, IPv6 and the name; the address tells the port that was taken."""
    if listen.startswith("[") and not socket.has_ipv6:
        pytest.skip("no IPv6 on this host")
    server = WebServer(app_of(), listen, None)
    try:
        server.start()
    except InputError as error:
        if listen.startswith("[") and "assign" in str(error):
            pytest.skip("no IPv6 loopback on this host")
        raise
    try:
        assert server.port > 0
        assert server.address.endswith(f":{server.port}")
        assert httpx2.get(f"{server.url}/-/healthy").status_code == 200
    finally:
        assert server.stop()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("", False),
        ("0.0.0.0", False),  # noqa: S104  # not bound
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_loopback_is_told_from_everything_else(address: str, expected: bool) -> None:
    """Only what this host alone can reach counts."""
    assert is_loopback(address) is expected


@pytest.mark.parametrize(
    "listen", ["", "9477", "host", "host:", "host:99999", "a b:1", "[::1]", "http://x:1"]
)
def test_what_is_no_address_is_refused(listen: str) -> None:
    """The line shows how one is written."""
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9477"):
        read_listener(listen)


def test_an_unknown_host_is_refused() -> None:
    """A name that means nothing is one line (`.invalid` is reserved for that, RFC 2606)."""
    with pytest.raises(InputError, match=r"no address is known for nowhere\.invalid"):
        read_listener("nowhere.invalid:1")


def test_a_taken_port_is_refused(app_of: AppOf) -> None:
    """Two daemons on one port: the second says which port and why."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        server = WebServer(app_of(), listen, None)
        with pytest.raises(InputError, match=listen):
            server.start()
        assert server.stop()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:80", 200),
        ("[::1]:9477", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:9477", 421),
        ("10.0.0.1", 421),
        ("", 421),
        ("[::1", 421),
    ],
)
def test_a_rebound_name_is_not_answered_on_loopback(served: Served, host: str, status: int) -> None:
    """A page whose name was pointed at 127.0.0.1 reads nothing, not even health."""
    client = served()
    for path in ("/metrics", "/-/healthy", "/api/v1/status", "/"):
        assert client.get(path, headers={"host": host}).status_code == status


def test_every_answer_has_its_headers_and_names_no_server(served: Served) -> None:
    """Good answers, refusals and faults alike."""
    client = served()
    for path in ("/", "/metrics", "/-/ready", "/nowhere", "/api/v1/pools/nowhere", "/api/v1/status?x=1"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "server" not in headers


def test_large_bodies_are_refused_without_being_read(served: Served) -> None:
    """A megabyte, or a body of unknown length, is not taken from anybody."""
    client = served()
    assert client.post("/-/reload", content=b"x" * 1_000_000).status_code == 413
    assert client.post("/-/reload", content=iter([b"x"] * 10)).status_code == 411
    assert client.get("/-/healthy").status_code == 200


def _raw(port: int, request: bytes) -> bytes:
    """Send bytes and return what comes back until the connection ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=20.0) as connection:
        connection.sendall(request)
        out = b""
        while piece := connection.recv(65_536):
            out += piece
    return out


def test_rubbish_on_the_wire_is_answered_and_forgotten(served: Served) -> None:
    """What is no HTTP, endless heads and websockets get 4xx, and the server goes on."""
    client = served()
    port = client.base_url.port
    assert port is not None
    assert _raw(port, b"\x16\x03\x01rubbish\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert _raw(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 80_000).startswith(b"HTTP/1.1 4")
    head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
    upgrade = head + b"Connection: upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    assert _raw(port, upgrade).startswith(b"HTTP/1.1 200")
    assert client.get("/-/healthy").status_code == 200


def test_a_request_that_never_ends_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that does not come whole in time costs its connection, and no other."""
    monkeypatch.setattr("tuner.serve.protocol.HEAD_SECONDS", 0.2)
    client = served()
    port = client.base_url.port
    assert port is not None
    with contextlib.suppress(ConnectionResetError):
        assert _raw(port, b"GET / HTTP/1.1\r\nHost: local") == b""
    assert client.get("/-/healthy").status_code == 200
    assert client.get("/-/healthy").status_code == 200


def test_a_stop_lets_answers_in_progress_end(app_of: AppOf) -> None:
    """A request that runs is answered, then the port is free; a second stop does nothing."""
    begun, go = threading.Event(), threading.Event()
    answers: list[int] = []
    history = _Slow(begun, go)
    server = WebServer(app_of(history=history), "127.0.0.1:0", None)
    server.start()
    caller = threading.Thread(
        target=lambda: answers.append(httpx2.get(f"{server.url}/api/v1/events", timeout=30.0).status_code)
    )
    caller.start()
    assert begun.wait(20.0)
    stopper = threading.Thread(target=lambda: answers.append(int(server.stop(5.0))))
    stopper.start()
    go.set()
    caller.join(20.0)
    stopper.join(20.0)
    assert sorted(answers) == [1, 200]
    assert server.stop()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{server.url}/-/healthy")


def test_a_stop_is_bounded(app_of: AppOf) -> None:
    """An answer that never ends is left behind."""
    begun, go = threading.Event(), threading.Event()
    server = WebServer(app_of(history=_Slow(begun, go)), "127.0.0.1:0", None)
    server.start()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            httpx2.get(f"{server.url}/api/v1/events", timeout=60.0)
        except httpx2.HTTPError as error:
            failures.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    try:
        assert begun.wait(20.0)
        server.stop(0.3)
    finally:
        go.set()
        caller.join(30.0)
    assert not caller.is_alive()
    assert server.stop(10.0)


class _Slow:
    """A database whose events wait to be let go."""

    def __init__(self, begun: threading.Event, go: threading.Event) -> None:
        self._begun, self._go = begun, go

    def events(self, limit: int) -> list[object]:
        """Wait."""
        del limit
        self._begun.set()
        assert self._go.wait(60.0)
        return []
