"""``docs/concepts.md``: every bold number is computed again, every example is run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tuner.cli import main
from tuner.theory.acceptance import (
    acceptance_from_distributions,
    bonus_token_share,
    draft_acceptance_rate,
    expected_tokens_geometric,
    expected_tokens_mixture,
    full_block_probability,
    goodput_efficiency,
    hazards_from_survival,
    survival,
    total_variation,
)
from tuner.theory.roofline import Hardware, Model, crossover_tokens, kv_bytes_per_token, largest_batch_below
from tuner.theory.speedup import draft_len_table, tokens_per_request

PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts.md"
FLAT = (0.8,) * 4
DECAYING = (0.80, 0.72, 0.66, 0.60, 0.55)
H100 = Hardware(989e12, 3.35e12)
LARGE = Model.dense(70e9)
PUBLISHED = (
    0.7123, 0.5170, 0.3904, 0.3051, 0.2437, 0.2000, 0.1685, 0.1441,
    0.1246, 0.1094, 0.0964, 0.0856, 0.0758, 0.0667, 0.0582, 0.0498,
)  # fmt: skip
"""Survival of https://github.com/vllm-project/vllm/pull/52992."""


def _computed() -> list[str]:
    """Return the bold numbers of the page in order, as computed."""
    p, q = (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)
    hazards = hazards_from_survival(PUBLISHED)
    crossover = crossover_tokens(H100, LARGE)
    context = 32 * 8000 * kv_bytes_per_token(layers=80, kv_heads=8, head_dim=128)
    return [
        f"{acceptance_from_distributions(p, q):.2f}",
        f"{total_variation(p, q):.2f}",
        f"{expected_tokens_geometric(0.8, 4):.2f}",
        f"{100 * goodput_efficiency(FLAT):.0f}",
        f"{100 * full_block_probability(FLAT):.0f}",
        f"{100 * bonus_token_share(FLAT):.0f}",
        *(f"{draft_acceptance_rate((0.8,) * k):.2f}" for k in (2, 4, 7)),
        f"{expected_tokens_mixture((0.95, 0.45), (0.5, 0.5), 4):.2f}",
        f"{expected_tokens_geometric(0.7, 4):.2f}",
        f"{hazards[0]:.2f}",
        f"{hazards.max():.2f}",
        f"{1 + sum(PUBLISHED):.2f}",
        *(f"{gain:.3f}" for gain in survival(DECAYING)[3:]),
        f"{draft_len_table((0.4,), 0.0).rows[0].speedup:.2f}",
        f"{crossover:.0f}",
        f"{crossover_tokens(Hardware(1979e12, 3.35e12), Model.dense(70e9, 8)):.0f}",
        f"{crossover_tokens(H100, Model.dense(70e9, 8)):.0f}",
        f"{crossover_tokens(H100, Model.dense(70e9, 4)):.0f}",
        f"{crossover_tokens(H100, Model(8e9, 1e9)):.0f}",
        f"{crossover_tokens(H100, LARGE, context):.0f}",
        f"{largest_batch_below(crossover, tokens_per_request(4))}",
        f"{largest_batch_below(crossover, tokens_per_request(4, 60))}",
    ]


def test_bold_numbers() -> None:
    """The numbers in bold, in order, are those that the theory gives."""
    assert re.findall(r"\*\*([0-9.]+)\*\*", PAGE.read_text()) == _computed()


def test_plain_words_about_the_numbers() -> None:
    """The best and the recommended draft length are the ones that the text names."""
    table = draft_len_table(DECAYING, 0.1)

    assert (table.best, table.recommended) == (4, 3)
    assert LARGE.weight_bytes == 140e9
    assert kv_bytes_per_token(layers=80, kv_heads=8, head_dim=128) == 327_680


def _examples() -> list[tuple[str, str]]:
    """Return command line and printed answer of every shell example."""
    blocks = re.findall(r"```console\n\$ (.*?)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return [(command, answer) for command, answer in blocks]


def test_there_are_examples() -> None:
    """One example for each verb of the theory."""
    verbs = [shlex.split(command)[2] for command, _ in _examples()]

    assert verbs == ["draft-len", "crossover", "speedup"]


@pytest.mark.parametrize(("command", "answer"), _examples())
def test_examples(command: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each example prints what the page shows."""
    program, *arguments = shlex.split(command)

    with pytest.raises(SystemExit) as left:
        main(arguments)

    assert (program, left.value.code) == ("tuner", 0)
    assert capsys.readouterr().out == answer
