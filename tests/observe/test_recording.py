"""Recordings: a folder of scrapes by time, in which one bad file is an outcome and not the end."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from tests.observe.bodies import VOCABULARY, Server, body, codes, windows_of
from tuner._exceptions import ExpositionError, InputError, RecordingError
from tuner.observe.exposition import MAX_BODY_BYTES, Scrape
from tuner.observe.recording import read_recording
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from pathlib import Path

WANTED = VOCABULARY.sample_names


def write(folder: Path, scrapes: int = 4, *, packed: bool = True) -> Server:
    """Record a busy server every 4 s."""
    server = Server()
    for _ in range(scrapes):
        text = body(server.lines()).encode()
        name = f"{round(server.time * 1000)}.prom"
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text))
        else:
            (folder / name).write_bytes(text)
        server.run(4, 8, 2)
    return server


def results(folder: Path) -> list[Scrape | InputError]:
    return [scrape.result for scrape in read_recording(folder).scrapes(WANTED)]


@pytest.mark.parametrize("packed", [True, False])
def test_scrapes_come_in_the_order_of_time(tmp_path: Path, packed: bool) -> None:
    """Packed or not, files are read by the time in their names, which are milliseconds."""
    write(tmp_path, packed=packed)
    (tmp_path / "load.log").write_text("not for the product")
    times = [scrape.time for scrape in read_recording(tmp_path)]
    assert times == [2_000_000_000.0 + 4 * i for i in range(4)]


def test_times_are_sorted_as_numbers(tmp_path: Path) -> None:
    """A shorter number is an earlier time, whatever the alphabet says."""
    for name in ("1000000000000", "999999999999"):
        (tmp_path / f"{name}.prom").write_text("a 1\n")
    assert [scrape.time for scrape in read_recording(tmp_path)] == [999999999.999, 1000000000.0]


def test_a_bad_scrape_is_an_outcome_and_the_windows_span_it(tmp_path: Path) -> None:
    """A torn gzip file is one finding; the window around it takes the real time stamps."""
    write(tmp_path, 5)
    victim = sorted(tmp_path.iterdir())[2]
    victim.write_bytes(victim.read_bytes()[:100])
    outcomes = list(read_recording(tmp_path).scrapes(WANTED))
    assert [isinstance(o.result, Scrape) for o in outcomes] == [True, True, False, True, True]
    result = windows_of(outcomes)
    assert [window.seconds for window in result.windows] == [4, 8, 4]
    assert [window.tokens_per_second for window in result.windows] == pytest.approx(
        [result.windows[0].tokens_per_second] * 3
    )
    assert "scrape_invalid" in codes(result)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"<html></html>", "html"),
        (gzip.compress(b"a 1\n") + b"garbage", "undecodable"),
        (b"a 1", "truncated"),
    ],
    ids=["empty", "html", "garbage after gzip", "truncated"],
)
def test_bad_bodies_are_told_apart(tmp_path: Path, content: bytes, reason: str) -> None:
    """Each kind of bad body keeps its own reason."""
    write(tmp_path)
    (tmp_path / "2100000000000.prom").write_bytes(content)
    error = results(tmp_path)[-1]
    assert isinstance(error, ExpositionError)
    assert error.reason == reason


@pytest.mark.parametrize("content", [b"", b"not gzip", gzip.compress(b"a 1\n")[:-4]])
def test_a_broken_gzip_file_is_named(tmp_path: Path, content: bytes) -> None:
    """Empty, foreign and torn files do not end the reading."""
    write(tmp_path)
    (tmp_path / "2100000000000.prom.gz").write_bytes(content)
    assert isinstance(results(tmp_path)[-1], ExpositionError)


def test_an_unpacking_bomb_is_bounded(tmp_path: Path) -> None:
    """A small file that unpacks to gigabytes is read up to the limit and refused."""
    write(tmp_path)
    (tmp_path / "2100000000000.prom.gz").write_bytes(gzip.compress(b"#" * (MAX_BODY_BYTES + 2)))
    error = results(tmp_path)[-1]
    assert isinstance(error, ExpositionError)
    assert error.reason == "oversize"


def test_a_folder_in_place_of_a_file_is_an_outcome(tmp_path: Path) -> None:
    """What cannot be opened is an error of that scrape alone."""
    write(tmp_path)
    (tmp_path / "2100000000000.prom").mkdir()
    assert isinstance(results(tmp_path)[-1], RecordingError)


def test_a_second_file_for_one_time_is_left_out(tmp_path: Path) -> None:
    """Packed and plain for one moment: one of them, and a finding."""
    write(tmp_path)
    first = min(tmp_path.iterdir())
    first.with_suffix("").write_bytes(b"a 1\n")
    recording = read_recording(tmp_path)
    assert (len(recording), [finding.code for finding in recording.findings]) == (4, ["scrape_duplicate"])


def test_a_scrape_without_a_time_is_left_out(tmp_path: Path) -> None:
    """A name that is no number is reported, not guessed."""
    write(tmp_path)
    (tmp_path / "latest.prom").write_text("a 1\n")
    recording = read_recording(tmp_path)
    assert (len(recording), [finding.code for finding in recording.findings]) == (4, ["scrape_name_invalid"])


def test_recordings_that_hold_no_window_are_refused(tmp_path: Path) -> None:
    """No folder, a file, no scrape, one scrape, names in seconds: one line that says what to give."""
    empty, single, seconds = (tmp_path / name for name in ("empty", "single", "seconds"))
    for folder in (empty, single, seconds):
        folder.mkdir()
    write(single, 1)
    for time in (1795954360, 1795954364):
        (seconds / f"{time}.prom").write_text("a 1\n")
    lone = tmp_path / "x.prom"
    lone.write_text("a 1\n")
    for path in (tmp_path / "none", lone, empty, single, seconds):
        with pytest.raises(RecordingError, match="unix milliseconds") as caught:
            read_recording(path)
        assert "\n" not in str(caught.value)


def test_files_under_other_names_are_counted_and_one_is_named(tmp_path: Path) -> None:
    """Sixty files that are not named by their time are no empty folder: the message shows what to rename."""
    for i in range(60):
        (tmp_path / f"metrics-{i:02}.txt").write_text("a 1\n")
    with pytest.raises(RecordingError) as refused:
        read_recording(tmp_path)
    assert "holds 60 files, none of them named like 1764000000000.prom" in str(refused.value)
    assert "metrics-00.txt" in str(refused.value)


def test_every_kind_of_bad_scrape_is_counted_and_shown_by_name(tmp_path: Path) -> None:
    """Three bad scrapes of two kinds: each kind with its count and one of its files."""
    write(tmp_path)
    for name, content in (("2100000000000", b""), ("2100000004000", b"<html>\n"), ("2100000008000", b"")):
        (tmp_path / f"{name}.prom").write_bytes(content)
    result = windows_of(list(read_recording(tmp_path).scrapes(WANTED)))
    (finding,) = [finding for finding in result.findings if finding.code == "scrape_invalid"]
    assert finding.message.startswith("3 of 7 scrapes cannot be used: 2 empty (2100000000000.prom: ")
    assert "; 1 html (2100000004000.prom: " in finding.message


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1 scrape was"), (2, "2 scrapes were"), (0, "0 scrapes were")]
)
def test_counts_agree_with_their_noun(number: int, text: str) -> None:
    """One scrape was, two scrapes were."""
    assert counted(number, "scrape", "was") == text
