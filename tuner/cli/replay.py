"""``tuner replay``: recorded ``/metrics`` snapshots -> windows, fits, schedule, explanation, findings."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner._exceptions import RecordingError
from tuner.cli.output import print_json, takes_escapes
from tuner.cli.parameters import LONGEST_DRAFT, Number, NumberList
from tuner.cli.schedules import read_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tuner.cycle import Decision, PoolSettings
    from tuner.observe.exposition import TimedScrape
    from tuner.observe.windows import WindowSet

EXAMPLES = """\b
Examples:
  tuner replay recordings/monday --engine vllm
  tuner replay recordings/monday --engine vllm --json | jq .schedule
  tuner replay recordings/monday --engine vllm --max-batch 256 --plot monday.png
  tuner replay recordings/monday --engine vllm --schedule '[[1,8,4],[9,64,2]]'
"""


@click.command(epilog=EXAMPLES, no_args_is_help=True)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--engine", required=True, help="Kind of engine that was scraped: vllm.")
@click.option(
    "--config.file",
    "config_file",
    type=click.Path(path_type=Path),
    help="Configuration with a pool to obey: its allowed_draft_lens, max_batch, objective, slo.tpot, "
    "guard.min_gain, guard.tie, drafter.method, hardware and model. Options outvote it.",
)
@click.option("--pool", help="Name of the pool; the model's name where not given.")
@click.option("--max-batch", type=click.IntRange(1), help="Largest batch size of the schedule.")
@click.option(
    "--allowed-draft-lens",
    type=NumberList(Number(0, LONGEST_DRAFT, whole=True)),
    metavar="K,K,...",
    help="Draft lengths the engine can run; those that ran by default.",
)
@click.option(
    "--schedule",
    "ran",
    help="Table known to have run throughout, as in [[1,8,4],[9,64,2]]: pins mixed windows.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw goodput and step time to a png, svg or pdf."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(
    *,
    path: Path,
    engine: str,
    config_file: Path | None,
    pool: str | None,
    max_batch: int | None,
    allowed_draft_lens: tuple[int, ...] | None,
    ran: str | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Replay a folder of recorded /metrics snapshots named <unix milliseconds>.prom or .prom.gz.

    Files are read and nothing else is touched. What cannot be told is said with its reason.
    """
    from tuner.cli.settings import pool_settings

    if plot is not None:
        from tuner.cli.picture import check_format

        check_format(plot)
    settings = pool_settings(config_file, pool, max_batch, allowed_draft_lens)
    seen = _observe(path, engine, settings.name or pool, settings.pool, ran)
    decision = _decide(seen, settings.pool, path)
    pictures = [] if plot is None else _draw(decision, plot)
    if as_json:
        from tuner.contract import decision_dict

        print_json(decision_dict(decision))
    else:
        from tuner.cli.decision import print_decision

        print_decision(decision)
        for picture in pictures:
            click.echo(f"\npicture: {picture}")
    if not seen.good:
        raise RecordingError(_why_nothing(seen, path))


def _draw(decision: Decision, plot: Path) -> list[Path]:
    """Draw every pool that there is something to draw of, and say on stderr of which there is nothing."""
    from tuner.cli.picture import draw, nothing_to_draw

    drawn: list[Path] = []
    for one in decision.pools:
        why = nothing_to_draw(one)
        if why:
            click.echo(f"no picture of pool {one.pool}: {why}", err=True)
            continue
        # A pool is named after its model where nothing else names it, and those have slashes in them.
        suffix = "" if len(decision.pools) == 1 else "-" + re.sub(r"[^\w.-]+", "_", one.pool)
        drawn.append(plot.with_stem(plot.stem + suffix))
        draw(one, drawn[-1])
    return drawn


def _observe(path: Path, engine: str, pool: str | None, settings: PoolSettings, ran: str | None) -> WindowSet:
    """Read a recording into windows."""
    from tuner.engines import get_engine
    from tuner.fleet import Fingerprint
    from tuner.observe.recording import read_recording
    from tuner.observe.windows import build_windows

    schedule = None if ran is None else read_schedule(ran, "--schedule")
    vocabulary = get_engine(engine).vocabulary
    recording = read_recording(path)
    scrapes = _with_progress(recording.scrapes(vocabulary.sample_names), len(recording))
    known = Fingerprint(engine=engine, method=settings.method)
    seen = build_windows(scrapes, vocabulary, pool=pool, fingerprint=known, schedule=schedule)
    return type(seen)(seen.windows, (*recording.findings, *seen.findings))


def _with_progress(scrapes: Iterable[TimedScrape], total: int) -> Iterator[TimedScrape]:
    """Show on a terminal that can move its cursor how many scrapes are read."""
    if not takes_escapes(sys.stderr):
        yield from scrapes
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(scrapes, "reading scrapes", total, console=Console(stderr=True), transient=True)


def _decide(seen: WindowSet, settings: PoolSettings, path: Path) -> Decision:
    """Run one cycle as of the end of the recording."""
    from tuner.cycle import Evidence, State, run_once

    if not seen.windows:
        found = {finding.code: finding.message for finding in seen.findings}
        stranger = found.get("engine_metrics_absent")
        if stranger is not None:
            raise RecordingError(f"{path}: {stranger} Check what was recorded, and --engine")
        reason = "; ".join(list(found.values())[:3])
        raise RecordingError(
            f"{path}: no window in this recording{': ' + reason if reason else ''}; record /metrics of the "
            "engine at least twice while it serves requests"
        )
    end = max(window.end for window in seen.windows)
    return run_once(Evidence(seen.windows, seen.findings), State(default=settings), end)


def _why_nothing(seen: WindowSet, path: Path) -> str:
    """Say on one line why nothing could be fitted."""
    from collections import Counter

    reasons = Counter(f"{window.state.value}: {window.reason}" for window in seen.windows)
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
    return (
        f"{path}: none of {len(seen.windows)} windows can be fitted ({told}); record the engine under "
        "steady load for a few minutes"
    )
