"""Sweep files: what is read, what is refused with place and remedy, what is reported."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuner._exceptions import SweepError
from tuner.fleet import SweepRow
from tuner.observe import sweep
from tuner.observe.sweep import SweepFile, read_sweep

HEADER = "batch,draft_len,tokens_per_second"
FULL = "batch,draft_len,tokens_per_second,arm,context,acceptance_length,tpot_ms"


def read(*lines: str, header: str = HEADER) -> SweepFile:
    return read_sweep("\n".join([header, *lines]) + "\n", name="s.csv")


def refusal(*lines: str, header: str = HEADER) -> str:
    with pytest.raises(SweepError) as caught:
        read(*lines, header=header)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("s.csv")
    return message


def findings(file: SweepFile) -> dict[str, dict[str, object]]:
    return {finding.code: dict(finding.evidence) for finding in file.findings}


PLAIN = [SweepRow(1, 0, 100.0), SweepRow(8, 2, 400.5)]


@pytest.mark.parametrize(
    "text",
    [
        "batch,draft_len,tokens_per_second\n1,0,100\n8,2,400.5\n",
        "batch,draft_len,tokens_per_second\r\n1,0,100\r\n8,2,400.5\r\n",
        "batch,draft_len,tokens_per_second\r1,0,100\r8,2,400.5",
        "\ufeffbatch,draft_len,tokens_per_second\n1,0,100\n8,2,400.5",
        "batch;draft_len;tokens_per_second\n1;0;100\n8;2;400.5\n",
        "batch\tdraft_len\ttokens_per_second\n1\t0\t100\n8\t2\t400.5\n",
        "# one\n\nbatch,draft_len,tokens_per_second\n1,0,100\n\n# two, with a comma\n,,\n8,2,400.5\n",
        ' Batch , Draft-Len ,"Tokens per second"\n 1 , 0 ,"100"\n8, 2.0 ,4.005e2\n',
        "tokens_per_second,batch,draft_len\n100,1,0\n400.5,8,2\n",
        "batch,draft_len,tokens_per_second,,\n1,0,100,,\n8,2,400.5,,\n",
    ],
)
def test_forms_of_one_table(text: str) -> None:
    """Line ends, byte-order mark, delimiters, comments, blanks, quotes and column order do not matter."""
    assert list(read_sweep(text).rows) == PLAIN
    assert list(read_sweep(text.encode()).rows) == PLAIN
    assert list(read_sweep(text.removeprefix("\ufeff").encode("utf-16")).rows) == PLAIN
    assert read_sweep(text).findings == ()


def test_optional_columns() -> None:
    """Arms, contexts, acceptance lengths and TPOT are read; blank ones are not there."""
    file = read(
        "64,2,900,static,400,2.1,70", "64,,950,schedule,,,", "64,,800,None,,,", "64,0,810,,,,", header=FULL
    )
    assert list(file.rows) == [
        SweepRow(64, 2, 900.0, "static", 400.0, 2.1, 70.0),
        SweepRow(64, None, 950.0, "schedule"),
        SweepRow(64, 0, 800.0, "none"),
        SweepRow(64, 0, 810.0, "static"),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("8,2,fast", "s.csv:2: column tokens_per_second: 'fast' is not a number"),
        ("8,2,400 tok/s", "without unit"),
        ("8,2,-5", "'-5' must be above 0"),
        ("8,2,0", "'0' must be above 0"),
        ("8,2,nan", "'nan' is not a finite number: leave the cell blank"),
        ("8,2,inf", "'inf' is not a finite number"),
        ("8,2,1e400", "is not a finite number"),
        ("8,2,1e15", "must be above 0 and at most 1e9"),
        ("8,-1,400", "column draft_len: '-1' must be from 0 to 1024"),
        ("8,2.5,400", "column draft_len: '2.5' must be a whole number"),
        ("8,,400", "column draft_len: blank: give the draft length, 0 without speculation"),
        ("0,2,400", "column batch: '0' must be from 1"),
        ("-4,2,400", "column batch: '-4' must be from 1"),
        (",2,400", "column batch: blank"),
        ("8,2,1,203", "4 cells under 3 columns"),
        ("8,2,\u200b400", "is not a number"),
        ("8,2," + "9" * 5000, "…"),
    ],
)
def test_bad_cells_name_line_column_and_remedy(line: str, words: str) -> None:
    """A cell that cannot be used is one short line with file, line, column and what to do."""
    message = refusal("1,0,100", line) if words.startswith("s.csv:3") else refusal(line)
    assert words in message
    assert len(message) < 220


def test_line_numbers_are_those_of_the_file() -> None:
    """Comments and blank lines count."""
    assert refusal("# note", "", "1,0,100", "8,x,400").startswith("s.csv:5: column draft_len: 'x'")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("batch,draft_len", "s.csv:1: no column tokens_per_second: the first line must name the columns"),
        ("1,0,100", "no column batch and no column draft_len and no column tokens_per_second"),
        ("bs,K,tok/s", "rename 'bs' to batch if that is what it holds"),
        ("batch,draft_len,tokens_per_sec", "rename 'tokens_per_sec' to tokens_per_second"),
        ("batch,batch,draft_len,tokens_per_second", "column 'batch' appears twice: remove one"),
        ("batch,draft_len,tokens_per_second,Tokens per Second", "appears twice"),
        ("<!doctype html>", "no column batch"),
    ],
)
def test_bad_headers_say_what_is_missing(header: str, words: str) -> None:
    """A header without a needed column, or with one twice, is refused with a hint."""
    assert words in refusal("8,2,400", header=header)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("8,2,400,dynamic,,,", "column arm: 'dynamic' must be one of static, schedule, none"),
        ("8,2,400,none,,,", "column draft_len: '2' arm none has no drafter"),
        ("8,2,400,,-1,,", "column context: '-1' must be above 0"),
        ("8,2,400,,,x,", "column acceptance_length: 'x' is not a number"),
        ("8,2,400,,,,0", "column tpot_ms: '0' must be above 0"),
    ],
)
def test_bad_optional_cells_are_refused(line: str, words: str) -> None:
    """Optional columns are held to the same standard."""
    assert words in refusal(line, header=FULL)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# only a comment\n", "\ufeff", "batch,draft_len,tokens_per_second\n"]
)
def test_files_without_rows_are_refused(text: str) -> None:
    """Nothing, only comments, or only a header: one line that says so."""
    with pytest.raises(SweepError, match=r"s\.csv: (empty|no row)"):
        read_sweep(text, name="s.csv")


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n\xff\xfe", b"batch\x00,draft_len", b"\xff\xfea", b"PK\x03\x04\xff"]
)
def test_binary_files_are_refused(data: bytes) -> None:
    """A picture, a spreadsheet or zero bytes: save as CSV UTF-8."""
    with pytest.raises(SweepError, match=r"save the sheet as CSV UTF-8|no column"):
        read_sweep(data, name="s.csv")


def test_blank_speeds_are_holes() -> None:
    """A row whose speed is blank is left out and reported with its line; the others stay."""
    file = read("1,0,100", "8,2,", "16,2", "8,3,500")
    assert [row.batch for row in file.rows] == [1, 8]
    assert findings(file) == {"sweep_hole": {"rows": 2, "lines": [3, 4]}}


def test_unknown_columns_are_reported() -> None:
    """A column nobody knows is ignored with a warning, since rows that differ only in it become repeats."""
    file = read("1,0,100,a", "1,0,101,b", header=HEADER + ",machine")
    assert findings(file) == {"unknown_column": {"columns": ["machine"]}}


def test_fractional_batches_are_rounded_and_reported() -> None:
    """A measured mean batch of 7.4 becomes 7, 0.9 becomes 1."""
    file = read("7.4,2,400", "0.9,2,60", "8.0,2,410")
    assert [row.batch for row in file.rows] == [7, 1, 8]
    assert findings(file) == {"fractional_batch": {"rows": 2, "lines": [2, 3]}}


def test_impossible_acceptance_lengths_are_left_out() -> None:
    """Outside 1..K+1 a length is quarantined, not clamped; at K+1 it is the ceiling and stays."""
    file = read("1,1,100,,,2.0,", "1,1,100,,,2.01,", "1,1,100,,,0.9,", "1,0,100,,,1,", header=FULL)
    assert [row.acceptance_length for row in file.rows] == [2.0, None, None, 1.0]
    assert findings(file) == {"impossible_acceptance_length": {"rows": 2, "lines": [3, 4]}}


def test_speeds_of_one_user_are_noticed() -> None:
    """100 tokens/s at batch 8 and a TPOT of 10 ms cannot both be of the whole batch."""
    assert "tpot_mismatch" in findings(read("8,0,100,,,,10", header=FULL))
    assert "tpot_mismatch" not in findings(read("256,0,8855,,,,26.0", header=FULL))


def test_files_beyond_the_limit_are_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row more than the limit is refused with its line."""
    monkeypatch.setattr(sweep, "MAX_ROWS", 100)
    assert len(read(*["1,0,9"] * 100).rows) == 100
    assert refusal(*["1,0,9"] * 101) == "s.csv:102: more than 100 rows: average repeats first"


