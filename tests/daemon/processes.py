"""Daemons and a simulated fleet as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import httpx2

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from pathlib import Path

PATIENCE = 90.0
"""Seconds after which a test gives up on a process; a loaded machine needs ten to import everything."""

CONFIG = """\
store: {{url: 'sqlite:///{folder}/tuner.db'}}
scrape: {{interval: 2s, timeout: 1900ms}}
cycle: {{interval: 4s}}
discovery: {{interval: 4s}}
web: {{listen: '127.0.0.1:0'}}
pools:
  - name: fixed
    engine: vllm
    mode: advise
    engines: {{http_sd: '{fleet}/targets/fixed', identity: [pod]}}
    admin: {{url_template: 'http://{{{{ address }}}}{{{{ path }}}}'}}
"""


def python(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start ``python -m tuner`` with these arguments."""
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment},
    )


class Process:
    """One process; ended by its id when the block ends."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen

    def __enter__(self) -> Self:
        """Run."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it if it did not end."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(PATIENCE)
        for stream in (self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()


class Fleet(Process):
    """``tuner simulate fleet``."""

    def __init__(self) -> None:
        super().__init__(python("simulate", "fleet", "--preset", "fixed", "--speed", "1", "--seed", "1"))
        assert self.popen.stdout is not None
        self.url: str = json.loads(self.popen.stdout.readline())["url"]


@dataclass
class Log:
    """Events of a daemon as they come."""

    events: list[dict[str, Any]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self, stream: Any) -> None:
        for line in stream:
            event = json.loads(line) if line.startswith("{") else {"event": "", "text": line}
            with self.changed:
                self.events.append(event)
                self.changed.notify_all()

    def wait(self, event: str, count: int = 1) -> dict[str, Any]:
        """Return the ``count``-th event of a name, waiting for it."""

        def found() -> list[dict[str, Any]]:
            return [each for each in self.events if each["event"] == event]

        with self.changed:
            assert self.changed.wait_for(lambda: len(found()) >= count, PATIENCE), (event, self.events)
            return found()[count - 1]


class Daemon(Process):
    """``tuner run``, with its log read as it comes."""

    def __init__(self, config: Path, *arguments: str, **environment: str) -> None:
        super().__init__(
            python("run", "--config.file", str(config), "--log.format", "json", *arguments, **environment)
        )
        self.log = Log()
        self._reader = threading.Thread(target=self.log.read, args=(self.popen.stderr,), daemon=True)
        self._reader.start()

    def __exit__(self, *exception: object) -> None:
        """Kill it, and read its log to the end."""
        if self.popen.poll() is None:
            self.popen.kill()
        self._reader.join(PATIENCE)
        super().__exit__(*exception)

    @property
    def url(self) -> str:
        """Address of its web server."""
        return f"http://{self.log.wait('listening')['address']}"

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(f"{self.url}{path}", timeout=PATIENCE, trust_env=False)

    def metric(self, sample: str) -> float | None:
        """Return one sample of its metrics by name and labels as they are written."""
        for line in self.get("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return None

    def until_told(self, text: str, path: str = "/metrics") -> None:
        """Wait until its metrics, or another answer, hold a text."""
        pause = threading.Event()
        for _ in range(int(PATIENCE / 0.2)):
            if text in self.get(path).text:
                return
            pause.wait(0.2)
        raise AssertionError(f"no {text}: {self.log.events}")

    def until(self, sample: str, value: float) -> None:
        """Wait until a sample is at least a value."""
        self._until(sample, lambda seen: seen >= value, f"at least {value}")

    def until_is(self, sample: str, value: float) -> None:
        """Wait until a sample is a value."""
        self._until(sample, lambda seen: seen == value, f"{value}")

    def _until(self, sample: str, holds: Callable[[float], bool], wanted: str) -> None:
        pause = threading.Event()
        for _ in range(int(PATIENCE / 0.2)):
            if (seen := self.metric(sample)) is not None and holds(seen):
                return
            pause.wait(0.2)
        raise AssertionError(f"{sample} is {self.metric(sample)}, not {wanted}: {self.log.events}")


def write_config(folder: Path, fleet: str, name: str = "tuner.yaml", more: str = "") -> Path:
    """Write settings for the simulated fleet."""
    path = folder / name
    path.write_text(CONFIG.format(folder=folder, fleet=fleet) + more)
    return path
