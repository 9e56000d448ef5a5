"""``tuner db``: upgrade, current and check, by --url or by the configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from tests.store.processes import ROOT
from tuner.cli import main
from tuner.store import open_store
from tuner.store.schema import scripts

if TYPE_CHECKING:
    from pathlib import Path

HEAD = scripts().get_current_head()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; return exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as left:
        main(["db", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, out, err


def test_from_nothing_to_the_head(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty database is found wanting, upgraded, and found right."""
    code, out, err = run(capsys, "check", "--url", url)
    assert (code, out) == (1, "")
    assert "tuner db upgrade" in err
    assert f"empty, this release wants {HEAD}" in run(capsys, "current", "--url", url)[1]
    assert f"empty -> {HEAD}" in run(capsys, "upgrade", "--url", url)[1]
    assert f"at {HEAD} already" in run(capsys, "upgrade", "--url", url)[1]
    code, out, err = run(capsys, "check", "--url", url)
    assert (code, err) == (0, "")
    assert f"at {HEAD}, " in out


def test_json_tells_the_same(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each verb has its facts as JSON, with the same exit codes."""
    code, out, _ = run(capsys, "check", "--url", url, "--json")
    facts = json.loads(out)
    assert (code, facts["ok"], facts["current"], facts["head"]) == (1, False, None, HEAD)
    assert "tuner db upgrade" in facts["problem"]
    code, out, _ = run(capsys, "upgrade", "--url", url, "--json")
    facts = json.loads(out)
    assert (code, facts["ok"], facts["before"], facts["current"]) == (0, True, None, HEAD)
    assert json.loads(run(capsys, "current", "--url", url, "--json")[1])["current"] == HEAD


def test_a_newer_database_is_a_fault(sqlite_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``check`` leaves with 1, ``upgrade`` with 2, both with what to do."""
    url = f"sqlite:///{sqlite_file}"
    with closing(open_store(url)) as store:
        store.migrate()
        update = text("update alembic_version set version_num = 'r9999'")
        store._database.write(lambda connection: connection.execute(update), fence=0)
    code, _, err = run(capsys, "check", "--url", url)
    assert code == 1
    assert "newer than this release" in err
    code, _, err = run(capsys, "upgrade", "--url", url)
    assert code == 2
    assert err.startswith("error: ")
    assert "newer than this release" in err


def test_the_configuration_names_the_database(
    tmp_path: Path, sqlite_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``store.url`` of a configuration file is used."""
    config = tmp_path / "tuner.yaml"
    pools = "pools: [{name: chat, engine: vllm, engines: {static: ['http://127.0.0.1:8000']}}]"
    config.write_text(f"store: {{url: 'sqlite:///{sqlite_file}'}}\n{pools}\n")
    assert run(capsys, "upgrade", "--config.file", str(config))[0] == 0
    assert sqlite_file.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --config.file FILE or --url URL"),
        (["--url", "sqlite:////nowhere/tuner.db"], "/nowhere: no such folder"),
        (["--url", "mysql://h/d"], "mysql is not supported"),
        (["--url", "sqlite:////tmp/x.db", "--config.file", "x"], "not both"),
        (["--config.file", "x", "--password-file", "y"], "store.password_file"),
        (["--url", "postgresql://h/d", "--password-file", "/nowhere/pw"], "/nowhere/pw"),
    ],
)
@pytest.mark.parametrize("verb", ["upgrade", "current", "check"])
def test_what_cannot_be_asked_is_an_error(
    capsys: pytest.CaptureFixture[str], verb: str, arguments: list[str], said: str
) -> None:
    """Exit code 2 and one line on stderr."""
    code, out, err = run(capsys, verb, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_help_stays_fast() -> None:
    """The command's list of verbs imports neither SQLAlchemy nor alembic."""
    source = "import sys; from tuner.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    source += "assert not {'sqlalchemy', 'alembic', 'psycopg'} & set(sys.modules), sorted(sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Create, upgrade and check the database." in ran.stdout
