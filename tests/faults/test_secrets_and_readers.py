"""What never leaves the daemon, whatever goes wrong, and who is answered while engines hang."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.faults.between import Between, Said
from tests.faults.conftest import warm
from tests.faults.site import POOL, SCRAPE, Site, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.fleet_server import ServedFleet

TOKEN = "t0ken-0f-the-engines"  # noqa: S105 - made up
PASSWORD = "pa55w0rd-in-a-url"  # noqa: S105 - made up
KEY = "sk-of-the-engine"
PAGES = (
    "/metrics",
    "/api/v1/status",
    "/api/v1/findings",
    "/api/v1/engines",
    "/api/v1/events",
    "/api/v1/pools",
    "/",
)


@pytest.fixture
def between(served: ServedFleet) -> Iterator[Between]:
    """Stand between the daemon and the endpoint that names engines."""
    with Between(served.url) as standing:
        yield standing


def test_no_secret_is_told_kept_or_logged(served: ServedFleet, between: Between, tmp_path: Path) -> None:
    """A token, a password in a discovered address, a key in an engine's answer: nowhere to be found (B64)."""
    token_file = tmp_path / "engine.token"
    token_file.write_text(TOKEN)

    def spoil(said: Said) -> Said:
        groups = json.loads(said.body)
        address = groups[0]["targets"][0]
        groups[1]["targets"] = [f"u:{PASSWORD}@{address}"]
        return Said(said.status, json.dumps(groups).encode(), said.kind)

    between.spoil = spoil
    admin = {"url_template": "http://{{ address }}{{ path }}", "token_file": str(token_file)}
    document = settings(tmp_path, f"{between.url}/targets/{POOL}", pool={"admin": admin})
    with Site(served, tmp_path, document) as site:
        warm(site)
        assert "target_invalid" in site.codes()
        between.instead = Said(500, json.dumps({"api_key": KEY, "url": f"http://u:{PASSWORD}@h"}).encode())
        served.fault("down", POOL)
        site.run_for(8 * SCRAPE)
        assert {"discovery_failed", "engines_unreachable", "schedule_unread"} <= site.codes()
        told = "".join(site.get(page).text for page in PAGES)
        assert POOL in told
        logged = json.dumps(site.log.all, default=str)
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("tuner.db*"))
    assert b"engines_unreachable" in kept
    for secret in (TOKEN, PASSWORD, KEY):
        assert secret not in told
        assert secret not in logged
        assert secret.encode() not in kept


def test_readers_are_answered_while_engines_hang(site: Site) -> None:
    """A round waits for engines that hang: no connection of the pool is held, and all are answered (B59)."""
    site.served.fault("slow", POOL)
    book = site.daemon.service.book
    site.run_for(SCRAPE / 2)
    round_ = threading.Thread(target=site.run_for, args=(SCRAPE,))
    round_.start()
    try:
        while "scrape" not in book.running():
            assert round_.is_alive()
        store = site.daemon.leader.store
        assert store is not None
        assert store.checked_out == 0
        with ThreadPoolExecutor(20) as readers:
            replies = list(readers.map(site.get, ["/api/v1/findings", "/api/v1/events"] * 10))
        assert {reply.status_code for reply in replies} == {200}
        assert site.up()
    finally:
        round_.join()
    assert store.checked_out == 0
