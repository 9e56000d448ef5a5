"""Who gets in, and who may change anything (case B64)."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import bcrypt
import httpx2
import pytest

from tests.serve.conftest import TOKEN
from tuner.serve.credentials import BURST, Basic, Passwords, read_basic, read_bearer, token_matches
from tuner.serve.server import WebServer
from tuner.serve.webconfig import WebConfig, read_web_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.applications import Starlette

    Served = Callable[..., httpx2.Client]

READS = (
    "/", "/metrics", "/api/v1/status", "/api/v1/pools", "/api/v1/pools/chat", "/api/v1/windows?pool=chat",
    "/api/v1/openapi.json",
)  # fmt: skip
WRITES = ("POST", "PUT", "PATCH", "DELETE")
PASSWORD = "hunter2"  # noqa: S105  # of these tests only


def bearer(token: str) -> dict[str, str]:
    """Return the header of a token."""
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def users(tmp_path: Path) -> WebConfig:
    """A web configuration with one user, at the lowest bcrypt cost."""
    path = tmp_path / "web-config.yml"
    digest = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    path.write_text(f"basic_auth_users:\n  prometheus: {digest}\n")
    return read_web_config(path)


def test_reload_runs_with_the_token(served: Served, token_file: Path) -> None:
    """With the token and where it is enabled, the settings are read again."""
    calls: list[int] = []
    client = served(token_file=token_file, reload=lambda: calls.append(1))
    answer = client.post("/-/reload", headers=bearer(TOKEN))
    assert (answer.status_code, len(calls)) == (200, 1)


def test_a_reload_that_is_refused_says_why(served: Served, token_file: Path) -> None:
    """The old settings stay, and the answer has the reason."""
    client = served(token_file=token_file, reload=lambda: "tuner.yaml, line 3: no such key")
    answer = client.post("/-/reload", headers=bearer(TOKEN))
    assert answer.status_code == 422
    assert "line 3: no such key" in answer.text


def test_reload_is_off_unless_enabled(served: Served, token_file: Path) -> None:
    """The right token does not open what the operator left off."""
    assert served(token_file=token_file).post("/-/reload", headers=bearer(TOKEN)).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (bearer("wrong"), 403),
        ({"authorization": "Bearer"}, 401),
        (bearer("\xe9\xff"), 403),
        ({"authorization": f"Basic {base64.b64encode(f'x:{TOKEN}'.encode()).decode()}"}, 401),
        ({"authorization": TOKEN}, 401),
    ],
)
def test_nothing_changes_without_the_token(
    served: Served, token_file: Path, headers: dict[str, str], status: int
) -> None:
    """No token is 401, a wrong one 403, and the reload never runs."""
    calls: list[int] = []
    client = served(token_file=token_file, reload=lambda: calls.append(1))
    raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
    answer = client.post("/-/reload", headers=raw)
    assert (answer.status_code, calls) == (status, [])
    if status == 401:
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_without_a_token_file_nothing_can_be_changed(served: Served, tmp_path: Path) -> None:
    """No file configured, a missing or an empty one: every token is wrong."""
    (tmp_path / "empty").write_text("\n")
    for file in (None, tmp_path / "missing", tmp_path / "empty", tmp_path):
        client = served(token_file=file, reload=lambda: None)
        for token in ("None", "-", TOKEN):
            assert client.post("/-/reload", headers=bearer(token)).status_code in {401, 403}


def test_the_token_is_read_at_each_use(served: Served, token_file: Path) -> None:
    """A token that was rotated counts at once, the old one no more."""
    client = served(token_file=token_file, reload=lambda: None)
    token_file.write_text("another")
    assert client.post("/-/reload", headers=bearer(TOKEN)).status_code == 403
    assert client.post("/-/reload", headers=bearer("another")).status_code == 200


@pytest.mark.parametrize("method", [*WRITES, "OPTIONS", "TRACE", "PROPFIND"])
def test_no_other_method_is_answered(served: Served, token_file: Path, method: str) -> None:
    """Whatever the path, a method that could change something is refused, and never by a fault of ours."""
    client = served(token_file=token_file)
    for path in (*READS, "/-/healthy", "/nowhere", "/api/v1/schedules/pin"):
        answer = client.request(method, path)
        assert answer.status_code in {401, 403, 405}, path
        if answer.status_code == 405:
            assert "GET" in answer.headers["allow"]


def test_reads_are_open_on_loopback(served: Served) -> None:
    """Without users, whoever is on this host may read."""
    client = served()
    assert {client.get(path).status_code for path in READS} == {200}


def test_users_close_reads_and_leave_health_open(served: Served, users: WebConfig) -> None:
    """With users every read needs a password; a load balancer still gets its health."""
    client = served(auth=users)
    for path in READS:
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert client.get(path, auth=("prometheus", "wrong")).status_code == 401
        assert client.get(path, auth=("prometheus", PASSWORD)).status_code == 200
    assert {client.get(path).status_code for path in ("/-/healthy", "/-/ready")} == {200}


def test_a_password_changes_nothing(served: Served, users: WebConfig, token_file: Path) -> None:
    """A reader's password does not reload; the token does, and reads too."""
    client = served(auth=users, token_file=token_file, reload=lambda: None)
    assert client.post("/-/reload", auth=("prometheus", PASSWORD)).status_code == 401
    assert client.post("/-/reload", headers=bearer(TOKEN)).status_code == 200
    assert client.get("/api/v1/status", headers=bearer(TOKEN)).status_code == 200


