"""What making windows live costs, against judging the whole recording: ``python -m bench.live_windows``.

Three loads: a recorded engine, the same at 60 series a scrape with the plugin's counters of two routes, and
one whose every scrape is judged anew (a counter that falls each time). For each: CPU milliseconds a scrape of
``build_windows`` and of ``LiveWindows``, parsing excluded, and the memory that one engine holds after
an hour. Exits 1 beyond 0.6 ms a scrape or 60 KB an engine for the first two.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

from tuner._exceptions import InputError
from tuner.engines import get_engine
from tuner.fleet import Fingerprint, Target
from tuner.observe.exposition import Scrape, TimedScrape, parse
from tuner.observe.live import LiveWindows
from tuner.observe.recording import read_recording
from tuner.observe.windows import build_windows
from tuner.simulate.fleet import Fleet
from tuner.simulate.presets import preset

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORDING = Path(__file__).resolve().parent.parent / "tests/data/recordings/vllm-0.32-cpu"
VOCABULARY = get_engine("vllm").vocabulary
KNOWN = Fingerprint(engine="vllm")
INTERVAL = 15.0
SCRAPES = 240
"""An hour at 15 s."""
ENGINES = 20
ROUNDS = 3
MOST_MILLISECONDS = 0.6
MOST_KILOBYTES = 60.0


def recorded() -> list[TimedScrape]:
    """Return the scrapes of the recording, 15 s apart."""
    scrapes = list(read_recording(RECORDING).scrapes(VOCABULARY.sample_names))[:SCRAPES]
    return [TimedScrape(1e9 + INTERVAL * i, one.result) for i, one in enumerate(scrapes)]


def plugged() -> list[TimedScrape]:
    """Return the scrapes of a simulated engine with the plugin and two routes."""
    fleet = Fleet(preset("demo"), seed=3)
    out = []
    for _ in range(SCRAPES):
        fleet.advance(INTERVAL)
        body = fleet.body("mixed-8b", 0)
        out.append(TimedScrape(fleet.now, parse(body, wanted=VOCABULARY.sample_names)))
    return out


def restless(scrapes: Sequence[TimedScrape]) -> list[TimedScrape]:
    """Let two processes answer in turn."""
    out = []
    for i, (time, result) in enumerate(scrapes):
        if isinstance(result, InputError) or i % 2:
            out.append(TimedScrape(time, result))
            continue
        samples = {
            key: value + (1000 if key.name == "process_start_time_seconds" else 0)
            for key, value in result.samples.items()
        }
        out.append(TimedScrape(time, Scrape(samples, result.kinds)))
    return out


def batch_milliseconds(scrapes: Sequence[TimedScrape]) -> float:
    """Return the CPU time of ``build_windows`` a scrape."""
    begun = process_time()
    build_windows(scrapes, VOCABULARY, pool="p", engine="e", fingerprint=KNOWN)
    return (process_time() - begun) * 1e3 / len(scrapes)


def live_milliseconds(scrapes: Sequence[TimedScrape]) -> float:
    """Return the CPU time of ``LiveWindows`` a scrape."""
    watched = LiveWindows(VOCABULARY, pool="p", fingerprint=KNOWN, interval=INTERVAL)
    target = Target("p", "e", "http://10.0.0.1/metrics")
    begun = process_time()
    for one in scrapes:
        watched.add(target, (one,))
    return (process_time() - begun) * 1e3 / len(scrapes)


def kilobytes(scrapes: Sequence[TimedScrape]) -> float:
    """Return what one engine holds, of ``ENGINES`` with equal series."""
    watched = LiveWindows(VOCABULARY, pool="p", fingerprint=KNOWN, interval=INTERVAL)
    for one in scrapes:
        watched.add(Target("p", "first", "http://10.0.1.1/metrics"), (one,))
    tracemalloc.start()
    for n in range(ENGINES):
        target = Target("p", f"e{n}", f"http://10.0.0.{n}/metrics")
        for one in scrapes:
            watched.add(target, (one,))
    gc.collect()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / ENGINES / 1e3


def main() -> int:
    """Print the three loads and judge the first two."""
    loads = {"recorded engine": recorded(), "with plugin, 2 routes": plugged()}
    loads["two processes in turn"] = restless(loads["recorded engine"])
    broken = False
    print(f"{'':<24}{'series':>8}{'batch ms':>10}{'live ms':>10}{'KB/engine':>11}")
    for name, scrapes in loads.items():
        batch = min(batch_milliseconds(scrapes) for _ in range(ROUNDS))
        live = min(live_milliseconds(scrapes) for _ in range(ROUNDS))
        held = kilobytes(scrapes)
        last = scrapes[-1].result
        series = 0 if isinstance(last, InputError) else len(last.samples)
        print(f"{name:<24}{series:>8}{batch:>10.3f}{live:>10.3f}{held:>11.1f}", flush=True)
        judged = name != "two processes in turn"
        broken |= judged and (live > MOST_MILLISECONDS or held > MOST_KILOBYTES)
    print(
        f"bounds: {MOST_MILLISECONDS:g} ms a scrape, {MOST_KILOBYTES:g} KB an engine; judging anew has none"
    )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
