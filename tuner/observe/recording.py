"""A folder of recorded scrapes -> bodies in the order of time.

A recording is a folder of ``<unix milliseconds>.prom`` or ``.prom.gz``; other files are ignored.
One bad scrape is an outcome of its own and never ends the reading.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tuner._exceptions import ExpositionError, InputError, RecordingError
from tuner.fleet import Finding
from tuner.observe.exposition import MAX_BODY_BYTES, TimedScrape, parse
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_NAME = re.compile(r"([0-9]{1,16})\.prom(?:\.gz)?")
_SCRAPE = re.compile(r".+\.prom(?:\.gz)?")
_FIRST_MILLISECOND = 10**11
"""Unix milliseconds passed this in 1973; a smaller name was written in seconds."""
_WANTED_SCRAPES = 2
_EXAMPLE = "1764000000000.prom"
_LAYOUT = "give a folder of files named <unix milliseconds>.prom or .prom.gz"


class RecordedScrape(NamedTuple):
    """One file of a recording: its body, or why there is none."""

    time: float
    """Unix seconds, from the file's name."""
    body: bytes | InputError


@dataclass(frozen=True, slots=True)
class Recording:
    """The scrapes of a folder in the order of time; bodies are read when asked for."""

    path: Path
    files: tuple[tuple[float, Path], ...]
    findings: tuple[Finding, ...] = ()

    def __len__(self) -> int:
        """Return the number of scrapes, bad ones included."""
        return len(self.files)

    def __iter__(self) -> Iterator[RecordedScrape]:
        """Read one body after the other."""
        for time, path in self.files:
            yield RecordedScrape(time, _read(path))

    def scrapes(self, wanted: Collection[str]) -> Iterator[TimedScrape]:
        """Parse one body after the other; a bad one becomes its error."""
        for (time, body), (_, path) in zip(self, self.files, strict=True):
            if isinstance(body, InputError):
                yield TimedScrape(time, body)
                continue
            try:
                yield TimedScrape(time, parse(body, wanted=wanted))
            except ExpositionError as error:
                yield TimedScrape(time, ExpositionError(f"{path.name}: {error}", reason=error.reason))


def read_recording(path: Path | str) -> Recording:
    """List the scrapes of a recording.

    Raises:
        RecordingError: no such folder, a single file, or fewer than two scrapes in it.
    """
    folder = Path(path)
    if not folder.exists():
        raise RecordingError(f"{folder}: no such folder; {_LAYOUT}")
    if not folder.is_dir():
        raise RecordingError(f"{folder}: a single file, but a window needs two scrapes; {_LAYOUT}")
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise RecordingError(f"{folder}: cannot be listed: {error.strerror}") from None
    files, findings = _timed(folder, names)
    if len(files) < _WANTED_SCRAPES:
        raise RecordingError(f"{folder}: {_too_few(files, names)}, a window needs two; {_LAYOUT}")
    return Recording(folder, tuple(sorted(files.items())), tuple(findings))


def _too_few(files: dict[float, Path], names: list[str]) -> str:
    """Say what a folder holds in place of scrapes; most often scrapes under names of another kind."""
    if files or not names:
        return f"holds {counted(len(files), 'scrape')}"
    return f"holds {counted(len(names), 'file')}, none of them named like {_EXAMPLE} (the first: {names[0]})"


def _timed(folder: Path, names: list[str]) -> tuple[dict[float, Path], list[Finding]]:
    """Sort out the scrapes by the time in their names."""
    files: dict[float, Path] = {}
    unreadable: list[str] = []
    doubled: list[str] = []
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None:
            if _SCRAPE.fullmatch(name):
                unreadable.append(name)
            continue
        milliseconds = int(found[1])
        if milliseconds < _FIRST_MILLISECOND:
            raise RecordingError(f"{folder / name}: the name is not in unix milliseconds; {_LAYOUT}")
        if milliseconds / 1000 in files:
            doubled.append(name)
            continue
        files[milliseconds / 1000] = folder / name
    findings = []
    if unreadable:
        findings.append(_ignored("scrape_name_invalid", folder, unreadable, "names without a time"))
    if doubled:
        findings.append(_ignored("scrape_duplicate", folder, doubled, "a second file for the same time"))
    return files, findings


def _ignored(code: str, folder: Path, names: list[str], why: str) -> Finding:
    """Report files that were left out."""
    return Finding(
        code,
        "warning",
        f"{counted(len(names), 'scrape file', 'was')} left out ({why}): {names[0]}",
        {"recording": str(folder)},
        {"files": names[:10], "count": len(names)},
    )


def _read(path: Path) -> bytes | InputError:
    """Return the body of one file, unpacked and bounded, or what is wrong with it."""
    try:
        with path.open("rb") as plain:
            if path.suffix != ".gz":
                return plain.read(MAX_BODY_BYTES + 1)
            with gzip.GzipFile(fileobj=plain) as packed:
                return packed.read(MAX_BODY_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return ExpositionError(f"{path.name}: not a whole gzip file: record this scrape again", reason="gzip")
    except OSError as error:
        return RecordingError(f"{path.name}: cannot be read: {error.strerror or error}")