@pytest.mark.long
def test_a_million_rows() -> None:
    """A million rows are read whole."""
    body = "".join(f"{2 ** (i % 8)},{i % 4},{100 + i % 7}\n" for i in range(1000)) * 1000
    assert len(read_sweep(f"{HEADER}\n{body}").rows) == 1_000_000


VALID = f"{FULL}\n1,0,100,static,400,1,10\n8,2,400.5,,900,2.2,\n8,,380,schedule,900,,\n"


@given(st.text(max_size=200))
@example('"')
@example('batch,draft_len,tokens_per_second\n"1,2,3')
@example("batch,draft_len,tokens_per_second\n1,2,3\x00")
@example("batch,draft_len,tokens_per_second\n1,\ud800,3")
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    """No text breaks the reader."""
    try:
        read_sweep(text)
    except SweepError as error:
        assert "\n" not in str(error)  # noqa: PT017  # either outcome is right


def test_mutated_files_are_read_or_refused_in_one_line() -> None:
    """Two thousand damaged copies of a good file: rows or one line, never a traceback."""
    rng = random.Random(11)
    outcomes = {True: 0, False: 0}
    for _ in range(2000):
        damaged = bytearray(VALID.encode())
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(damaged))
            kind = rng.randrange(4)
            if kind == 0:
                damaged[place] = rng.randrange(256)
            elif kind == 1:
                del damaged[place : place + rng.randint(1, 20)]
            elif kind == 2:
                damaged[place:place] = rng.choice(
                    [b",", b"\n", b'"', b"nan", b"-", b"1e999", b"\xef\xbb\xbf"]
                )
            else:
                damaged[place:place] = damaged[: rng.randint(1, 60)]
            damaged = damaged or bytearray(b"x")
        try:
            rows = read_sweep(bytes(damaged)).rows
            assert all(row.tokens_per_second > 0 for row in rows)
            outcomes[True] += 1
        except SweepError as error:
            assert "\n" not in str(error)  # noqa: PT017  # either outcome is right
            outcomes[False] += 1
    assert min(outcomes.values()) > 100
