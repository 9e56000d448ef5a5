"""Other processes for tests of the store: they do as they are told by a line, and answer by a line."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent

CHILD = """
import json, sys, time
from tests.store.samples import T0, SCHEDULE, series, window
from tuner._exceptions import StoreError
from tuner.store import open_store

url, holder, ttl = sys.argv[1], sys.argv[2], float(sys.argv[3])
store = open_store(url)
keeper = store.lease(holder, ttl)

def delete_and_hang(flag):
    def work(connection):
        connection.exec_driver_sql("delete from windows_raw")
        open(flag, "w").close()
        time.sleep(600)
    store._database.write(work, fence=0)

print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    try:
        answer = eval(line, globals())
    except StoreError as error:
        answer = {"error": type(error).__name__, "message": str(error), "retryable": error.retryable}
    print(json.dumps(answer, default=str), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Child:
    """Another process with the same database open: ``store``, ``keeper`` and the samples are at hand."""

    process: subprocess.Popen[str]

    def send(self, expression: str) -> None:
        """Let it evaluate an expression."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended: {self.process.stderr.read() if self.process.stderr else ''}"
        return json.loads(line)

    def ask(self, expression: str) -> Any:
        """Return what an expression comes to there; an error of the store comes back as its fields."""
        self.send(expression)
        return self.answer()


@contextmanager
def child(url: str, holder: str = "child", ttl: float = 20.0, **more: Any) -> Iterator[Child]:
    """Run another process on the same database."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, url, holder, str(ttl)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **more,
    )
    started = Child(process)
    try:
        assert started.answer() == "ready"
        yield started
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
