"""Holds a database against the journal of the engines, after the daemon was killed. Imports nothing of ours.

``python -I check_journal.py DATABASE JOURNAL LOG [KILL...]``. The journal has a line for every body that an
engine gave out, the log is what the daemons wrote to stderr (JSON lines), each KILL is a pair of unix times:
when a daemon was killed and when the next one was started. Prints what it counted as JSON; exit code 1 and
one line for every fault.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import defaultdict
from itertools import pairwise

COUNTERS = {"emitted": "emitted", "drafts": "drafts", "draft_tokens": "draft", "accepted": "accepted"}
"""Column of a window -> name in the journal."""
APART = 0.2
"""Most seconds between an engine's note of a body and the daemon's note of its arrival."""
OPEN_SCRAPES = 2
"""Bodies after the last window that is kept, at a kill: a window is final one scrape after it ended, and the
round that was under way may not be written."""


def main(database: str, journal: str, log: str, *kills: str) -> int:
    """Check everything; return the exit code."""
    faults: list[str] = []
    told = read_journal(journal)
    with sqlite3.connect(database) as connection:
        found = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok":
            faults.append(f"the database is damaged: {found}")
        windows = read_windows(connection)
        versions = {row[0] for row in connection.execute("SELECT version FROM schedules")}
        numbers = connection.execute("SELECT pool, number FROM schedules ORDER BY pool, number").fetchall()
    check_order(windows, faults)
    matched = sum(check_counts(engine, rows, told[engine], faults) for engine, rows in windows.items())
    times = [float(kill) for kill in kills]
    check_kept(windows, told, list(zip(times[::2], times[1::2], strict=True)), faults)
    announced = read_versions(log)
    faults += [
        f"schedule {version} was announced and is not kept" for version in sorted(announced - versions)
    ]
    if [number for _, number in numbers] != list(range(1, len(numbers) + 1)):
        faults.append(f"schedules are not numbered without a gap: {numbers}")
    counted = {
        "windows": sum(map(len, windows.values())),
        "matched": matched,
        "bodies": sum(map(len, told.values())),
        "versions": len(versions),
        "announced": len(announced),
        "faults": len(faults),
    }
    print(json.dumps(counted))  # noqa: T201 - the answer
    for fault in faults:
        print(fault, file=sys.stderr)  # noqa: T201
    return 1 if faults else 0


def read_journal(path: str) -> dict[int, list[dict[str, float]]]:
    """Return what each engine told, in order; a line cut off by the end of its writer is left out."""
    told: dict[int, list[dict[str, float]]] = defaultdict(list)
    with open(path, encoding="utf-8") as lines:  # noqa: PTH123
        for line in lines:
            if line.endswith("\n"):
                entry = json.loads(line)
                told[entry["engine"]].append(entry)
    return told


def read_windows(connection: sqlite3.Connection) -> dict[int, list[dict[str, float]]]:
    """Return the windows of each engine, by start, of all tiers together; routes are left out."""
    windows: dict[int, list[dict[str, float]]] = defaultdict(list)
    columns = ", ".join(f"w.{name}" for name in COUNTERS)
    rows = connection.execute(
        f"SELECT s.engine, w.start_time, w.end_time, {columns} FROM windows_raw w "  # noqa: S608 - our names
        "JOIN series s ON s.id = w.series_id WHERE s.route = '*' ORDER BY w.start_time"
    )
    for engine, start, end, *values in rows:
        number = int(engine.rstrip("/").rsplit("/e/", 1)[1].split("/")[0])
        windows[number].append({"start": start, "end": end, **dict(zip(COUNTERS, values, strict=True))})
    return windows


def read_versions(path: str) -> set[str]:
    """Return the versions of schedules that daemons said they had proposed."""
    versions = set()
    with open(path, encoding="utf-8") as lines:  # noqa: PTH123
        for line in lines:
            if '"schedule proposed"' in line and line.endswith("}\n"):
                versions.add(json.loads(line)["version"])
    return versions


def check_order(windows: dict[int, list[dict[str, float]]], faults: list[str]) -> None:
    """Find windows that overlap: their time, and what was counted in it, would count twice."""
    for engine, rows in windows.items():
        for before, after in pairwise(rows):
            if after["start"] < before["end"]:
                faults.append(f"engine {engine}: windows overlap at {after['start']}")


def check_counts(
    engine: int, rows: list[dict[str, float]], told: list[dict[str, float]], faults: list[str]
) -> int:
    """Find windows that hold anything but the difference of two bodies; return how many were compared."""
    matched = 0
    for row in rows:
        first, last = nearest(told, row["start"]), nearest(told, row["end"])
        if first is None or last is None:
            faults.append(f"engine {engine}: no body at an end of the window from {row['start']}")
            continue
        for column, name in COUNTERS.items():
            if row[column] is not None and row[column] != last[name] - first[name]:
                faults.append(
                    f"engine {engine}: window from {row['start']} holds {row[column]} {column}, "
                    f"bodies {last[name] - first[name]}"
                )
        matched += 1
    return matched


def nearest(told: list[dict[str, float]], time: float) -> dict[str, float] | None:
    """Return the body that was given out closest to a time."""
    best = min(told, key=lambda entry: abs(entry["time"] - time), default=None)
    return best if best is not None and abs(best["time"] - time) <= APART else None


def check_kept(
    windows: dict[int, list[dict[str, float]]],
    told: dict[int, list[dict[str, float]]],
    kills: list[tuple[float, float]],
    faults: list[str],
) -> None:
    """Find kills that cost more than the scrapes that were not saved yet."""
    begun = 0.0
    for killed, restarted in kills:
        for engine, entries in told.items():
            bodies = [entry["time"] for entry in entries if begun <= entry["time"] <= killed]
            if len(bodies) <= OPEN_SCRAPES + 1:
                continue
            kept = [row["end"] for row in windows.get(engine, []) if begun <= row["start"] <= killed]
            last = bodies[-1 - OPEN_SCRAPES]
            if not kept or max(kept) < last - APART:
                behind = sum(time > max(kept, default=0.0) + APART for time in bodies)
                faults.append(f"engine {engine}: killed at {killed}, {behind} scrapes are missing")
        begun = restarted


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
