"""``tuner status`` against the HTTP side alone: findings, access, certificates, columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.serve.test_tls import _certificate
from tests.serve.test_webconfig import DIGEST
from tests.serve.worlds import Ledger, finding, snapshot
from tuner.cli import tuner
from tuner.serve.app import build_app
from tuner.serve.server import WebServer
from tuner.serve.webconfig import read_web_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from click.testing import Result

    from tuner.serve.snapshot import Snapshot

    Started = Callable[..., WebServer]


@pytest.fixture
def started() -> Iterator[Started]:
    """Serve a snapshot, with a web configuration if one is given."""
    servers: list[WebServer] = []

    def start(shown: Snapshot | None = None, web_config: Path | None = None) -> WebServer:
        view = shown or snapshot()
        config = None if web_config is None else read_web_config(web_config)
        app = build_app(lambda: view, auth=config, history=Ledger())
        servers.append(WebServer(app, "127.0.0.1:0", config))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def _status(server: WebServer, *options: str) -> Result:
    return CliRunner().invoke(tuner, ["status", "--url", server.url, *options])


def _secured(folder: Path, text: str) -> Path:
    path = folder / "web-config.yml"
    path.write_text(text)
    return path


def test_it_names_what_is_wrong_and_where_the_rest_is(started: Started) -> None:
    """Warnings and graver ones with pool and message, equal ones once; of the others only their number."""
    grave = replace(finding("worst", pool="thin"), severity="critical")
    slight = replace(finding("slight", pool="chat"), severity="info")
    both = (finding("thin_data", pool="chat"), finding("thin_data", pool="thin"))
    server = started(snapshot(findings=(slight, *both, grave)))
    shown = _status(server).output
    assert f"findings: 1 critical, 2 warning, 1 info, all at {server.url}/api/v1/findings" in shown
    lines = [line.strip() for line in shown.splitlines()]
    assert "critical worst, pool thin: worst was noticed. Look at it." in lines
    assert "warning thin_data, pool chat, pool thin: thin_data was noticed. Look at it." in lines
    assert "slight" not in shown


def test_words_are_left_aligned_and_jobs_that_never_ran_have_no_seconds(started: Started) -> None:
    """A column of words begins where its heading does; a job without a run shows no 0.000."""
    lines = _status(started()).output.splitlines()
    heading = next(line for line in lines if line.startswith("pool "))
    row = next(line for line in lines if line.startswith("chat "))
    for column, cell in (("mode", "observe"), ("best by", "1-")):
        assert row[heading.index(column) :].startswith(cell)
    assert next(line for line in lines if line.startswith("retention")).endswith(" -")
    assert next(line for line in lines if line.startswith("scrape")).endswith("0.500")


def test_a_user_is_let_in_by_a_password_from_a_file(started: Started, tmp_path: Path) -> None:
    """Without it the refusal names the options; half of a user is refused before anybody is asked."""
    server = started(web_config=_secured(tmp_path, f"basic_auth_users: {{alice: '{DIGEST}'}}\n"))
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    who = ("--username", "alice", "--password-file", str(secret))
    assert _status(server, *who).exit_code == 0
    assert "refused (401): give --username and --password-file" in str(_status(server).exception)
    assert "together" in str(_status(server, "--username", "alice").exception)
    token = ("--token-file", str(secret))
    assert "not both" in str(_status(server, *who, *token).exception)


def test_a_certificate_that_is_not_trusted_names_the_option(started: Started, tmp_path: Path) -> None:
    """It is no matter of a daemon that is down: with the authority it is answered."""
    certificate, key = _certificate(tmp_path, "server", 7)
    text = f"tls_server_config: {{cert_file: '{certificate}', key_file: '{key}'}}\n"
    server = started(web_config=_secured(tmp_path, text))
    assert "--ca-file" in str(_status(server).exception)
    assert _status(server, "--ca-file", str(certificate)).exit_code == 0


def test_an_older_daemon_is_understood(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not name its worst findings is asked as before."""
    from tuner.cli import status

    asked = status.ask

    def without(*given: Any) -> dict[str, Any]:
        document = asked(*given)
        del document["worst_findings"]
        return document

    monkeypatch.setattr(status, "ask", without)
    assert "findings: 3 warning" in _status(started()).output
