"""``tuner theory``: speedup, draft length and crossover from first principles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from tuner._exceptions import InputError
from tuner.cli.output import print_json, print_line, print_table
from tuner.cli.parameters import LARGEST, LONGEST_DRAFT, Number, NumberList, WeightFormat
from tuner.cli.theory_hardware import hardware_of, hardware_options, math_notes

if TYPE_CHECKING:
    from tuner.theory.roofline import Hardware, Model

UPPER_BOUND = """\
An upper bound: launches, sampling, padding and the host's work are not in the roofline, so
measured gains are lower and end at smaller batches."""
ROUNDING = 1e-12
"""Relative slack before rounding down, so that a batch of exactly 59 is not printed as 58."""
LARGEST_BATCH = 1_000_000
"""Requests per step taken for real; engines run at most a few thousand."""

RATIO = Number(0.0, 1.0, hint="give a ratio, as in 0.8")
DRAFT_LEN = Number(0, LONGEST_DRAFT, whole=True, hint="give a whole number of tokens, as in 4")
BATCH = Number(1, LARGEST_BATCH, whole=True, hint="give a whole number of requests, as in 64")
PARAMS = Number(1.0, LARGEST, hint="give a count of parameters, as in 70e9 or 70B")


EXAMPLES = """\b
Examples:
  tuner theory speedup --target-params 70e9 --draft-params 1e9 --hardware h100-sxm \\
      --draft-len 4 --acceptance 0.9,0.8,0.6 --batch 1,16,32,64,128,256
  tuner theory draft-len --profile 0.80,0.72,0.66,0.60,0.55 --draft-cost 0.1
  tuner theory crossover --flops 989e12 --bandwidth 3.35e12
"""


@click.group(epilog=EXAMPLES)
def theory() -> None:
    """Speedup, draft length and crossover from first principles."""


SPEEDUP_EXAMPLES = """\b
Examples:
  tuner theory speedup --target-params 70e9 --draft-params 1e9 --flops 989e12 --bandwidth 3.35e12 \\
      --draft-len 4 --acceptance 0.9,0.8,0.6 --batch 1,16,32,64,128,256
  tuner theory speedup --target-params 70B --hardware h100-sxm --draft-len 5 \\
      --acceptance 0.4 --batch 1,64,256 --json          # n-gram: no drafter
"""


@theory.command(epilog=SPEEDUP_EXAMPLES)
@hardware_options
@click.option("--target-params", type=PARAMS, required=True, help="Parameters of the served model.")
@click.option(
    "--active-params", type=PARAMS, help="Parameters one token multiplies, for mixtures of experts."
)
@click.option(
    "--draft-params",
    type=Number(0.0, LARGEST, hint="give a count of parameters, as in 1e9 or 1B"),
    default="0",
    show_default=True,
    help="Parameters of the drafter; 0 for n-gram and suffix drafters, which cost nothing here.",
)
@click.option(
    "--dtype", type=WeightFormat(), default="bf16", show_default=True, help="Format of the weights."
)
@click.option("--draft-len", type=DRAFT_LEN, required=True, help="Draft tokens per request and step.")
@click.option(
    "--acceptance",
    type=NumberList(RATIO),
    required=True,
    help="Probabilities that a draft token is accepted given that those before it were.",
)
@click.option("--batch", type=NumberList(BATCH), required=True, help="Requests per step.")
@click.option(
    "--tree-tokens", type=DRAFT_LEN, help="Draft tokens of a tree per request; --draft-len is its depth."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def speedup(
    *,
    flops: float | None,
    bandwidth: float | None,
    hardware: str | None,
    target_params: float,
    active_params: float | None,
    draft_params: float,
    dtype: float,
    draft_len: int,
    acceptance: tuple[float, ...],
    batch: tuple[int, ...],
    tree_tokens: int | None,
    as_json: bool,
) -> None:
    """Speedup over plain decoding by batch size and acceptance."""
    from tuner.theory.roofline import Model
    from tuner.theory.speedup import speedup_table

    table = speedup_table(
        hardware_of(flops, bandwidth, hardware),
        Model(target_params, active_params or target_params, dtype),
        Model.dense(draft_params, dtype) if draft_params else None,
        draft_len=draft_len,
        acceptances=acceptance,
        batches=batch,
        tree_tokens=tree_tokens,
    )
    notes = math_notes(flops, hardware, dtype)
    keys = [f"{alpha:.15g}" for alpha in table.acceptances]
    if as_json:
        rows = [
            {
                "batch": row.batch,
                "tokens_in_flight": row.tokens_in_flight,
                "memory_bound": row.memory_bound,
                "speedup": dict(zip(keys, row.speedups, strict=True)),
            }
            for row in table.rows
        ]
        print_json({"crossover_tokens": table.crossover, "rows": rows, "notes": notes})
        return
    print_table(
        ["batch", "tokens in flight", "bound by", *(f"acc {key}" for key in keys)],
        [
            [
                str(row.batch),
                str(row.tokens_in_flight),
                "memory" if row.memory_bound else "compute",
                *(f"{gain:.2f}x" for gain in row.speedups),
            ]
            for row in table.rows
        ],
        title=f"Speedup at draft length {draft_len}; crossover at {table.crossover:.0f} tokens in flight",
        words={"bound by"},
    )
    _print_notes(notes)


DRAFT_LEN_EXAMPLES = """\b
Examples:
  tuner theory draft-len --profile 0.80,0.72,0.66,0.60,0.55 --draft-cost 0.1
  tuner theory draft-len --profile 0.4,0.4,0.4 --draft-cost 0 --json