def test_a_scrape_does_not_pay_for_bcrypt_again(app_of: Callable[..., Starlette], users: WebConfig) -> None:
    """The same password is computed once, right or wrong, however often it comes."""
    app = app_of(auth=users)
    server = WebServer(app, "127.0.0.1:0", None)
    server.start()
    try:
        with httpx2.Client(base_url=server.url) as client:
            for password, status in ((PASSWORD, 200), ("wrong", 401)) * 5:
                assert client.get("/metrics", auth=("prometheus", password)).status_code == status
    finally:
        assert server.stop()
    assert app.state.gate.passwords.checks == 2


def test_guessing_is_slowed_down_and_does_not_lock_out_who_is_known(served: Served, users: WebConfig) -> None:
    """After a burst of guesses strangers get 429; a scraper whose password is known goes on."""
    client = served(auth=users)
    assert client.get("/metrics", auth=("prometheus", PASSWORD)).status_code == 200
    codes = [client.get("/metrics", auth=("prometheus", f"guess{i}")).status_code for i in range(30)]
    assert codes[:5] == [401] * 5
    assert codes.count(429) >= 30 - 2 * BURST
    assert client.get("/metrics", auth=("prometheus", PASSWORD)).status_code == 200


def test_the_allowance_comes_back_with_time(users: WebConfig) -> None:
    """A right password costs nothing of it, wrong ones are refilled at the rate."""
    now = [0.0]
    passwords = Passwords(lambda: now[0])
    assert [passwords.admit() for _ in range(12)] == [True] * 10 + [False] * 2
    now[0] = 4.0
    assert [passwords.admit() for _ in range(3)] == [True, True, False]
    now[0] = 6.0
    assert passwords.admit()
    assert passwords.check(users.users, Basic("prometheus", PASSWORD.encode()))
    assert passwords.admit()


def test_what_is_remembered_is_bounded(users: WebConfig) -> None:
    """A stranger with many passwords does not fill the memory, nor push out who is right."""
    passwords = Passwords(lambda: 0.0)
    right = Basic("prometheus", PASSWORD.encode())
    assert passwords.check(users.users, right)
    for number in range(150):
        passwords.check(users.users, Basic("prometheus", str(number).encode()))
    assert passwords.remembered(users.users, right) is True
    assert passwords.remembered(users.users, Basic("prometheus", b"0")) is None
    assert passwords.remembered(users.users, Basic("prometheus", b"149")) is False


def test_another_hash_forgets_the_old_password(users: WebConfig) -> None:
    """What was right under the old hash is looked at again under the new one."""
    passwords = Passwords(lambda: 0.0)
    old = Basic("prometheus", PASSWORD.encode())
    assert passwords.check(users.users, old)
    changed = {"prometheus": bcrypt.hashpw(b"new", bcrypt.gensalt(4))}
    assert passwords.remembered(changed, old) is None
    assert not passwords.check(changed, old)


def test_odd_passwords_are_judged_not_crashed_on(users: WebConfig) -> None:
    """NUL bytes, 100 bytes, nothing: an answer, never a fault."""
    passwords = Passwords(lambda: 0.0)
    for password in (b"", b"\0", b"a\0b", b"\xff" * 100):
        assert passwords.check(users.users, Basic("prometheus", password)) is False


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Basic dTpw", Basic("u", b"p")),
        ("basic dTpwOnE=", Basic("u", b"p:q")),
        ("Basic dXA=", None),
        ("Basic !!", None),
        ("Bearer dTpw", None),
        ("", None),
    ],
)
def test_basic_headers_are_read(header: str, found: Basic | None) -> None:
    """User and password, split at the first colon; anything else is no credential."""
    assert read_basic(header) == found


def test_tokens_are_compared_whole(tmp_path: Path) -> None:
    """A beginning of the token, another case, or an endless file is not the token."""
    file = tmp_path / "token"
    file.write_text(" secret \n")
    assert token_matches("secret", file)
    assert not token_matches("secre", file)
    assert not token_matches("SECRET", file)
    file.write_text("x" * 10_000)
    assert not token_matches("x" * 10_000, file)
    assert read_bearer("bearer  abc ") == "abc"
    assert read_bearer("Bearer") is None
