"""``tuner plan``: a benchmark sweep to a schedule that explains itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tuner._exceptions import InputError
from tuner.cli.output import print_json
from tuner.cli.parameters import LONGEST_DRAFT, Number, NumberList
from tuner.cli.schedules import read_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_BYTES = 256 * 2**20
"""Largest sweep read: two million rows of 128 characters."""

EXAMPLES = """\b
Examples:
  tuner plan --sweep sweep.csv
  tuner plan --sweep sweep.csv --max-batch 256 --json | jq .schedule
  tuner plan --sweep sweep.csv --allowed 0,1,2,4 --min-gain 0.05
  tuner plan --sweep contexts.csv --context-mix 1000=0.7,16000=0.3
  printf 'batch,draft_len,tokens_per_second\\n8,0,105\\n8,2,174\\n' | tuner plan --sweep -

\b
Columns: batch, draft_len, tokens_per_second; optional arm (static, schedule, none), context,
acceptance_length, tpot_ms. # starts a comment.

\b
Repeated rows are repeats: their spread is the noise of a cell. Where next to none are, a cell is taken to be
off by 2 % (1 sd), and a finding (noise_assumed) says so: run each cell 2 or 3 times.
"""


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that shape the schedule."""
    options = (
        click.option("--max-batch", type=click.IntRange(1), help="Largest batch size of the engine."),
        click.option("--min-gain", type=float, help="Gain over no speculation to insist on; 0.03."),
        click.option("--credibility", type=float, help="Probability of that gain to insist on; 0.8."),
        click.option("--tie", type=float, help="Difference between draft lengths taken for equal; 0.01."),
        click.option(
            "--allowed",
            "--allowed-draft-lens",
            "allowed",
            type=NumberList(Number(0, LONGEST_DRAFT, whole=True)),
            metavar="K,K,...",
            help="Draft lengths the engine can run; all of the sweep by default.",
        ),
        click.option("--floor", type=click.IntRange(0), help="Shortest draft, 1 where 0 harms the drafter."),
        click.option("--max-ranges", type=click.IntRange(1), help="Most ranges of the schedule; 8."),
        click.option("--max-tokens-in-flight", type=click.IntRange(1), help="Bound batch * (K + 1); off."),
        click.option("--slo-tpot-ms", type=float, help="Milliseconds per output token to keep to."),
        click.option(
            "--objective",
            type=click.Choice(["throughput", "latency"]),
            help="How one draft length for all batch sizes is judged; throughput.",
        ),
        click.option(
            "--batch-weights",
            metavar="B=SHARE,...",
            help="Share of engine time by batch size; equal by default.",
        ),
        click.option(
            "--context-mix",
            metavar="TOKENS=SHARE,...",
            help="Share of output tokens by context; equal by default. Contexts of the sweep only; shares "
            "sum to 1, or to 100, within 1 %.",
        ),
        click.option(
            "--active",
            metavar="SCHEDULE",
            help="What runs now, as [[1,8,4],...] or a JSON file: it stays unless some batch size gains 1 % "
            "over it, and the findings say what would change and what that gains.",
        ),
        click.option("--without", multiple=True, metavar="NAME", help="Switch a post-processor off."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command(epilog=EXAMPLES, no_args_is_help=True)
@click.option("--sweep", required=True, metavar="FILE", help="CSV of a benchmark sweep, - for stdin.")
@_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(*, sweep: str, as_json: bool, context_mix: str | None, **given: Any) -> None:  # noqa: ANN401  # click
    """Turn a benchmark sweep into a batch -> draft length schedule.

    Says per batch size what each draft length yields, what decided, and what is not known. Nothing is
    claimed beyond what was measured without a finding that says so.
    """
    from tuner.cli.plan_text import print_findings, print_plan
    from tuner.observe.sweep import read_sweep
    from tuner.plan.planner import plan as make_plan
    from tuner.plan.sweep import from_sweep

    options = _plan_options(given)
    mix = None if context_mix is None else _shares("--context-mix", context_mix)
    name = "stdin" if sweep == "-" else sweep
    file = read_sweep(_read(sweep), name=name)
    planned = make_plan(from_sweep(file.rows, context_weights=mix), options)
    findings = [*file.findings, *planned.findings]
    if as_json:
        print_json({**planned.as_dict(), "findings": [finding.as_dict() for finding in findings]})
    else:
        print_plan(planned)
        print_findings(findings)


def _plan_options(given: Mapping[str, Any]) -> Any:  # noqa: ANN401  # PlanOptions is imported with the verb
    """Turn command-line values into plan options; what was not given keeps its default."""
    from tuner.plan.options import PlanOptions

    values = {name: value for name, value in given.items() if value is not None}
    values["without"] = frozenset(values.pop("without", ()))
    if "allowed" in values:
        values["allowed_draft_lens"] = frozenset(values.pop("allowed"))
    if "slo_tpot_ms" in values:
        values["slo_tpot"] = values.pop("slo_tpot_ms") / 1e3
    if "batch_weights" in values:
        shares = _shares("--batch-weights", values["batch_weights"])
        values["batch_weights"] = {round(batch): share for batch, share in shares.items()}
    if "active" in values:
        values["active"] = read_schedule(values["active"], "--active")
    return PlanOptions(**values)


def _shares(option: str, text: str) -> dict[float, float]:
    """Read ``1000=0.7,16000=0.3``; each key once."""
    shares: dict[float, float] = {}
    for part in text.split(","):
        key, _, share = part.partition("=")
        try:
            number, value = float(key), float(share)
        except ValueError:
            raise InputError(f"{option}: {part!r} is not NUMBER=SHARE such as 1000=0.7") from None
        if number in shares:
            raise InputError(f"{option}: {key.strip()} is given twice: give one share for it")
        shares[number] = value
    return shares


def _read(path: str) -> bytes:
    """Return the bytes of a file, or of stdin for ``-``."""
    try:
        with click.open_file(path, "rb") as stream:
            data: bytes = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}): give a CSV file, or - for stdin"
        ) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES // 2**20} MiB: average repeats first")
    return data
