"""Run every measurement and say which bounds held: ``python -m bench [name ...]``.

Each measurement is a process of its own, so that its time and memory are its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from bench.seeds import commit_hash

MEASUREMENTS = (
    "bench.exposition",
    "bench.live_windows",
    "bench.scrape_round",
    "bench.recording_prediction",
    "bench.recording_regret",
    "bench.replay_speed",
    "bench.convergence",
    "bench.cycle_scale",
    "bench.engine_routes",
    "bench.sweep_speed",
    "bench.daemon_scale",
    "bench.store_growth",
    "bench.simulator_speed",
    "bench.recovery.acceptance",
    "bench.recovery.crossover",
    "bench.recovery.planner",
)


def main(names: list[str]) -> int:
    """Run the measurements whose name ends in one of ``names``, all without any; 1 if a bound broke."""
    chosen = [m for m in MEASUREMENTS if not names or any(m.endswith(name) for name in names)]
    if not chosen:
        print(
            f"error: no measurement ends in {names}: choose from {', '.join(MEASUREMENTS)}", file=sys.stderr
        )
        return 2
    print(f"commit {commit_hash()}, from which every seed is derived")
    verdicts: list[tuple[str, str, float]] = []
    for name in chosen:
        print(f"\n=== {name}", flush=True)
        begun = time.perf_counter()
        code = subprocess.run([sys.executable, "-m", name], check=False).returncode
        verdicts.append((name, "held" if code == 0 else f"BROKEN (exit {code})", time.perf_counter() - begun))
    print("\n=== bounds")
    for name, verdict, seconds in verdicts:
        print(f"{name:<32} {verdict:<18} {seconds:7.1f} s")
    return int(any(not verdict.startswith("held") for _, verdict, _ in verdicts))


def _names() -> list[str]:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Run every measurement and say which bounds held; exit code 1 if one broke.",
        epilog="measurements: " + ", ".join(name.removeprefix("bench.") for name in MEASUREMENTS),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="run those whose name ends so; all without")
    names: list[str] = parser.parse_args().names
    return names


if __name__ == "__main__":
    sys.exit(main(_names()))
