"""Benchmark sweeps: CSV text to rows.

Columns ``batch``, ``draft_len``, ``tokens_per_second``; optional ``arm``, ``context``,
``acceptance_length``, ``tpot_ms``. Blank lines and lines that start with ``#`` are skipped; comma,
semicolon and tab are told apart by the header. What can be misread is refused with file, line and
remedy; what is merely missing or odd is kept out and reported as a finding.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from tuner._exceptions import SweepError
from tuner.fleet import Finding, SweepArm, SweepRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REQUIRED = ("batch", "draft_len", "tokens_per_second")
OPTIONAL = ("arm", "context", "acceptance_length", "tpot_ms")
ARMS: tuple[str, ...] = get_args(SweepArm)
MAX_ROWS = 2_000_000
"""Rows accepted: a million is read in about 3 s and 300 MB; more is a log, not a sweep."""
MAX_BATCH = 1_000_000
MAX_DRAFT_LEN = 1_024
"""Bounds that catch swapped columns: no engine runs a million requests or drafts a thousand tokens."""
_BOUNDS = {
    "batch": (0.5, MAX_BATCH, f"from 1 to {MAX_BATCH}"),
    "draft_len": (-0.5, MAX_DRAFT_LEN, f"from 0 to {MAX_DRAFT_LEN}"),
    "tokens_per_second": (0.0, 1e9, "above 0 and at most 1e9"),
    "context": (0.0, 1e9, "above 0 and at most 1e9"),
    "acceptance_length": (0.0, 1e9, "above 0 and at most 1e9"),
    "tpot_ms": (0.0, 1e9, "above 0 and at most 1e9"),
}
"""Column -> exclusive lower bound, inclusive upper bound, and the rule in words. A fractional batch is a
measured mean: above 0.5 it rounds to 1 or more."""
TPOT_FACTOR = 2.0
"""tokens/s and batch / TPOT differ by prefill and queueing (8855 against 9846, a factor of 1.11, in a
published run at concurrency 256, vllm-project.github.io PR 296); a factor of 2 is a wrong unit."""
SHOWN = 40
"""Characters of a bad cell that an error repeats."""
LISTED = 10
"""Lines that a finding names; the rest is a count."""
ALIASES = {
    "k": "draft_len",
    "gamma": "draft_len",
    "num_speculative_tokens": "draft_len",
    "num_steps": "draft_len",
    "bs": "batch",
    "batch_size": "batch",
    "concurrency": "batch",
    "tok/s": "tokens_per_second",
    "tps": "tokens_per_second",
    "throughput": "tokens_per_second",
    "tpot": "tpot_ms",
    "ctx": "context",
    "context_len": "context",
}
"""Names that engines and benchmarks use, for the hint in an error: never accepted silently, because
``tok/s`` is per user in one tool and per engine in another."""


@dataclass(frozen=True, slots=True)
class SweepFile:
    """The rows of a sweep in the order of the file, and what was odd about them."""

    rows: tuple[SweepRow, ...]
    findings: tuple[Finding, ...]


def read_sweep(data: str | bytes, *, name: str = "sweep.csv") -> SweepFile:
    """Read a benchmark sweep.

    Args:
        data: The text of the file, or its bytes (UTF-8 with or without byte-order mark, UTF-16 with).
        name: What errors and findings call the file.

    Raises:
        SweepError: the text is no such table, or a cell cannot be used; names line, column and remedy.
    """
    text = _decode(data, name)
    lines = _lines(text)
    header = next(((number, line) for number, line in enumerate(lines, start=1) if line), None)
    if header is None:
        raise SweepError(f"{name}: empty: expected a header line with {', '.join(REQUIRED)}")
    header_line, header_text = header
    delimiter = max(",;\t", key=header_text.count)
    names = [_normalise(cell) for cell in next(csv.reader([header_text], delimiter=delimiter))]
    reader = _Reader(name, names, header_line)
    records = csv.reader(_lines(text), delimiter=delimiter)
    rows: list[SweepRow] = []
    try:
        for cells in records:
            if cells and records.line_num > header_line and (row := reader.row(cells, records.line_num)):
                rows.append(row)
                if len(rows) > MAX_ROWS:
                    raise SweepError(
                        f"{name}:{records.line_num}: more than {MAX_ROWS} rows: average repeats first"
                    )
    except csv.Error as error:
        raise SweepError(f"{name}:{records.line_num}: not readable as CSV ({error})") from error
    if not rows:
        raise SweepError(f"{name}: no row with a measured speed: add rows under the header")
    return SweepFile(tuple(rows), reader.findings())


def _decode(data: str | bytes, name: str) -> str:
    """Turn bytes into text without guessing an encoding."""
    if isinstance(data, bytes):
        encoding = "utf-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8"
        try:
            data = data.decode(encoding)
        except UnicodeDecodeError as error:
            raise SweepError(f"{name}: not text in {encoding}: save the sheet as CSV UTF-8") from error
    if "\0" in data:
        raise SweepError(f"{name}: holds a zero byte, so it is not a CSV file: save the sheet as CSV UTF-8")
    return data.removeprefix("\ufeff")


def _lines(text: str) -> Iterator[str]:
    """Yield the lines, comments and blank ones emptied so that line numbers stay those of the file."""
    for line in io.StringIO(text, newline=None):
        stripped = line.strip()
        yield "" if stripped.startswith("#") or not stripped.strip(",;\t ") else line.rstrip()


def _normalise(cell: str) -> str:
    return cell.strip().lower().replace(" ", "_").replace("-", "_")


@dataclass(slots=True)
class _Reader:
    """Turns the cells of one record into a row, and remembers what was odd."""

    name: str
    header: Sequence[str]
    line: int
    at: dict[str, int] = field(init=False)
    notes: dict[str, list[int]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Check the header."""
        self.at = {column: place for place, column in enumerate(self.header) if column}
        doubled = [column for column, times in Counter(self.header).items() if column and times > 1]
        if doubled:
            raise SweepError(
                f"{self.name}:{self.line}: column {doubled[0]!r} appears twice: remove one of them"
            )
        missing = [column for column in REQUIRED if column not in self.at]
        if missing:
            raise SweepError(f"{self.name}:{self.line}: {self._missing(missing)}")

    def _missing(self, missing: Sequence[str]) -> str:
        """Say which columns are missing and which of the present ones may be meant."""
        text = f"no column {' and no column '.join(missing)}"
        unknown = [column for column in self.header if column not in (*REQUIRED, *OPTIONAL)]
        hints = []
        for column in unknown:
            meant = ALIASES.get(column) or next(iter(difflib.get_close_matches(column, missing, 1)), None)
            if meant in missing:
                hints.append(f"rename {_show(column)} to {meant} if that is what it holds")
        return f"{text}: {'; '.join(hints) if hints else 'the first line must name the columns'}"

    def row(self, cells: Sequence[str], line: int) -> SweepRow | None:
        """Return the row, or ``None`` for one whose speed was left blank."""
        if len(cells) > len(self.header) and any(cell.strip() for cell in cells[len(self.header) :]):
            raise SweepError(
                f"{self.name}:{line}: {len(cells)} cells under {len(self.header)} columns: "
                "write numbers with a decimal point and without thousands separators"
            )
        arm = self._arm(cells, line)
        batch = self._number(cells, "batch", line)
        if batch is None:
            raise self._bad("batch", "", line, "blank: give a batch size from 1")
        if batch != int(batch):
            self._note("fractional_batch", line)
        draft_len = self._draft_len(cells, arm, line)
        speed = self._number(cells, "tokens_per_second", line)
        if speed is None:
            self._note("sweep_hole", line)
            return None
        whole_batch = max(1, round(batch))
        length = self._acceptance_length(cells, draft_len, line)
        tpot = self._number(cells, "tpot_ms", line)
        if tpot is not None and not 1 / TPOT_FACTOR < whole_batch * 1e3 / tpot / speed < TPOT_FACTOR:
            self._note("tpot_mismatch", line)
        context = self._number(cells, "context", line)
        return SweepRow(whole_batch, draft_len, speed, arm, context, length, tpot)

    def _cell(self, cells: Sequence[str], column: str) -> str:
        place = self.at.get(column)
        return cells[place].strip() if place is not None and place < len(cells) else ""

    def _number(self, cells: Sequence[str], column: str, line: int) -> float | None:
        """Return the number, or ``None`` for a blank cell."""
        text = self._cell(cells, column)
        if not text:
            return None
        above, most, rule = _BOUNDS[column]
        try:
            value = float(text)
        except ValueError:
            remedy = "write it with a decimal point, without unit or thousands separator"
            raise self._bad(column, text, line, f"is not a number: {remedy}") from None
        if not math.isfinite(value):
            raise self._bad(
                column, text, line, "is not a finite number: leave the cell blank if the run failed"
            )
        if not above < value <= most:
            raise self._bad(
                column, text, line, f"must be {rule}: correct it, or remove the row if the run failed"
            )
        return value

    def _arm(self, cells: Sequence[str], line: int) -> SweepArm:
        text = self._cell(cells, "arm").lower()
        if text in {"", "static"}:
            return "static"
        if text == "schedule":
            return "schedule"
        if text == "none":
            return "none"
        raise self._bad("arm", text, line, f"must be one of {', '.join(ARMS)}, or blank for static")

    def _draft_len(self, cells: Sequence[str], arm: SweepArm, line: int) -> int | None:
        value = self._number(cells, "draft_len", line)
        if value is None:
            if arm == "static":
                raise self._bad("draft_len", "", line, "blank: give the draft length, 0 without speculation")
            return 0 if arm == "none" else None
        if value != int(value):
            raise self._bad("draft_len", f"{value:g}", line, "must be a whole number")
        if arm == "none" and value:
            raise self._bad(
                "draft_len",
                f"{value:g}",
                line,
                "arm none has no drafter: give 0, or the arm static or schedule",
            )
        return int(value)

    def _acceptance_length(self, cells: Sequence[str], draft_len: int | None, line: int) -> float | None:
        """Return tokens per verify step; one outside 1..K+1 is impossible and left out, never clamped."""
        value = self._number(cells, "acceptance_length", line)
        if value is None:
            return None
        if value < 1 or (draft_len is not None and value > draft_len + 1):
            self._note("impossible_acceptance_length", line)
            return None
        return value

    def _bad(self, column: str, text: str, line: int, what: str) -> SweepError:
        shown = f"{_show(text)} {what}" if text else what
        return SweepError(f"{self.name}:{line}: column {column}: {shown}")

    def _note(self, code: str, line: int) -> None:
        self.counts[code] += 1
        lines = self.notes.setdefault(code, [])
        if len(lines) < LISTED:
            lines.append(line)

    def findings(self) -> tuple[Finding, ...]:
        """Return one finding per kind of oddity."""
        found = [
            _finding(
                code, severity, message, self.name, {"rows": self.counts[code], "lines": self.notes[code]}
            )
            for code, severity, message in _ODD
            if code in self.counts
        ]
        unknown = [column for column in self.header if column and column not in (*REQUIRED, *OPTIONAL)]
        if unknown:
            message = (
                f"column {', '.join(map(_show, unknown))} is not known and was ignored: rows that differ in "
                "nothing else are taken as repeats of one cell"
            )
            found.append(_finding("unknown_column", "warning", message, self.name, {"columns": unknown}))
        return tuple(found)


_ODD = (
    (
        "sweep_hole",
        "warning",
        "rows without tokens_per_second were left out: measure these cells, or remove the rows",
    ),
    (
        "fractional_batch",
        "info",
        "batch sizes were rounded to whole numbers, because a schedule is keyed by whole batch sizes",
    ),
    (
        "impossible_acceptance_length",
        "warning",
        "acceptance lengths outside 1..draft_len+1 were left out: count the bonus token, once",
    ),
    (
        "tpot_mismatch",
        "warning",
        "tokens_per_second is far from batch / tpot_ms: give tokens/s of the whole batch and TPOT in ms",
    ),
)


def _finding(code: str, severity: str, message: str, name: str, evidence: dict[str, object]) -> Finding:
    return Finding(
        code=code,
        severity="info" if severity == "info" else "warning",
        message=message,
        subject={"file": name},
        evidence=evidence,
    )


def _show(text: str) -> str:
    """Return a cell for an error: quoted, on one line, cut to a readable length."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")
