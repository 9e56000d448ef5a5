"""The roofline: crossover and speedup as the essays state them, and what moves them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner._exceptions import InputError
from tuner.theory.hardware import SHEETS, hardware_sheet
from tuner.theory.roofline import (
    WEIGHT_BITS,
    Hardware,
    Model,
    compute_seconds,
    crossover_batch,
    crossover_tokens,
    forward_seconds,
    kv_bytes_per_token,
    largest_batch_below,
    memory_seconds,
    weight_bits,
)

H100 = Hardware(flops=989e12, bandwidth=3.35e12)
sizes = st.floats(1e6, 1e13)


@pytest.mark.parametrize(
    ("hardware", "model", "tokens"),
    [
        pytest.param(H100, Model.dense(70e9), 295, id="bf16"),
        pytest.param(H100, Model.dense(7e9), 295, id="bf16, a tenth of the size"),
        pytest.param(Hardware(1979e12, 3.35e12), Model.dense(70e9, 8), 295, id="fp8 weights and math"),
        pytest.param(H100, Model.dense(70e9, 4), 74, id="4-bit weights, bf16 math"),
        pytest.param(H100, Model(8e9, 1e9), 2362, id="mixture of experts, an eighth active"),
    ],
)
def test_crossover(hardware: Hardware, model: Model, tokens: int) -> None:
    """Crossovers of the H100 by weight format and sparsity."""
    assert round(crossover_tokens(hardware, model)) == tokens


def test_mixture_of_experts_multiplies() -> None:
    """One eighth of the parameters active raises the crossover eightfold."""
    model = Model(params=400e9, active_params=50e9)

    assert model.moe_factor == 8
    assert crossover_tokens(H100, model) == pytest.approx(8 * crossover_tokens(H100, Model.dense(400e9)))


@given(sizes, sizes, st.integers(1, 64))
def test_dense_crossover_is_the_machine_balance(params: float, other: float, tensor_parallel: int) -> None:
    """In bf16 it depends neither on the model's size nor on tensor parallelism."""
    group = Hardware(H100.flops * tensor_parallel, H100.bandwidth * tensor_parallel)

    assert crossover_tokens(H100, Model.dense(params)) == pytest.approx(H100.balance)
    assert crossover_tokens(group, Model.dense(other)) == pytest.approx(H100.balance)


@given(sizes, st.floats(0.0, 1e13), st.floats(1.0, 16.0))
def test_times_meet_at_the_crossover(params: float, kv_bytes: float, bits: float) -> None:
    """At the crossover memory and compute take the same time; KV reads raise it, never lower it."""
    model = Model.dense(params, bits)
    tokens = crossover_tokens(H100, model, kv_bytes)

    assert float(compute_seconds(H100, model, tokens)) == pytest.approx(
        float(memory_seconds(H100, model, kv_bytes))
    )
    assert tokens >= crossover_tokens(H100, model)


def test_context_raises_the_crossover_by_its_share_of_the_weights() -> None:
    """Context bytes as large as the weights double the crossover."""
    model = Model.dense(70e9)

    assert crossover_tokens(H100, model, model.weight_bytes) == pytest.approx(
        2 * crossover_tokens(H100, model)
    )


def test_context_of_a_published_model() -> None:
    """80 layers with 8 KV heads of 128 in bf16 hold 327 680 bytes a token."""
    assert kv_bytes_per_token(layers=80, kv_heads=8, head_dim=128) == 327_680


@given(st.floats(0.0, 5e8), st.integers(1, 17))
def test_batch_that_brings_its_own_context(kv_bytes: float, per_request: int) -> None:
    """The batch solves memory = compute with context that grows with the batch."""
    model = Model.dense(70e9)
    batch = crossover_batch(H100, model, per_request, kv_bytes)

    assert batch * per_request >= crossover_tokens(H100, model) * (1 - 1e-12)
    if math.isfinite(batch):
        assert float(memory_seconds(H100, model, batch * kv_bytes)) == pytest.approx(
            float(compute_seconds(H100, model, batch * per_request))
        )


def test_long_context_never_turns_compute_bound() -> None:
    """Where reading a request's context outlasts its arithmetic no batch is compute-bound."""
    assert crossover_batch(H100, Model.dense(8e9), 5, kv_bytes_per_request=131_072 * 32_000) == math.inf


def test_forward_pass_is_flat_then_linear() -> None:
    """One and 200 tokens cost the same in a 70e9 model on one H100; twice the crossover costs twice."""
    model = Model.dense(70e9)
    one, some, edge, twice = forward_seconds(H100, model, np.array([1, 200, H100.balance, 2 * H100.balance]))

    assert one == some == pytest.approx(140e9 / 3.35e12)
    assert edge == pytest.approx(one)
    assert twice == pytest.approx(2 * one)


def test_largest_batch_of_a_draft_length() -> None:
    """max_num_seqs x (K + 1) stays below 295 up to 59 sequences at K = 4 and 73 at K = 3."""
    crossover = crossover_tokens(H100, Model.dense(70e9))

    assert largest_batch_below(crossover, 5) == 59
    assert largest_batch_below(crossover, 4) == 73
    assert 16 * 4 < crossover < 64 * 5


@pytest.mark.parametrize(("name", "bits"), [("BF16", 16), ("half", 16), ("fp8", 8), ("4-bit", 4), ("awq", 4)])
def test_weight_format_names(name: str, bits: float) -> None:
    """Formats are known by their usual names, in any case."""
    assert weight_bits(name) == bits


def test_sheets_carry_dense_rates() -> None:
    """Sheets are found in any case, by short names too, and hold dense rates with their source."""
    assert hardware_sheet("H100").hardware == H100
    assert hardware_sheet(" h100-sxm ").hardware.balance == pytest.approx(295.2, abs=0.05)
    assert all("NVIDIA" in sheet.source for sheet in SHEETS.values())
    for sheet in SHEETS.values():
        assert 100 < sheet.hardware.balance < 500, sheet.name


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Hardware(-1.0, 1e12), "flops must be"),
        (lambda: Hardware(1e15, math.nan), "bandwidth must be"),
        (lambda: Hardware(math.inf, 1e12), "flops must be"),
        (lambda: Model.dense(0.0), "total parameters"),
        (lambda: Model(1e9, 2e9), "swap them"),
        (lambda: Model.dense(1e9, 0.0), "weight bits"),
        (lambda: forward_seconds(H100, Model.dense(1e9), -1.0), "tokens must be"),
        (lambda: crossover_tokens(H100, Model.dense(1e9), math.nan), "KV bytes must be"),
        (lambda: crossover_batch(H100, Model.dense(1e9), 0), "tokens per request"),
        (lambda: largest_batch_below(math.inf, 5), "crossover must be"),
        (lambda: kv_bytes_per_token(0, 8, 128), "layers must be"),
        (lambda: hardware_sheet("abacus"), "h100-sxm"),
        (lambda: weight_bits("fp3"), ", ".join(WEIGHT_BITS)),
    ],
)
def test_impossible_values_are_refused(call: object, words: str) -> None:
    """What cannot be is refused with one line that says what to give."""
    assert callable(call)
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
