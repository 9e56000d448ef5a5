"""``tuner render``: write a schedule in an engine's dialect, or read one and say what would run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from tuner._exceptions import InputError
from tuner.cli.output import print_json, print_table
from tuner.cli.parameters import LONGEST_DRAFT, Number
from tuner.cli.schedules import as_schedule, read_json

if TYPE_CHECKING:
    from tuner.engines import Rendered


EXAMPLES = """\b
Examples:
  tuner render '[[1,4,4],[5,16,2],[17,64,0]]' --engine vllm --engine-version 0.32.0 \\
      --max-batch 64 --max-draft-len 4
  tuner render plan.json --engine vllm --engine-version 0.32.0 --max-batch 256 --max-draft-len 4 --json
  tuner render --parse '[[1,4,4],[9,16,2]]' --engine vllm --engine-version 0.32.0 \\
      --max-batch 64 --max-draft-len 3
"""


@click.command(epilog=EXAMPLES, no_args_is_help=True)
@click.argument("schedule")
@click.option("--engine", required=True, help="Engine whose dialect it is: vllm.")
@click.option("--engine-version", required=True, help="Its version, as in 0.32.0: dialects changed.")
@click.option(
    "--max-batch",
    type=Number(1, 1_000_000, whole=True, hint="give the engine's largest batch, as in 256"),
    required=True,
    help="Most requests the engine runs at once (vLLM: --max-num-seqs).",
)
@click.option(
    "--max-draft-len",
    type=Number(1, LONGEST_DRAFT, whole=True),
    help="Largest draft length the engine is built for; needed unless --parse reads it.",
)
@click.option("--parse", is_flag=True, help="SCHEDULE is in the engine's dialect: say what would run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def render(
    *,
    schedule: str,
    engine: str,
    engine_version: str,
    max_batch: int,
    max_draft_len: int | None,
    parse: bool,
    as_json: bool,
) -> None:
    """Write a schedule in an engine's own dialect.

    SCHEDULE is a JSON literal, a file or - for standard input: [[first, last, K], ...], inclusive
    batch ranges. With --parse it is the engine's own configuration, and the answer is what the
    engine would really run at each batch size.
    """
    from tuner.engines import get_engine

    target = get_engine(engine)
    document = read_json(schedule, "schedule")
    if parse:
        answer = target.parse(
            document, max_batch=max_batch, max_draft_len=max_draft_len, version=engine_version
        )
    elif max_draft_len is None:
        raise InputError("--max-draft-len is missing: the largest draft length the engine is built for")
    else:
        answer = target.render(
            as_schedule(document, "schedule", "to read an engine's dialect add --parse"),
            max_batch=max_batch,
            max_draft_len=max_draft_len,
            version=engine_version,
        )
    _print(answer, parsed=parse, as_json=as_json)


def _print(answer: Rendered, *, parsed: bool, as_json: bool) -> None:
    """Print the dialect, or what it means; notes go to stderr, where they do not spoil a pipe."""
    if as_json:
        print_json(answer.as_dict())
        return
    if parsed:
        rows = [(f"{first}-{last}", str(draft_len)) for first, last, draft_len in answer.dense.ranges]
        print_table(("batch", "draft length"), rows)
    else:
        click.echo(json.dumps(answer.config))
    for note in answer.notes:
        click.echo(f"note: {note}", err=True)