"""


@theory.command("draft-len", epilog=DRAFT_LEN_EXAMPLES)
@click.option(
    "--profile",
    type=NumberList(RATIO),
    required=True,
    help="Acceptance by position, each given that the positions before were accepted.",
)
@click.option(
    "--draft-cost",
    type=Number(0.0, 1000.0, hint="give one draft pass over one target pass, as in 0.1"),
    required=True,
    help="One draft pass over one target pass; 0 for n-gram.",
)
@click.option(
    "--tie",
    type=Number(0.0, 0.5, hint="give a ratio, as in 0.01"),
    default="0.01",
    show_default=True,
    help="Difference taken for equal.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def draft_len(*, profile: tuple[float, ...], draft_cost: float, tie: float, as_json: bool) -> None:
    """Which draft length pays while the step is memory-bound."""
    from tuner.theory.speedup import draft_len_table

    table = draft_len_table(profile, draft_cost, tie=tie)
    if as_json:
        rows = [
            {
                "draft_len": row.draft_len,
                "expected_tokens": row.expected_tokens,
                "last_token_gain": row.last_token_gain,
                "step_cost": row.step_cost,
                "speedup": row.speedup,
            }
            for row in table.rows
        ]
        print_json({"rows": rows, "best": table.best, "recommended": table.recommended})
        return
    print_table(
        ["draft length", "tokens per step", "last token adds", "step cost", "speedup"],
        [
            [
                str(row.draft_len),
                f"{row.expected_tokens:.3f}",
                f"{row.last_token_gain:.3f}",
                f"{row.step_cost:.4g}",
                f"{row.speedup:.2f}x",
            ]
            for row in table.rows
        ],
    )
    if table.best == 0:
        click.echo("No draft length beats plain decoding: switch speculation off.")
    else:
        near = f"the smallest within {100 * tie:.3g} % of it"
        click.echo(f"Best: {table.best}. Recommended: {table.recommended}, {near}.")
    click.echo(
        "Holds below the crossover, where verification is free. Larger batches: `tuner theory speedup`."
    )


CROSSOVER_EXAMPLES = """\b
Examples:
  tuner theory crossover --flops 989e12 --bandwidth 3.35e12
  tuner theory crossover --flops 1979e12 --bandwidth 3.35e12 --dtype fp8
  tuner theory crossover --hardware h100-sxm --dtype int4           # 4-bit weights, bf16 math
  tuner theory crossover --hardware h100-sxm --total-params 671B --active-params 37B
  tuner theory crossover --hardware h100-sxm --max-num-seqs 64 --draft-len 4
  tuner theory crossover --hardware h100-sxm --total-params 70B \\
      --kv-bytes-per-token 327680 --context-tokens 8000 --batch 32
