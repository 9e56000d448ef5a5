"""Which schedule engines run, asked of their admin APIs side by side and within a bound."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from tuner._exceptions import InputError
from tuner.observe.outcomes import SourceError
from tuner.observe.readback import Readback, read_back
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import httpx2

    from tuner.daemon.notices import Notices
    from tuner.daemon.ports import Reader
    from tuner.daemon.watching import Watched
    from tuner.fleet import Target

SIDE_BY_SIDE = 8
"""Engines asked at once, as many as may hang before the next is refused; 1 000 engines that answer in 10 ms
take 1.3 s."""


class AdminReader:
    """Asks engines of one pool; the token is read from its file at each use."""

    def __init__(self, client: httpx2.Client, token_file: Path | None) -> None:
        self._client = client
        self._token_file = token_file

    def read(self, target: Target) -> Readback | SourceError | None:
        """Ask one engine; ``None`` where it has no admin address. Raises nothing."""
        if not target.admin_url:
            return None
        token: str | None = None
        if self._token_file is not None:
            from tuner.config import read_secret  # noqa: PLC0415 - pydantic costs 0.2 s

            try:
                token = read_secret(self._token_file)
            except InputError as error:
                return SourceError(str(error), retryable=True)
        return read_back(self._client, target.admin_url, token)


def read_all(
    readers: Mapping[str, Reader],
    watched: Mapping[str, Watched],
    notices: Notices,
    clock: Callable[[], float],
    *,
    seconds: float,
) -> None:
    """Ask every engine of every pool with an admin API, and note what they say they run.

    Args:
        readers: by pool.
        watched: by pool.
        notices: where pools whose engines do not tell are told of.
        clock: unix seconds.
        seconds: after which the round ends; engines that were not reached are asked in the next.
    """
    asked = [(name, target) for name in readers if name in watched for target in watched[name].targets]
    failed: dict[str, list[str]] = {}
    with _Bounded(SIDE_BY_SIDE) as pool:
        futures = {pool.submit(readers[name].read, target): (name, target) for name, target in asked}
        done, _ = wait(futures, timeout=seconds)
        for future in done:
            name, target = futures[future]
            said = future.result()
            if isinstance(said, SourceError):
                failed.setdefault(name, []).append(f"{target.engine}: {said.reason}")
            elif said is not None:
                since = -math.inf if said.source == "startup" else clock()
                watched[name].runs(target, said.schedule, since)
    for name in readers:
        _judge(name, failed.get(name, []), notices)


class _Bounded(ThreadPoolExecutor):
    """Does not wait at its end for those that hang; they are bounded by time-outs of their own."""

    def __exit__(self, *_: object) -> None:
        self.shutdown(wait=False, cancel_futures=True)


def _judge(pool: str, failed: list[str], notices: Notices) -> None:
    if not failed:
        notices.clear("schedule_unread", {"pool": pool})
        return
    notices.note(
        "schedule_unread",
        "warning",
        f"{counted(len(failed), 'engine')} cannot be asked which schedule runs, {min(failed)}: windows in "
        "which draft lengths take turns cannot be told apart. Load the tuner's plugin, or leave admin out.",
        {"pool": pool},
        {"engines": len(failed)},
    )
