"""Windows for tests of the store: one that is easy to read, and any that there can be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tuner.fleet import Counts, Fingerprint, Gauges, Schedule, Window, WindowState

if TYPE_CHECKING:
    from collections.abc import Iterable

T0 = 1_800_000_000.0
"""A full hour."""
SECONDS = 15.0

SCHEDULE = Schedule.from_ranges([[1, 4, 4], [5, 16, 2], [17, 64, 0]])
OTHER_SCHEDULE = Schedule.from_ranges([[1, 8, 3], [9, 64, 1]])


def window(start: float = T0, *, steps: float = 100.0, seconds: float = SECONDS, **fields: Any) -> Window:
    """Return a good window of an engine that drafts 4 tokens."""
    given: dict[str, Any] = {
        "pool": "chat",
        "engine": "e0",
        "start": start,
        "end": start + seconds,
        "state": WindowState.GOOD,
        "reason": "",
        "counts": counts(steps),
        "gauges": Gauges(running=8.0, kv_usage=0.25),
        "fingerprint": Fingerprint(engine="vllm", engine_version="0.32.0", tensor_parallel=2),
        "draft_lens": frozenset({4}),
    }
    return Window(**{**given, **fields})


def counts(steps: float = 100.0, draft_len: int = 4) -> Counts:
    """Return what an engine with 8 requests counts in ``steps`` steps."""
    drafts = 8 * steps
    return Counts(
        steps=steps,
        request_steps=drafts,
        drafts=drafts if draft_len else 0.0,
        draft_tokens=drafts * draft_len,
        accepted=drafts,
        accepted_by_position=(drafts / 2, drafts / 4, drafts / 4, 0.0)[:draft_len],
        emitted=2 * drafts,
        prompt_tokens=3.0,
    )


def series(count: int, *, start: float = T0, **fields: Any) -> list[Window]:
    """Return ``count`` windows that follow each other; their steps are 1, 2, 3, ..."""
    return [window(start + SECONDS * index, steps=1.0 + index, **fields) for index in range(count)]


def steps_of(windows: Iterable[Window]) -> float:
    """Return the steps of all windows: what must be neither lost nor counted twice."""
    return math.fsum(each.counts.steps or 0.0 for each in windows)


_numbers = st.floats(allow_nan=False, allow_infinity=False)
_texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
_optional = st.none() | _numbers
_lists = st.lists(_numbers, max_size=5).map(tuple)
_small = st.integers(0, 40)


@st.composite
def any_window(draw: st.DrawFn) -> Window:
    """Draw any window that can be told."""
    scalars = {
        name: draw(_optional)
        for name in Counts.__slots__
        if name not in ("accepted_by_position", "exposed_by_position", "joint")
    }
    start, end = sorted((draw(_numbers), draw(_numbers)))
    return Window(
        pool=draw(_texts),
        engine=draw(_texts),
        start=start,
        end=end,
        state=draw(st.sampled_from(WindowState)),
        reason=draw(_texts),
        counts=Counts(
            **scalars,
            accepted_by_position=draw(_lists),
            exposed_by_position=draw(_lists),
            joint=draw(st.dictionaries(st.tuples(_small, _small), _numbers, max_size=6)),
        ),
        gauges=Gauges(*(draw(_optional) for _ in Gauges.__slots__)),
        fingerprint=Fingerprint(
            engine=draw(_texts), model=draw(_texts), tensor_parallel=draw(_small), graph_mode=draw(_texts)
        ),
        route=draw(_texts),
        draft_lens=draw(st.none() | st.frozensets(_small, max_size=4)),
        restarts=draw(st.integers(0, 2**40)),
    )