"""


@theory.command(epilog=CROSSOVER_EXAMPLES)
@hardware_options
@click.option("--total-params", type=PARAMS, help="Parameters in memory, all experts.")
@click.option(
    "--active-params", type=PARAMS, help="Parameters one token multiplies, for mixtures of experts."
)
@click.option(
    "--dtype",
    type=WeightFormat(),
    default="bf16",
    show_default=True,
    help="Format of the weights (bf16, fp8, int4, ...); --flops is the rate of the math.",
)
@click.option(
    "--kv-bytes-per-token",
    type=Number(hint="give bytes, as in 327680"),
    help="Bytes of keys and values per context token.",
)
@click.option(
    "--context-tokens", type=Number(hint="give tokens, as in 8000"), help="Context per request, in tokens."
)
@click.option(
    "--batch", type=BATCH, help="Requests whose context a step reads; default --max-num-seqs, else 1."
)
@click.option("--max-num-seqs", type=BATCH, help="Largest batch of the engine, held against the crossover.")
@click.option("--draft-len", type=DRAFT_LEN, help="Draft length, held against the crossover.")
@click.option(
    "--tree-tokens", type=DRAFT_LEN, help="Draft tokens of a tree per request, in place of --draft-len."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def crossover(
    *,
    flops: float | None,
    bandwidth: float | None,
    hardware: str | None,
    total_params: float | None,
    active_params: float | None,
    dtype: float,
    kv_bytes_per_token: float | None,
    context_tokens: float | None,
    batch: int | None,
    max_num_seqs: int | None,
    draft_len: int | None,
    tree_tokens: int | None,
    as_json: bool,
) -> None:
    """Tokens in flight at which a step turns compute-bound."""
    from tuner.theory.roofline import crossover_tokens

    device = hardware_of(flops, bandwidth, hardware)
    model = _crossover_model(total_params, active_params, dtype, needs_size=bool(kv_bytes_per_token))
    if (kv_bytes_per_token is None) != (context_tokens is None):
        raise InputError("--kv-bytes-per-token and --context-tokens belong together: give both or none")
    per_request = (kv_bytes_per_token or 0.0) * (context_tokens or 0.0)
    kv_bytes = per_request * (batch or max_num_seqs or 1)
    tokens = crossover_tokens(device, model, kv_bytes)
    document: dict[str, Any] = {
        "crossover_tokens": tokens,
        "moe_factor": model.moe_factor,
        "kv_factor": tokens / crossover_tokens(device, model),
        "weight_bits": model.weight_bits,
        "notes": math_notes(flops, hardware, dtype),
    }
    against = _against(device, model, per_request, tokens, max_num_seqs, draft_len, tree_tokens)
    if against:
        document["against"] = against
    if as_json:
        print_json(document)
        return
    click.echo(f"Crossover: {tokens:.0f} tokens in flight per step, batch x (draft length + 1).")
    if model.moe_factor > 1.0:
        click.echo(f"Mixture of experts: {model.moe_factor:.3g} times that of a dense model.")
    if per_request:
        click.echo(f"Context reads raise it by {document['kv_factor']:.3g}.")
    for line in _against_lines(against):
        click.echo(line)
    _print_notes(document["notes"])


def _print_notes(notes: list[str]) -> None:
    """Print what the answer takes for granted, last what holds for every answer."""
    for note in notes:
        print_line(f"Note: {note}.", indent="")
    click.echo(UPPER_BOUND)


def _against(
    device: Hardware,
    model: Model,
    kv_bytes_per_request: float,
    crossover: float,
    max_num_seqs: int | None,
    draft_len: int | None,
    tree_tokens: int | None,
) -> dict[str, Any]:
    """Hold a largest batch, a draft length or both against the crossover."""
    from tuner.theory.roofline import crossover_batch, largest_batch_below
    from tuner.theory.speedup import tokens_per_request

    result: dict[str, Any] = {}
    if draft_len is not None or tree_tokens is not None:
        each = tokens_per_request(draft_len or 0, tree_tokens)
        batch = crossover_batch(device, model, each, kv_bytes_per_request)
        result["tokens_per_request"] = each
        result["largest_batch"] = math.floor(batch * (1 + ROUNDING)) if math.isfinite(batch) else None
        if max_num_seqs is not None:
            result["tokens_in_flight"] = max_num_seqs * each
            result["memory_bound"] = max_num_seqs * each <= crossover
    if max_num_seqs is not None:
        result["largest_draft_len"] = max(0, largest_batch_below(crossover, max_num_seqs) - 1)
    return result


def _against_lines(against: dict[str, Any]) -> list[str]:
    """Say in words what :func:`_against` found."""
    lines = []
    if "tokens_in_flight" in against:
        side = (
            "memory-bound: verification is free"
            if against["memory_bound"]
            else "compute-bound: every token costs"
        )
        lines.append(f"The largest batch puts {against['tokens_in_flight']} tokens in flight, {side}.")
    if "largest_batch" in against and against["largest_batch"] is None:
        lines.append("With this context no batch turns compute-bound: reading it outlasts the arithmetic.")
    elif "largest_batch" in against:
        lines.append(
            f"At {against['tokens_per_request']} tokens per request the step stays memory-bound "
            f"up to batch {against['largest_batch']}."
        )
    if "largest_draft_len" in against:
        lines.append(
            f"At the largest batch, draft length {against['largest_draft_len']} is the most that stays free."
        )
    return lines


def _crossover_model(
    total_params: float | None, active_params: float | None, dtype: float, *, needs_size: bool
) -> Model:
    """Return the model; a dense one of any size will do where only the balance matters."""
    from tuner.theory.roofline import Model

    if total_params is None:
        if active_params is not None:
            raise InputError("--active-params needs --total-params, the parameters of all experts")
        if needs_size:
            raise InputError("--kv-bytes-per-token needs --total-params, to weigh context against weights")
        return Model.dense(1e9, dtype)
    return Model(total_params, active_params or total_params, dtype)
