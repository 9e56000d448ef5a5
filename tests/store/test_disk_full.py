"""A disk without room: the unit is refused, nothing is damaged, and room is all it takes to go on."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from tests.store.processes import child
from tests.store.samples import T0, series, steps_of, window
from tuner._exceptions import StoreError
from tuner.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tuner.fleet import Window
    from tuner.store import Store

MEGABYTE = 1 << 20
BATCH = 200


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("only root can mount a small disk; a limit on file sizes is tested instead")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)  # noqa: S607 - the one beside mount


def batch(number: int) -> list[Window]:
    """Return some windows of their own time."""
    return series(BATCH, start=T0 + number * BATCH * 15)


def fill(store: Store) -> tuple[int, StoreError]:
    """Add windows until there is no room; return how many batches were taken, and the refusal."""
    for number in range(1000):
        try:
            store.add_windows(batch(number), fence=0)
        except StoreError as error:
            return number, error
    pytest.fail("the disk never filled up")


def sound(store: Store) -> bool:
    """Let SQLite look at the whole file."""
    return bool(store._database.read(lambda c: c.scalar(text("pragma integrity_check"))) == "ok")


def test_a_full_disk_loses_no_saved_window(small_disk: Path) -> None:
    """On a real disk of 1 MB: refused in one line as retryable, what was saved is there, and room heals."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(MEGABYTE // 4))
    with closing(open_store(f"sqlite:///{small_disk}/tuner.db")) as store:
        store.migrate()
        taken, refused = fill(store)
        assert taken > 0
        assert refused.retryable
        assert "\n" not in str(refused)
        assert "room" in str(refused) or "space" in str(refused)
        kept = store.recent_windows("chat", 0.0, 10**6)
        assert len(kept) == taken * BATCH
        assert sound(store)
        with pytest.raises(StoreError) as again:
            store.add_windows(batch(taken), fence=0)
        assert again.value.retryable
        assert store.checked_out == 0
        ballast.unlink()
        assert store.add_windows(batch(taken), fence=0) == BATCH
        assert sound(store)
    with closing(open_store(f"sqlite:///{small_disk}/tuner.db")) as store:
        found = store.recent_windows("chat", 0.0, 10**6)
        assert steps_of(found) == sum(steps_of(batch(number)) for number in range(taken + 1))


def test_a_start_on_a_full_disk_is_told_in_one_line(small_disk: Path) -> None:
    """Where not even the tables fit, the migration is refused and leaves nothing of itself."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(MEGABYTE - 16384))
    with closing(open_store(f"sqlite:///{small_disk}/tuner.db")) as store:
        with pytest.raises(StoreError) as refused:
            store.migrate()
        assert refused.value.retryable
        assert "\n" not in str(refused.value)
        ballast.unlink()
        store.migrate()
        store.check()


def _limit() -> None:
    """Let files grow to 1 MB; a write beyond fails instead of ending the process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, MEGABYTE))


def test_a_file_that_may_not_grow_is_like_a_full_disk(tmp_path: Path) -> None:
    """With a limit on file sizes, which needs no root: refused as retryable, and the file stays sound."""
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    with closing(open_store(url)) as store:
        store.migrate()
    with child(url, preexec_fn=_limit) as other:
        taken = 0
        while True:
            start = f"T0 + {taken * BATCH * 15}"
            answer = other.ask(f"store.add_windows(series({BATCH}, start={start}), fence=0)")
            if answer != BATCH:
                break
            taken += 1
        assert answer["error"] == "StoreError"
        assert answer["retryable"]
        assert "\n" not in answer["message"]
        assert other.ask("len(store.recent_windows('chat', 0.0, 10**6))") == taken * BATCH
        assert other.ask("store.checked_out") == 0
    with closing(open_store(url)) as store:
        assert len(store.recent_windows("chat", 0.0, 10**6)) == taken * BATCH
        assert sound(store)
        assert store.add_windows([window(T0 - 600)], fence=0) == 1
