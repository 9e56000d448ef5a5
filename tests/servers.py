"""Real servers for tests: PostgreSQL, Prometheus and VictoriaMetrics, on loopback, in folders of their own.

Where a program is not installed, the tests that need it are skipped and named at the end of the run under
``NOT RUN``; with ``CI=true`` they fail, so that CI cannot pass by testing less.
"""

from __future__ import annotations

import itertools
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import httpx2
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

START_SECONDS = 60.0
"""Until a server that does not answer counts as hung; they take one to three on an idle machine."""
STOP_SECONDS = 20.0
"""Until a server that was told to stop is killed."""
POSTGRES_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
"""Debian keeps the server's programs off PATH, a folder for each version."""


def in_ci() -> bool:
    """Tell whether a missing program is a failure."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def program(name: str, folders: Sequence[Path] = ()) -> str:
    """Return the path of a program; skip the test where it is not installed, fail it in CI."""
    path = shutil.which(name, path=os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")]))
    if path is None:
        reason = f"{name} is not installed"
        if in_ci():
            pytest.fail(f"{reason}, and CI=true runs every test: install its package", pytrace=False)
        pytest.skip(reason)
    return path


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(ready: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Wait for something outside this process; a bound that only catches a hang."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {seconds:g} s", pytrace=False)
        time.sleep(0.05)


@dataclass(slots=True)
class ServerProcess:
    """One server: a child of ours, started and stopped by its process id."""

    name: str
    command: list[str]
    folder: Path
    ready: Callable[[], bool]
    user: int | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        """Process id; the server must be running."""
        assert self._process is not None, f"{self.name} is stopped"
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it answers."""
        assert self._process is None, f"{self.name} runs already"
        owner: dict[str, Any] = (
            {"user": self.user, "group": self.user, "extra_groups": []} if self.user else {}
        )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, **owner
            )
        wait_until(self._answers, f"start of {self.name} (see {self.log})")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"{self.name} ended at its start:\n{self.log.read_text()[-2000:]}", pytrace=False)
        return self.ready()

    def stop(self, how: signal.Signals | None = None) -> None:
        """Stop and wait for the end; does nothing to one that is stopped."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(self.stop_signal if how is None else how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Let it hang: connections are accepted by the kernel and never answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        os.kill(self.pid, signal.SIGCONT)


@contextmanager
def _folder(name: str, user: int | None = None) -> Iterator[Path]:
    """A folder outside pytest's, which other users may not enter; removed at the end."""
    path = Path(tempfile.mkdtemp(prefix=f"tuner-{name}-"))
    try:
        if user is not None:
            os.chown(path, user, -1)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _http_ok(url: str) -> Callable[[], bool]:
    """Return a check that an address answers 200."""

    def check() -> bool:
        with suppress(httpx2.HTTPError):
            return httpx2.get(url, timeout=2, trust_env=False).status_code == httpx2.codes.OK
        return False

    return check


# --- PostgreSQL -----------------------------------------------------------------------------------


