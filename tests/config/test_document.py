"""The text of a settings file: YAML 1.2, lines, and what is wrong with the text itself."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.config.document import read_document


def _faults(text: str | bytes) -> list[tuple[int, str]]:
    """Return line and problem of every fault."""
    content = text if isinstance(text, bytes) else text.encode()
    return [(fault.line, fault.problem) for fault in read_document(content).faults]


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("07:00", "07:00"),
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("70e9", 70e9),
        ("1_000", "1_000"),
        ("0o17", 15),
        ("0x1F", 31),
        ("017", 17),
        ("2026-11-29", "2026-11-29"),
        ('"15"', "15"),
        ("15s", "15s"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(scalar: str, value: Any) -> None:
    """``07:00`` is no base-60 number, ``off`` no boolean, a date no date, ``70e9`` a number."""
    assert read_document(f"a: {scalar}\n".encode()).data == {"a": value}


def test_every_key_knows_its_line() -> None:
    """Keys, list items and keys of flow mappings have the line they stand on; others that of their parent."""
    document = read_document(b"a:\n  b: 1\n  c:\n  - x\n  - {d: 2,\n     e: 3}\n")

    lines = {
        loc: document.line_of(loc) for loc in (("a", "b"), ("a", "c", 0), ("a", "c", 1, "e"), ("a", "zz"))
    }

    assert list(lines.values()) == [2, 4, 6, 1]


def test_byte_order_mark_and_windows_line_ends() -> None:
    """Files from other systems are read, with the same lines."""
    document = read_document(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")

    assert document.data == {"a": 1, "b": 2}
    assert document.line_of(("b",)) == 2


def test_anchors_and_merges() -> None:
    """``<<`` fills in what is not given, one alias or several, and never overrides."""
    document = read_document(b"x: &x {a: 1, b: 1}\ny: &y {c: 1}\nz:\n  <<: [*x, *y]\n  b: 2\n")

    assert document.faults == []
    assert document.data["z"] == {"a": 1, "b": 2, "c": 1}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "is empty"),
        ("# only a remark\n", 1, "is empty"),
        ("- a\n", 1, "has no sections"),
        ("just text\n", 1, "has no sections"),
        ("a: 1\nb: 2\na: 3\n", 3, "is given twice, first on line 1"),
        ("a:\n  b: 1\n  b: 1\n", 3, "is given twice, first on line 2"),
        ("a: 1\nb:\n", 2, "has no value"),
        ("a: ~\n", 1, "has no value"),
        ("a: 1\n1: 2\n", 2, "has a key that is not text"),
        ("a: 1\n? [x]\n: 2\n", 2, "has a key that is not text"),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            1,
            "has the tag tag:yaml.org,2002:python/object/apply:os.system",
        ),
        ("a: !!int rubbish\n", 1, "is not the int that it seems to be"),
        (f"a: {'9' * 5000}\n", 1, "is not the int that it seems to be"),
        ("a: 1\n  b: 2\n", 2, "is not YAML (mapping values are not allowed here)"),
        ("a: [1, 2\nb: 3\n", 2, "is not YAML (expected ',' or ']', but got ':')"),
        ("a:\n\tb: 1\n", 2, "is not YAML (found character '\\t' that cannot start any token)"),
        ("a: 1\n---\nb: 2\n", 2, "is not YAML (holds several documents)"),
        ("a: 1\nb: *c\n", 2, "is not YAML (found undefined alias 'c')"),
        ("a: 1\nb: \x07\n", 2, "is not YAML (special characters are not allowed)"),
        ("a: &a [*a]\n", 1, "is too large or nested too deep"),
        ("[" * 5000, 1, "is nested too deep"),
        ("a: {<<: 3}\n", 1, "merges what is not a section"),
    ],
)
def test_faults_of_the_text(text: str, line: int, problem: str) -> None:
    """Each fault names its line."""
    assert (line, problem) in _faults(text)


def test_other_encodings_are_refused() -> None:
    """Text that is not UTF-8 names the line of the first byte that is not."""
    assert _faults(b"a: 1\nb: caf\xe9\n") == [(2, "is not UTF-8")]
    assert _faults("a: 1\n".encode("utf-16"))[0][1] == "is not UTF-8"


def test_aliases_cannot_explode() -> None:
    """Nine levels of nine aliases stand for 400 million values and are refused in no time."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]

    assert any("too large" in problem for _, problem in _faults("\n".join(levels)))
