"""Real servers on loopback for the tests of the HTTP side."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.serve.worlds import Ledger, snapshot
from tuner.serve.app import build_app
from tuner.serve.server import WebServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.applications import Starlette

    Served = Callable[..., httpx2.Client]

TOKEN = "correct-horse"  # noqa: S105  # of these tests only


@pytest.fixture(autouse=True)
def quiet_uvicorn() -> None:
    """Keep refused requests out of the output of pytest."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file with the bearer token."""
    path = tmp_path / "web.token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def app_of() -> Callable[..., Starlette]:
    """Build an app over the fleet of three pools."""

    def build(**changed: Any) -> Starlette:
        shown = snapshot()
        given: dict[str, Any] = {"view": lambda: shown, "history": Ledger(), **changed}
        return build_app(given.pop("view"), **given)

    return build


@pytest.fixture
def served(app_of: Callable[..., Starlette]) -> Iterator[Served]:
    """Serve an app on a free port of 127.0.0.1 and return a client of it; options go to ``build_app``."""
    servers: list[WebServer] = []
    clients: list[httpx2.Client] = []

    def start(**changed: Any) -> httpx2.Client:
        server = WebServer(app_of(**changed), "127.0.0.1:0", None)
        servers.append(server)
        server.start()
        clients.append(httpx2.Client(base_url=server.url, timeout=20.0))
        return clients[-1]

    yield start
    for client in clients:
        client.close()
    for server in servers:
        assert server.stop(5.0)
