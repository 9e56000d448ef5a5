"""``once``, ``status`` and ``doctor`` against a simulated fleet in a process of its own."""

from __future__ import annotations

import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from tests.daemon.processes import PATIENCE, Daemon, Fleet, python, write_config
from tuner.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

NOBODY = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    """Return the address of a simulated fleet."""
    with Fleet() as running:
        yield running.url


def _tuner(*arguments: str) -> tuple[int, str, str]:
    """Run the command; return exit code, stdout and stderr."""
    process = python(*arguments)
    out, error = process.communicate(timeout=PATIENCE)
    return process.returncode, out, error


def _invoke(*arguments: str) -> Result:
    """Run the command in this process, for what needs no other."""
    from click.testing import CliRunner

    from tuner.cli import tuner

    return CliRunner().invoke(tuner, list(arguments), catch_exceptions=True)


def test_a_dry_run_reads_engines_and_touches_no_database(fleet: str, tmp_path: Path) -> None:
    """Four scrapes two seconds apart: windows, findings and reasons as JSON; no file is made."""
    config = write_config(tmp_path, fleet)
    code, out, error = _tuner("once", "--config.file", str(config), "--dry-run", "--scrapes", "4", "--json")
    assert code == 0, error
    document = json.loads(out)
    assert document["windows"]["total"] >= 4
    assert document["schedule"] is None
    assert document["schedule_unknown"]
    assert "about 6 s" in error
    assert "scrape 4 of 4: 4 engines" in error
    assert list(tmp_path.iterdir()) == [config]


def test_once_saves_what_it_saw_and_leaves_a_busy_database_alone(fleet: str, tmp_path: Path) -> None:
    """Without --dry-run windows are saved; beside a daemon it refuses; status tells how that daemon is."""
    from tuner.store import open_store

    config = write_config(tmp_path, fleet)
    code, out, error = _tuner("once", "--config.file", str(config), "--scrapes", "3")
    assert code == 0, error
    assert "pool fixed" in out
    store = open_store(f"sqlite:///{tmp_path}/tuner.db")
    assert len(store.recent_windows("fixed", 0.0, 1000)) >= 4
    store.close()
    with Daemon(config) as daemon:
        daemon.until('tuner_source_up{source="scrape:fixed"}', 1.0)
        code, _, error = _tuner("once", "--config.file", str(config))
        assert code == 2
        assert "a daemon works on this database" in error
        code, out, _ = _tuner("status", "--url", daemon.url)
        assert code == 0
        assert "leading" in out
        assert "engines: 4 up, 0 down" in out
        assert "fixed  advise" in out
        code, out, _ = _tuner("status", "--url", daemon.url, "--json")
        assert json.loads(out)["pool_list"][0]["pool"] == "fixed"


def test_an_engine_has_one_name_from_scrape_to_answer(fleet: str, tmp_path: Path) -> None:
    """Its windows are named by rank; goodput and the table that was read back are told under its own name."""
    with Daemon(write_config(tmp_path, fleet)) as daemon:
        daemon.until_told('tuner_goodput_tokens_per_second{engine="fixed-0",pool="fixed"}')
        daemon.until('tuner_job_runs_total{job_name="readback"}', 1.0)
        engine, *_ = daemon.get("/api/v1/engines").json()["engines"]
        assert engine["engine"] == "fixed-0"
        assert engine["tokens_per_second"] > 0.0
        assert engine["window_engines"] == ["fixed-0/0"]
        assert engine["read_back"]
        assert engine["running"]
        assert "engines run" in daemon.get("/").text


def test_status_of_a_daemon_that_is_not_ready_is_1(tmp_path: Path) -> None:
    """It answers, says why, and the exit code tells scripts."""
    config = write_config(tmp_path, NOBODY)
    config.write_text(config.read_text().replace("/tuner.db", "/away/tuner.db"))
    with Daemon(config) as daemon:
        daemon.log.wait("started")
        code, out, _ = _tuner("status", "--url", daemon.url)
        assert code == 1
        assert "not ready: " in out
        assert "away" in out


