"""What reading only the wanted families of a scrape saves: ``python -m bench.exposition``.

Prints, from one run on one body, the time of prometheus_client on the whole body, of our parser
with its label cache empty and warm, and the ratios. Exits 1 when the warm parser is less than
five times as fast as the whole body: it is ten to twenty times on the machines tried.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from tuner.engines import get_engine
from tuner.observe import exposition

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "recordings" / "vllm-0.32-cpu"
ROUNDS = 7
LEAST_RATIO = 5.0


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the fastest round's seconds per call: other work on the machine only ever adds time."""
    rounds = []
    for _ in range(ROUNDS):
        start = perf_counter()
        for _ in range(repeats):
            work()
        rounds.append((perf_counter() - start) / repeats)
    return min(rounds)


def main() -> int:
    """Measure and print."""
    body = gzip.decompress(sorted(FOLDER.glob("*.prom.gz"))[50].read_bytes())
    text = body.decode()
    wanted = get_engine("vllm").vocabulary.sample_names

    def cold() -> None:
        exposition._identity.cache_clear()  # noqa: SLF001 - a first scrape is what is measured
        exposition.parse(body, wanted=wanted)

    whole = best_seconds(lambda: list(text_string_to_metric_families(text)), 10)
    first = best_seconds(cold, 20)
    warm = best_seconds(lambda: exposition.parse(body, wanted=wanted), 40)
    kept = len(exposition.parse(body, wanted=wanted).samples)
    print(f"body {len(body)} bytes, {text.count(chr(10))} lines, {kept} samples kept")
    print(f"whole body, prometheus_client   {whole * 1e3:6.2f} ms")
    print(f"wanted names, first scrape      {first * 1e3:6.2f} ms   {whole / first:5.1f} times as fast")
    print(f"wanted names, later scrapes     {warm * 1e3:6.2f} ms   {whole / warm:5.1f} times as fast")
    return 0 if whole / warm >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
