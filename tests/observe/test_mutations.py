"""Mutated bodies of a real scrape: every outcome is a value or an error of ours, never a traceback."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.observe.bodies import VOCABULARY
from tuner._exceptions import ExpositionError
from tuner.fleet import WindowState
from tuner.observe.exposition import TimedScrape, parse
from tuner.observe.windows import WindowSet, build_windows

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDING = Path(__file__).parents[1] / "data" / "recordings" / "vllm-0.32-cpu"
WANTED = VOCABULARY.sample_names
VALUES = [
    "NaN",
    "+Inf",
    "-Inf",
    "-1",
    "1e15",
    "9.1e15",
    "1e400",
    "0",
    "",
    "1_0",
    "0x1",
    "1 2 3",
    "9" * 400,
    "é",
]
TOKENS = [
    b"\x00",
    b"\xff",
    b"\n",
    b'"',
    b"{",
    b"}",
    b" ",
    b"#",
    b"\\",
    b"\r",
    b"\t",
    b"NaN",
    b"# EOF\n",
    b"=",
]


def read_bodies() -> list[bytes]:
    """Return four scrapes in a row of a busy engine."""
    return [gzip.decompress(path.read_bytes()) for path in sorted(RECORDING.glob("*.prom.gz"))[20:24]]


def insert(body: bytes, rng: random.Random) -> bytes:
    """Put a byte sequence with a meaning somewhere."""
    at = rng.randrange(len(body))
    return body[:at] + rng.choice(TOKENS) + body[at:]


def cut(body: bytes, rng: random.Random) -> bytes:
    """Lose the end, sometimes at a line."""
    end = rng.randrange(len(body))
    return body[: body.rfind(b"\n", 0, end) + 1] if rng.random() < 0.5 else body[:end]


def flip(body: bytes, rng: random.Random) -> bytes:
    """Change single bytes."""
    changed = bytearray(body)
    for _ in range(rng.choice([1, 1, 3, 30])):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def interesting(body: bytes) -> list[int]:
    """Return the lines whose mutation reaches beyond the shape check."""
    lines = body.split(b"\n")
    return [i for i, line in enumerate(lines) if line.split(b"{")[0].decode(errors="replace") in WANTED]


def with_line(body: bytes, rng: random.Random, change: Callable[[bytes], bytes]) -> bytes:
    """Change one line that is wanted."""
    lines = body.split(b"\n")
    wanted = interesting(body)
    if not wanted:
        return body
    index = rng.choice(wanted)
    lines[index] = change(lines[index])
    return b"\n".join(lines)


def revalue(body: bytes, rng: random.Random) -> bytes:
    """Give a wanted series another value."""
    value = rng.choice(VALUES).encode()
    return with_line(body, rng, lambda line: line.rsplit(b" ", 1)[0] + b" " + value)


def relabel(body: bytes, rng: random.Random) -> bytes:
    """Damage or change a label set."""
    pairs = [
        (b'engine="0"', b'engine="1"'),
        (b'"', b""),
        (b"position=", b"pos="),
        (b'"0"', b'"x"'),
        (b"{", b""),
    ]
    old, new = rng.choice(pairs)
    return with_line(body, rng, lambda line: line.replace(old, new, 1))


def repeat(body: bytes, rng: random.Random) -> bytes:
    """Tell a series twice, sometimes with another value."""
    other = rng.random() < 0.5
    return with_line(body, rng, lambda line: line + b"\n" + (line + b"1" if other else line))


def drop(body: bytes, rng: random.Random) -> bytes:
    """Lose a series, or every line of one name."""
    lines = body.split(b"\n")
    index = rng.choice(interesting(body) or [0])
    name = lines[index].split(b"{")[0]
    if rng.random() < 0.5:
        return b"\n".join(line for line in lines if not line.startswith(name))
    return b"\n".join(lines[:index] + lines[index + 1 :])


def retype(body: bytes, rng: random.Random) -> bytes:
    """Declare other types."""
    old, new = rng.choice(
        [(b"counter", b"gauge"), (b"gauge", b"counter"), (b"histogram", b"summary"), (b"# TYPE", b"#")]
    )
    return body.replace(old, new)


def other(body: bytes, rng: random.Random) -> bytes:
    """Answer with something else altogether."""
    return rng.choice(
        [
            b"",
            b"<html></html>\n",
            b'"a"\n',
            b"{}\n",
            b"# EOF\n",
            b"\n",
            body + body,
            body.replace(b"\n", b"\r\n"),
        ]
    )


MUTATIONS = [insert, cut, flip, revalue, revalue, relabel, repeat, drop, retype, other]


def outcome(bodies: list[bytes]) -> WindowSet:
    """Take bodies through the whole of observing."""
    scrapes = []
    for i, body in enumerate(bodies):
        time = 1_795_954_360.0 + 4 * i
        try:
            scrapes.append(TimedScrape(time, parse(body, wanted=WANTED)))
        except ExpositionError as error:
            scrapes.append(TimedScrape(time, error))
    return build_windows(scrapes, VOCABULARY)


def check(result: WindowSet) -> None:
    """No number that was counted may be negative, infinite or undefined, whatever came in."""
    for window in result.windows:
        counts = window.counts
        numbers = [
            counts.steps, counts.request_steps, counts.request_step_seconds, counts.drafts,
            counts.draft_tokens,
            counts.accepted, counts.emitted, counts.first_tokens, counts.prompt_tokens, counts.preemptions,
            *counts.accepted_by_position,
        ]  # fmt: skip
        for number in numbers:
            assert number is None or 0 <= number < 1e15
        assert bool(window.reason) == (window.state is not WindowState.GOOD)
        if window.state is WindowState.GOOD:
            assert window.batch is not None
            assert window.draft_len is not None
            assert sum(counts.accepted_by_position) == counts.accepted
    for finding in result.findings:
        assert "\n" not in finding.message


def survive(count: int, seed: int) -> None:
    """Mutate one to three bodies of four, one to three times each, and look at what comes of it.

    Every state must come up, and every way of refusing a body: else the mutations reach too little.
    """
    states: set[WindowState] = set()
    reasons: set[str] = set()
    rng = random.Random(seed)
    originals = read_bodies()
    mutated = 0
    while mutated < count:
        bodies = list(originals)
        for index in rng.sample(range(len(bodies)), rng.randint(1, 3)):
            for _ in range(rng.randint(1, 3)):
                bodies[index] = rng.choice(MUTATIONS)(bodies[index] or b"\n", rng)
            mutated += 1
        result = outcome(bodies)
        check(result)
        states |= {window.state for window in result.windows}
        for finding in result.findings:
            reasons |= set(finding.evidence.get("reasons", ()))
    assert states >= {WindowState.GOOD, WindowState.PARTIAL, WindowState.SUSPECT}
    assert reasons >= {"empty", "html", "json", "malformed", "truncated", "undecodable"}


def test_two_thousand_mutated_bodies_are_survived() -> None:
    """A fixed selection, so that a failure comes back."""
    survive(2_000, seed=20_000)


@pytest.mark.long
def test_twenty_thousand_mutated_bodies_are_survived() -> None:
    """Ten times as many, from the seed of the commit, so that each commit tries others."""
    from bench.seeds import commit_seed

    survive(20_000, seed=commit_seed("mutated bodies"))
