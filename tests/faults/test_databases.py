"""A database that is locked, full, gone or read-only, under a whole daemon that goes on scraping."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from tests.faults.conftest import warm
from tests.faults.fleet_server import ServedFleet
from tests.faults.site import ENGINES, POOL, Site, endure, settings
from tests.servers import in_ci
from tuner.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.site import Learnt
    from tests.servers import PostgresServer

SOURCE = 'tuner_source_up{source="store"}'
UP = f'tuner_targets{{pool="{POOL}",state="up"}}'
CODE = "store_unavailable"

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60.0)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("free", flush=True)
"""


class Holder:
    """Another process with a transaction on an SQLite file that keeps all writers out."""

    def __init__(self, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        """End the transaction, and the process."""
        assert self._process.communicate("go\n")[0] == "free\n"


def _waits(site: Site, engines: int = ENGINES) -> None:
    """Hold a daemon to what it does while nothing can be written: scrape, and keep windows."""
    assert site.metric(UP) == engines
    assert (site.metric("tuner_windows_buffered") or 0.0) >= engines
    assert site.metric("tuner_windows_dropped_total") == 0.0


def _all_written(site: Site) -> None:
    """Every window that was counted since the start is in the database once."""
    store = site.daemon.leader.store
    assert store is not None
    mine = [w for w in store.recent_windows(POOL, site.started, 100_000) if w.route == "*"]
    assert len({(w.engine, w.start) for w in mine}) == len(mine) >= site.all_windows()


def test_a_database_that_another_process_locks(
    served: ServedFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapes and cycles go on, windows wait, and all of them are written when the lock goes."""
    # Virtual time stands while a write waits for the lock, three times 2 s: shorter, nothing else changes.
    monkeypatch.setattr("tuner.store.database.BUSY_SECONDS", 0.05)
    monkeypatch.setattr("tuner.store.database.JITTER_SECONDS", (0.0, 0.01))
    holders: list[Holder] = []
    with Site(served, tmp_path, settings(tmp_path, f"{served.url}/targets/{POOL}")) as site:
        warm(site)

        def end() -> None:
            _waits(site)
            holders[0].let_go()

        def begin() -> None:
            holders.append(Holder(tmp_path / "tuner.db"))

        endure(site, begin, end, code=CODE, sample=SOURCE, bad=0.0)
        _all_written(site)


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("only root can mount a disk of 1 MB")
    command = [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        reason = f"no disk of 1 MB can be mounted: {made.stderr.strip()}"
        if in_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)  # noqa: S607 - the one beside mount


def test_a_disk_that_is_full(learnt: Learnt, tmp_path: Path) -> None:
    """A real disk of 1 MB: full, windows wait in memory; with room again all of them are written."""
    with ExitStack() as stack:
        disk = stack.enter_context(_small_disk(tmp_path / "disk"))
        served = stack.enter_context(ServedFleet(learnt.copied(disk)))
        document = settings(
            tmp_path, f"{served.url}/targets/{POOL}", store={"url": f"sqlite:///{disk}/tuner.db"}
        )
        site = stack.enter_context(Site(served, tmp_path, document))
        warm(site)
        ballast = disk / "ballast"

        def fill() -> None:
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)):
                    pass
            assert shutil.disk_usage(disk).free == 0

        def end() -> None:
            _waits(site)
            ballast.unlink()

        endure(site, fill, end, code=CODE, sample=SOURCE, bad=0.0)
        _all_written(site)


@pytest.fixture
def on_postgres(learnt: Learnt, served: ServedFleet, postgres_url: str, tmp_path: Path) -> Iterator[Site]:
    """Run a daemon on PostgreSQL that remembers what was learnt on SQLite."""
    with (
        closing(open_store(f"sqlite:///{learnt.database}")) as old,
        closing(open_store(postgres_url)) as new,
    ):
        new.migrate()
        new.add_windows(old.recent_windows(POOL, 0.0, 100_000), fence=0)
        (known,) = (each for each in old.schedules(POOL) if each.state == "proposed")
        new.propose_schedule(
            POOL, known.schedule, state="proposed", why="learnt before", now=known.created_at, fence=0
        )
    document = settings(tmp_path, f"{served.url}/targets/{POOL}", store={"url": postgres_url})
    with Site(served, tmp_path, document) as started:
        warm(started)
        yield started


def test_a_postgresql_that_is_restarted(on_postgres: Site, postgres_server: PostgresServer) -> None:
    """Stopped and started again: windows wait meanwhile, and the daemon finds its way back by itself."""

    def end() -> None:
        _waits(on_postgres)
        postgres_server.start()

    try:
        endure(on_postgres, postgres_server.stop, end, code=CODE, sample=SOURCE, bad=0.0)
    finally:
        if postgres_server.process._process is None:
            postgres_server.start()
    _all_written(on_postgres)


def test_a_postgresql_that_turns_read_only(on_postgres: Site, postgres_server: PostgresServer) -> None:
    """As after a failover to a replica: nothing is written or lost, and writes go on by themselves."""

    def read_only(value: str) -> None:
        postgres_server.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        postgres_server.execute("SELECT pg_reload_conf()")

    def end() -> None:
        _waits(on_postgres)
        read_only("off")

    try:
        endure(on_postgres, lambda: read_only("on"), end, code=CODE, sample=SOURCE, bad=0.0)
    finally:
        read_only("off")
    _all_written(on_postgres)