@dataclass(slots=True)
class PostgresServer:
    """A PostgreSQL server without passwords, on loopback; its superuser is ``postgres``."""

    process: ServerProcess
    port: int
    _names: Iterator[int] = field(default_factory=itertools.count)

    def url_for(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement outside a transaction; return its rows, if it has any."""
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database, autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """Create an empty database; return its URL."""
        name = f"test_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url_for(name)

    def start(self) -> None:
        """Start again after a stop, with the data there was."""
        self.process.start()

    def stop(self, *, crash: bool = False) -> None:
        """Stop: connections are cut, data are flushed; ``crash`` leaves recovery to the next start."""
        self.process.stop(signal.SIGQUIT if crash else signal.SIGINT)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()


def _postgres_answers(port: int) -> Callable[[], bool]:
    def check() -> bool:
        import psycopg

        with suppress(psycopg.OperationalError):
            psycopg.connect(
                host="127.0.0.1", port=port, user="postgres", dbname="postgres", connect_timeout=2
            ).close()
            return True
        return False

    return check


@contextmanager
def run_postgres(*, fsync: bool = False, settings: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """Run a PostgreSQL server; ``settings`` are ``name=value``."""
    initdb, postgres = (program(name, POSTGRES_FOLDERS) for name in ("initdb", "postgres"))
    user = pwd.getpwnam("postgres").pw_uid if os.geteuid() == 0 else None  # it refuses to run as root
    with _folder("postgres", user) as folder:
        data = folder / "data"
        owner: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
        made = subprocess.run(
            [
                initdb, "-D", str(data), "-U", "postgres", "-A", "trust",
                "-E", "UTF8", "--locale=C.UTF-8", "-N",
            ],
            cwd=folder, capture_output=True, text=True, check=False, **owner,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        port = free_port()
        options = ["listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=", *settings]
        if not fsync:
            options += ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        command = [postgres, "-D", str(data), *(part for option in options for part in ("-c", option))]
        process = ServerProcess("postgres", command, folder, _postgres_answers(port), user, signal.SIGINT)
        process.start()
        try:
            yield PostgresServer(process, port)
        finally:
            process.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole run; a test that stops it starts it again."""
    with run_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of a fresh database."""
    return postgres_server.new_database()


# --- Prometheus and VictoriaMetrics ---------------------------------------------------------------


@dataclass(slots=True)
class MetricsServer:
    """A server that scrapes and answers PromQL."""

    process: ServerProcess
    url: str
    """Base address, without a slash at the end."""

    def start(self) -> None:
        """Start again after a stop, with the data there was."""
        self.process.start()

    def stop(self) -> None:
        """Stop; the port refuses connections."""
        self.process.stop()

    def query(self, promql: str, at: float | None = None) -> list[dict[str, Any]]:
        """Return the result of an instant query, as a test would look at it."""
        parameters = {"query": promql} | ({} if at is None else {"time": f"{at:.3f}"})
        reply = httpx2.get(f"{self.url}/api/v1/query", params=parameters, timeout=10, trust_env=False)
        result: list[dict[str, Any]] = reply.json()["data"]["result"]
        return result


class StartsMetricsServer(Protocol):
    """What the fixtures ``prometheus_server`` and ``victoria_metrics`` are."""

    def __call__(
        self, scrape_configs: Sequence[dict[str, Any]], *, flags: Sequence[str] = (), interval: str = "1s"
    ) -> MetricsServer:
        """Start a server that scrapes ``scrape_configs``; it is stopped after the test."""


@contextmanager
def run_prometheus(
    scrape_configs: Sequence[dict[str, Any]], *, flags: Sequence[str] = (), interval: str = "1s"
) -> Iterator[MetricsServer]:
    """Run a Prometheus with entries of ``scrape_configs`` and command-line flags."""
    prometheus = program("prometheus")
    with _folder("prometheus") as folder:
        config = folder / "prometheus.yml"
        config.write_text(_scraping(scrape_configs, interval))
        address = f"127.0.0.1:{free_port()}"
        command = [
            prometheus, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}", "--web.enable-lifecycle", "--log.level=warn", *flags,
        ]  # fmt: skip
        process = ServerProcess("prometheus", command, folder, _http_ok(f"http://{address}/-/ready"))
        process.start()
        try:
            yield MetricsServer(process, f"http://{address}")
        finally:
            process.stop()


@contextmanager
def run_victoria_metrics(
    scrape_configs: Sequence[dict[str, Any]], *, flags: Sequence[str] = (), interval: str = "1s"
) -> Iterator[MetricsServer]:
    """Run a VictoriaMetrics; it answers with what was scraped last instead of 30 s before."""
    victoria = program("victoria-metrics")
    with _folder("victoria") as folder:
        config = folder / "scrape.yml"
        config.write_text(_scraping(scrape_configs, interval))
        address = f"127.0.0.1:{free_port()}"
        command = [
            victoria, f"-promscrape.config={config}", f"-storageDataPath={folder / 'data'}",
            f"-httpListenAddr={address}", "-search.latencyOffset=0s", "-memory.allowedBytes=256MB", *flags,
        ]  # fmt: skip
        process = ServerProcess("victoria-metrics", command, folder, _http_ok(f"http://{address}/health"))
        process.start()
        try:
            yield MetricsServer(process, f"http://{address}")
        finally:
            process.stop()


def _scraping(scrape_configs: Sequence[dict[str, Any]], interval: str) -> str:
    """Return the configuration; JSON is YAML."""
    settings = {"scrape_interval": interval, "scrape_timeout": interval}
    return json.dumps({"global": settings, "scrape_configs": list(scrape_configs)})


@pytest.fixture
def prometheus_server() -> Iterator[StartsMetricsServer]:
    """Start real Prometheus servers."""
    with ExitStack() as stack:

        def start(
            scrape_configs: Sequence[dict[str, Any]], *, flags: Sequence[str] = (), interval: str = "1s"
        ) -> MetricsServer:
            return stack.enter_context(run_prometheus(scrape_configs, flags=flags, interval=interval))

        yield start


@pytest.fixture
def victoria_metrics() -> Iterator[StartsMetricsServer]:
    """Start real VictoriaMetrics servers."""
    with ExitStack() as stack:

        def start(
            scrape_configs: Sequence[dict[str, Any]], *, flags: Sequence[str] = (), interval: str = "1s"
        ) -> MetricsServer:
            return stack.enter_context(run_victoria_metrics(scrape_configs, flags=flags, interval=interval))

        yield start


# --- What did not run -----------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """List what was skipped, and why, and how many long tests were left out, after all else."""
    yield
    reasons: dict[str, list[str]] = {}
    for report in terminalreporter.getreports("skipped"):
        if isinstance(report.longrepr, tuple):
            reasons.setdefault(report.longrepr[2].removeprefix("Skipped: "), []).append(report.nodeid)
    # With several workers only they know what they left out; the expression is known here.
    left_out = terminalreporter.config.option.markexpr == "not long"
    if not reasons and not left_out:
        return
    terminalreporter.section("NOT RUN")
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f"{reason}: {len(tests)} tests")
        for nodeid in tests:
            terminalreporter.write_line(f"  {nodeid}")
    if left_out:
        terminalreporter.write_line("tests marked long: make test-long")
