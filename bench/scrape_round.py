"""What a round of scrapes costs: ``python -m bench.scrape_round [--clients]``.

Engines are served by a process of their own, each at an address and over a connection of its own, with a
body of 55 KB that vLLM 0.32.0 served. Prints wall and CPU time of a round, scrapes per second of CPU, and
the memory at the end, for 100, 300, 1 000 and 3 000 engines, parsing included: medians of the rounds after
the first. Starts are spread over 2 ms an engine and a tenth of the interval at most, which is part of the
wall time. Exits 1 when a round of 1 000 takes 4 s or more, or when memory grows by over 10 MB in the last
rounds.

``--clients`` compares what could have done it: httpx2 in threads and on an event loop, http.client in
threads. That is what the choice in ``tuner/observe/fetching.py`` rests on.
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.static_engines import host_of, raise_file_limit
from tuner.engines import get_engine
from tuner.fleet import Target
from tuner.observe.exposition import parse
from tuner.observe.scraping import Scraper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECORDING = Path(__file__).parents[1] / "tests" / "data" / "recordings" / "vllm-0.32-cpu"
ENGINES = (100, 300, 1000, 3000)
BOUNDED = 1000
ROUNDS = 6
MOST_SECONDS = 4.0
MOST_GROWTH = 10.0
"""MB that memory may grow by between the third round and the last."""
CONCURRENCY = 64
PAGE_KB = os.sysconf("SC_PAGE_SIZE") / 1024


def resident() -> float:
    """Return the memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KB / 1024


@contextmanager
def engines(count: int) -> Iterator[int]:
    """Serve ``count`` engines; the value is their port."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(gzip.decompress(sorted(RECORDING.glob("*.prom.gz"))[50].read_bytes()))
        file.flush()
        command = [sys.executable, "-m", "bench.static_engines", str(count), file.name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            yield int(server.stdout.readline())
            server.communicate()


def measure(count: int) -> bool:
    """Print what rounds over ``count`` engines cost; return whether the bounds held."""
    wanted = get_engine("vllm").vocabulary.sample_names
    with engines(count) as port:
        targets = [Target("pool", str(i), f"http://{host_of(i)}:{port}/metrics") for i in range(count)]
        scraper = Scraper(timeout=5.0, interval=15.0, clock=time.time, concurrency=CONCURRENCY)
        walls: list[float] = []
        cpus: list[float] = []
        memory: list[float] = []
        failed: list[str] = []
        for _ in range(ROUNDS):
            begun = time.process_time()
            outcome = scraper.round(targets, lambda _: wanted)
            cpus.append(time.process_time() - begun)
            walls.append(outcome.seconds)
            memory.append(resident())
            failed += [one.error for one in outcome.scraped if one.error]
        scraper.close()
    wall, cpu = median(walls[1:]), median(cpus[1:])
    growth = memory[-1] - memory[2]
    print(
        f"{count:5d} engines   wall {wall:5.2f} s (first {walls[0]:.2f})   CPU {cpu:5.2f} s   "
        f"{count / cpu:5.0f} scrapes/s of CPU   {memory[-1]:4.0f} MB ({growth:+.1f})"
    )
    if failed:
        print(f"      {len(failed)} of {ROUNDS * count} scrapes failed: {failed[0]}")
    return (
        not (failed and count <= BOUNDED)
        and growth < MOST_GROWTH
        and (count != BOUNDED or wall < MOST_SECONDS)
    )


def compare(count: int) -> None:
    """Print what other clients take for the same, connections kept and bodies parsed."""
    import httpx2  # noqa: PLC0415 - measured here alone

    wanted = get_engine("vllm").vocabulary.sample_names
    headers = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
    unlimited = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    with engines(count) as port, ThreadPoolExecutor(CONCURRENCY) as pool:
        hosts = [host_of(i) for i in range(count)]
        kept = {host: http.client.HTTPConnection(host, port, timeout=5) for host in hosts}

        def by_http_client(host: str) -> None:
            kept[host].request("GET", "/metrics", headers=headers)
            parse(kept[host].getresponse().read(), wanted=wanted)

        with httpx2.Client(limits=unlimited, headers=headers, trust_env=False) as client:

            def by_httpx2(host: str) -> None:
                parse(client.get(f"http://{host}:{port}/metrics").content, wanted=wanted)

            _timed("http.client, threads", lambda: list(pool.map(by_http_client, hosts)))
            _timed("httpx2, threads", lambda: list(pool.map(by_httpx2, hosts)))
        for connection in kept.values():
            connection.close()

        async def rounds() -> None:
            places = asyncio.Semaphore(CONCURRENCY)
            async with httpx2.AsyncClient(limits=unlimited, headers=headers, trust_env=False) as client:

                async def one(host: str) -> None:
                    async with places:
                        answer = await client.get(f"http://{host}:{port}/metrics")
                        parse(answer.content, wanted=wanted)

                await asyncio.gather(*(one(host) for host in hosts))
                begun, cpu = time.perf_counter(), time.process_time()
                await asyncio.gather(*(one(host) for host in hosts))
                _print("httpx2, event loop", begun, cpu)

        asyncio.run(rounds())


def _timed(name: str, work: Callable[[], object]) -> None:
    """Print what the second of two rounds took, when connections are there."""
    work()
    begun, cpu = time.perf_counter(), time.process_time()
    work()
    _print(name, begun, cpu)


def _print(name: str, begun: float, cpu: float) -> None:
    wall, spent = time.perf_counter() - begun, time.process_time() - cpu
    print(f"{name:<22} wall {wall:5.2f} s   CPU {spent:5.2f} s")


def main() -> int:
    """Measure and print."""
    raise_file_limit()
    if "--clients" in sys.argv[1:]:
        compare(BOUNDED)
        return 0
    held = [measure(count) for count in ENGINES]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