@pytest.mark.parametrize("url", [NOBODY, "nonsense", "http://"])
def test_status_of_nobody_is_2(url: str) -> None:
    """A daemon that cannot be asked is an error with the remedy."""
    result = _invoke("status", "--url", url)
    assert "check that tuner run is up, and --url" in str(result.exception)


def test_a_page_that_is_not_there_names_the_setting(fleet: str, tmp_path: Path) -> None:
    """The bare address of a simulated fleet is no engine: 404 sends nobody to a log."""
    config = write_config(tmp_path, fleet)
    way = f"http_sd: '{fleet}/targets/fixed', identity: [pod]"
    config.write_text(config.read_text().replace(way, f"static: ['{fleet}']"))
    shown = _invoke("doctor", "--config.file", str(config)).output
    assert "answers HTTP 404: is that the right address? see engines.metrics_path" in shown
    assert "see there" not in shown


@pytest.mark.parametrize("verb", ["run", "once", "doctor"])
def test_settings_that_are_not_named_are_asked_for(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the option and where the help is, and exit code 2."""
    with pytest.raises(SystemExit) as left:
        main([verb])
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, "")
    assert said.err == f"error: tuner {verb}: Missing option '--config.file'. See tuner {verb} --help\n"


class _Stranger(BaseHTTPRequestHandler):
    """Answers every path with 200, as an engine in development mode or something else altogether."""

    def do_GET(self) -> None:
        body = b'{"hello": 1}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def stranger() -> Iterator[str]:
    """Return the address of a server that answers anything."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stranger)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_status_of_a_stranger_is_2(stranger: str) -> None:
    """Something else that answers is not taken for a tuner."""
    assert "not as a tuner does" in str(_invoke("status", "--url", stranger).exception)


def test_doctor_finds_a_sound_fleet_sound(fleet: str, tmp_path: Path) -> None:
    """Engines, plugin and an empty database are fine: exit 0, and nothing was made or changed."""
    config = write_config(tmp_path, fleet)
    code, out, error = _tuner("doctor", "--config.file", str(config), "--json")
    document = json.loads(out)
    assert code == 0, (document, error)
    assert document["ok"]
    verdicts = {(check["subject"], check["verdict"]) for check in document["checks"]}
    subjects = ("database", "discovery of fixed", "engines of fixed", "admin API of fixed")
    assert verdicts == {(subject, "ok") for subject in subjects}
    assert document["findings"] == []


def test_doctor_names_every_fault_with_a_remedy(tmp_path: Path, stranger: str) -> None:
    """Nobody at the addresses, a database that cannot be, a metrics server and Alertmanager that are down."""
    config = write_config(tmp_path, NOBODY, more=_faulty(stranger))
    text = config.read_text().replace(f"sqlite:///{tmp_path}/tuner.db", f"sqlite:///{tmp_path}/away/tuner.db")
    config.write_text(text)
    result = _invoke("doctor", "--config.file", str(config), "--json")
    assert result.exit_code == 1, repr(result.exception)
    assert result.stdout, repr(result.exception)
    document = json.loads(result.stdout)
    faults = {check["subject"]: check for check in document["checks"] if check["verdict"] == "fault"}
    assert set(faults) == {
        "database", "metrics server main", "discovery of fixed", "engines of open", "admin API of open",
        f"Alertmanager {NOBODY}",
    }  # fmt: skip
    assert all(check["remedy"] for check in faults.values())
    (finding,) = document["findings"]
    assert (finding["code"], finding["severity"]) == ("engine_admin_open", "critical")
    shown = _invoke("doctor", "--config.file", str(config)).output.splitlines()
    assert shown[-1] in {"6 faults", "7 faults"}
    assert len(shown) == len(set(shown)) == len(document["checks"]) + 1
    assert all(re.match(r"(ok|warning|fault) +\w.*: ", line) for line in shown[:-1])
    assert not re.search(r"\b1 \w+s\b|\?\.|see there", "\n".join(shown))


def _faulty(stranger: str) -> str:
    return f"""\
  - name: open
    engine: vllm
    engines: {{static: ['{stranger}']}}
    admin: {{}}
sources: {{prometheus: [{{name: main, url: '{NOBODY}', timeout: 500ms}}]}}
alerting: {{delivery: alertmanager, alertmanagers: ['{NOBODY}']}}
"""
