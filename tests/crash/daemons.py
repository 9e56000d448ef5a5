"""A daemon and engines as processes of their own, to be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parent.parent.parent
CHECKER = Path(__file__).with_name("check_journal.py")
INTERVAL = 0.25
READY_SECONDS = 60.0


class Crashes:
    """One database, engines that live on, and daemons that are killed one after the other."""

    def __init__(self, folder: Path, engines: int, seed: int) -> None:
        self.folder = folder
        self.journal = folder / "journal.jsonl"
        self.log = folder / "daemon.log"
        self.database = folder / "tuner.db"
        self.kills: list[float] = []
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.engines = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.engine_server", str(self.journal), "--engines", str(engines),
             "--seed", str(seed)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env=self.environment,
        )  # fmt: skip
        assert self.engines.stdout is not None
        port = int(self.engines.stdout.readline())
        urls = ", ".join(f'"http://127.0.0.1:{port}/e/{number}"' for number in range(engines))
        (folder / "tuner.yaml").write_text(
            f"store: {{url: sqlite:///{self.database}}}\n"
            f"scrape: {{interval: {int(INTERVAL * 1000)}ms, timeout: 200ms}}\n"
            "cycle: {interval: 1s}\n"
            "pools:\n"
            f"  - {{name: p, mode: advise, engine: vllm, engines: {{static: [{urls}]}}}}\n"
        )

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the engines."""
        self.engines.kill()
        self.engines.wait()
        assert self.engines.stdout is not None
        self.engines.stdout.close()

    def start(self) -> subprocess.Popen[bytes]:
        """Start a daemon."""
        if self.kills:
            self.kills.append(time.time())
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tuner", "run", "--config.file", str(self.folder / "tuner.yaml"),
                 "--web.listen-address", "127.0.0.1:0", "--store.lease-ttl", "0.5", "--log.format", "json"],
                stderr=log, cwd=ROOT, env=self.environment,
            )  # fmt: skip

    def wait_for_scrapes(self, count: int) -> None:
        """Wait until the engines were asked so many times more."""
        target = self._bodies() + count
        deadline = time.monotonic() + READY_SECONDS
        while self._bodies() < target:
            assert time.monotonic() < deadline, f"no scrapes: {self.log.read_text()[-2000:]}"
            time.sleep(0.02)

    def kill(self, daemon: subprocess.Popen[bytes]) -> None:
        """Kill a daemon without a word."""
        daemon.kill()
        daemon.wait()
        self.kills.append(time.time())

    def check(self) -> subprocess.CompletedProcess[str]:
        """Hold the database against the journal, by a program that does not know the tuner."""
        kills = [repr(kill) for kill in [*self.kills, time.time()][: 2 * ((len(self.kills) + 1) // 2)]]
        return subprocess.run(
            [sys.executable, "-I", CHECKER, self.database, self.journal, self.log, *kills],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def _bodies(self) -> int:
        return self.journal.read_bytes().count(b"\n") if self.journal.exists() else 0
