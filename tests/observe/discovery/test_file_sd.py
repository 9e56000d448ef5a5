"""Targets from files: JSON and YAML, read when they change, kept where they are broken."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.observe.discovery.helper import codes, directory, engines, groups, write
from tuner.observe.discovery import EnginesSpec
from tuner.observe.discovery import file_sd as module
from tuner.observe.discovery.file_sd import LARGEST_FILE

if TYPE_CHECKING:
    from pathlib import Path


def test_json_and_yaml_by_wildcards(tmp_path: Path) -> None:
    """All files that match are taken together, in either form."""
    write(tmp_path / "a.json", groups("h:1", "h:2"))
    write(tmp_path / "b.yml", "- targets: ['h:3']\n  labels: {pod: x}\n- targets: [h:4]\n")
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "c.yaml", "- targets: ['h:5']\n")
    patterns = (str(tmp_path / "*.json"), str(tmp_path / "**" / "*.y*ml"))

    roster = directory(EnginesSpec("p", file_sd=patterns)).refresh(0.0)

    assert list(engines(roster)) == ["h:1", "h:2", "h:3", "h:4", "h:5"]
    assert roster.findings == ()
    assert roster.sources_up == {"file_sd": True}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", groups("h:1", "h:2")[:-9]),
        ("a.json", ""),
        ("a.json", "null"),
        ("a.json", '{"targets": ["h:1"]}'),
        ("a.json", '["h:1"]'),
        ("a.json", '[{"targets": "h:1"}]'),
        ("a.json", '[{"targets": [1]}]'),
        ("a.json", '[{"targets": ["h:9"], "labels": {"a": 1}}]'),
        ("a.json", '[{"target": ["h:9"]}]'),
        ("a.json", "[" * 100_000),
        ("a.json", '[{"targets": ["h:9"]}]' + " " * LARGEST_FILE),
        ("a.json", json.dumps([{"targets": ["h:9"] * 20_001}])),
        ("a.yaml", "- targets: [h:9\n"),
        ("a.yaml", "- targets: ['h:9']\n  labels: {a: yes}\n"),
        ("a.yaml", "a: &a [x, x]\nb: &b [*a, *a]\n"),
        ("a.yaml", "- &a {targets: ['h:9']}\n" + "- *a\n" * 20_000),
        ("a.yaml", "!!python/object/apply:os.system ['true']\n"),
        ("a.yaml", "\x00"),
    ],
)
def test_a_broken_file_keeps_what_it_said(tmp_path: Path, name: str, text: str) -> None:
    """Half-written, empty, of another form or dangerous: the last good list stays, with a finding."""
    path = write(tmp_path / name, groups("h:1"))
    other = write(tmp_path / "other.json", groups("h:2"))
    book = directory(EnginesSpec("p", file_sd=(str(path), str(other))))
    assert codes(book.refresh(0.0)) == []

    write(path, text)
    roster = book.refresh(1.0)

    assert list(engines(roster)) == ["h:1", "h:2"]
    assert codes(roster) == ["discovery_failed"]
    assert str(path) in roster.findings[0].message
    assert roster.findings[0].message.isprintable()
    assert roster.sources_up == {"file_sd": False}
    assert codes(book.refresh(2.0)) == ["discovery_failed"]

    write(path, groups("h:3"))
    assert list(engines(book.refresh(3.0))) == ["h:2", "h:3"]


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between changes a file is looked at and not read, whether it is good or bad."""
    read: list[str] = []
    document = module._document

    def noted(path: str) -> object:
        read.append(path)
        return document(path)

    monkeypatch.setattr(module, "_document", noted)
    good, bad = write(tmp_path / "a.json", groups("h:1")), write(tmp_path / "b.json", "[")
    book = directory(EnginesSpec("p", file_sd=(str(tmp_path / "*.json"),)))

    for _ in range(5):
        assert list(engines(book.refresh(0.0))) == ["h:1"]
    assert read == [str(good), str(bad)]

    stat = good.stat()
    write(good, groups("h:2"))
    os.utime(good, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size, same time: another inode
    assert list(engines(book.refresh(0.0))) == ["h:2"]
    assert len(read) == 3


def test_a_file_that_is_gone_takes_its_targets_along(tmp_path: Path) -> None:
    """Removing a file is how its engines are taken out; a pool without any is told to be empty."""
    one, two = write(tmp_path / "a.json", groups("h:1")), write(tmp_path / "b.json", groups("h:2"))
    book = directory(EnginesSpec("p", file_sd=(str(tmp_path / "*.json"),)))
    book.refresh(0.0)

    one.unlink()
    assert list(engines(book.refresh(1.0))) == ["h:2"]
    two.unlink()
    roster = book.refresh(2.0)
    assert roster.targets == ()
    assert codes(roster) == codes(book.refresh(3.0)) == ["file_sd_unmatched", "pool_empty"]
    assert roster.sources_up == {"file_sd": True}


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """A mount that fell away says nothing about engines: what its files said stays."""
    folder = tmp_path / "mount"
    folder.mkdir()
    write(folder / "a.json", groups("h:1"))
    book = directory(EnginesSpec("p", file_sd=(str(folder / "*.json"),)))
    book.refresh(0.0)

    shutil.rmtree(folder)
    roster = book.refresh(1.0)

    assert list(engines(roster)) == ["h:1"]
    assert codes(roster) == ["discovery_failed"]
    assert f"folder {folder} cannot be read" in roster.findings[0].message


def test_a_file_that_was_never_there(tmp_path: Path) -> None:
    """A pattern that matches nothing is told with what to do; a wrong ending likewise."""
    write(tmp_path / "a.txt", groups("h:1"))
    spec = EnginesSpec("p", file_sd=(str(tmp_path / "*.json"), str(tmp_path / "a.txt")))

    roster = directory(spec).refresh(0.0)

    assert codes(roster) == ["discovery_failed", "file_sd_unmatched"]
    assert "has none of the endings" in roster.findings[0].message
    assert "*.json: write one, or correct the pattern" in roster.findings[1].message
