"""The roofline of one forward pass: memory time against compute time, and where they meet.

A decode step streams every weight (and the keys and values of every sequence) once, however many
tokens are in it, and does two FLOP per active parameter and token. Below the *crossover* the step
costs its memory time and more tokens are free; above it every token costs. For a dense model in
bf16 the parameters cancel and the crossover is the machine's balance FLOPS / bandwidth, the same
for 7 and 70 billion parameters; tensor parallelism divides both sides and does not move it.

An upper bound on what speculation earns: launches, sampling kernels, padding, attention kernels
that are slow on several tokens and the host's work are not in it. Fits on measured steps are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tuner._exceptions import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

BITS_PER_BYTE = 8
FLOP_PER_PARAM = 2
"""A multiplication and an addition per active parameter and token. Attention over the context is left
out: 4 * layers * context * width FLOP a token, at a context of 4096 that is 8 % of a 70e9 model (80 layers,
width 8192) and 15 % of a 7e9 model (32 layers, width 4096)."""

WEIGHT_BITS: dict[str, float] = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "int8": 8,
    "mxfp4": 4.25,
    "nvfp4": 4.5,
    "int4": 4,
}
"""Bits read per weight, by the name of the weight format. MXFP4 carries one 8-bit scale per 32 weights
(OCP Microscaling Formats v1.0), NVFP4 one per 16 (NVIDIA); the scales of int4 formats (AWQ, GPTQ: 16 bits
per 128 weights, 3 %) are left out. The FLOP/s must be those of the *math*: 4-bit weights that are widened
to bf16 run at the bf16 rate, so their crossover is a quarter of bf16's."""

_WEIGHT_FORMAT_ALIASES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "4-bit": "int4",
    "4bit": "int4",
    "w4a16": "int4",
    "awq": "int4",
    "gptq": "int4",
    "fp4": "mxfp4",
}


def weight_bits(name: str) -> float:
    """Return the bits per weight of the format called ``name``, in any case.

    Raises:
        InputError: the format is unknown; the message lists those that are known.
    """
    key = name.strip().lower()
    bits = WEIGHT_BITS.get(_WEIGHT_FORMAT_ALIASES.get(key, key))
    if bits is None:
        raise InputError(f"unknown weight format {name!r}: use one of {', '.join(WEIGHT_BITS)}")
    return float(bits)


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the device, or the tensor-parallel group as one device, can do."""

    flops: float
    """Dense FLOP/s in the math the model runs; vendors print twice this "with sparsity"."""
    bandwidth: float
    """Bytes/s from the memory that holds weights and KV cache."""

    def __post_init__(self) -> None:
        """Refuse what is not a positive, finite rate."""
        _positive(self.flops, "flops", "give FLOP/s, as in 989e12")
        _positive(self.bandwidth, "bandwidth", "give bytes/s, as in 3.35e12")

    @property
    def balance(self) -> float:
        """FLOP that fit in the time of one byte."""
        return self.flops / self.bandwidth


@dataclass(frozen=True, slots=True)
class Model:
    """What one forward pass reads and multiplies."""

    params: float
    """Parameters in memory, all experts."""
    active_params: float
    """Parameters that one token multiplies; equal to ``params`` for a dense model."""
    weight_bits: float = 16.0
    """Bits read per parameter."""

    def __post_init__(self) -> None:
        """Refuse impossible sizes."""
        _positive(self.params, "total parameters", "give a count, as in 70e9")
        _positive(self.active_params, "active parameters", "give a count, as in 17e9")
        _positive(self.weight_bits, "weight bits", "give the bits of one weight, as in 16")
        if self.active_params > self.params:
            raise InputError(
                f"active parameters {self.active_params:g} exceed total parameters {self.params:g}: "
                "swap them, or give the total of all experts"
            )

    @classmethod
    def dense(cls, params: float, weight_bits: float = 16.0) -> Self:
        """Return a model whose every parameter takes part in every token."""
        return cls(params, params, weight_bits)

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return self.params * self.weight_bits / BITS_PER_BYTE

    @property
    def moe_factor(self) -> float:
        """By how much the mixture of experts raises the crossover: total over active parameters.

        Holds once a step has enough tokens to touch every expert. Below that a step reads only the
        experts it routes to, and each further token may add some: measured verify steps of small
        batches are *not* free (cost 1.1x to 1.9x at K = 1 to 4 on one published model).
        """
        return self.params / self.active_params


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, bits: float = 16.0) -> float:
    """Return the bytes of keys and values that one context token adds to every later step.

    80 layers, 8 KV heads of 128 in bf16 (a 70e9 model with grouped queries): 327 680 bytes.
    """
    for value, name in ((layers, "layers"), (kv_heads, "KV heads"), (head_dim, "head size"), (bits, "bits")):
        _positive(value, name, "see the model's configuration file")
    return 2.0 * layers * kv_heads * head_dim * bits / BITS_PER_BYTE


def memory_seconds(hardware: Hardware, model: Model, kv_bytes: ArrayLike = 0.0) -> NDArray[np.float64]:
    """Return the seconds that reading all weights and ``kv_bytes`` of context takes."""
    return (model.weight_bytes + _not_negative(kv_bytes, "KV bytes")) / hardware.bandwidth


def compute_seconds(hardware: Hardware, model: Model, tokens: ArrayLike) -> NDArray[np.float64]:
    """Return the seconds of arithmetic for ``tokens`` in one forward pass."""
    return FLOP_PER_PARAM * model.active_params * _not_negative(tokens, "tokens") / hardware.flops


def forward_seconds(
    hardware: Hardware, model: Model, tokens: ArrayLike, kv_bytes: ArrayLike = 0.0
) -> NDArray[np.float64]:
    """Return the seconds of one forward pass over ``tokens``: the larger of memory and compute.

    Args:
        hardware: the device.
        model: the weights.
        tokens: tokens in flight, any shape.
        kv_bytes: context bytes read by the pass, broadcast against ``tokens``.
    """
    return np.maximum(memory_seconds(hardware, model, kv_bytes), compute_seconds(hardware, model, tokens))


def crossover_tokens(hardware: Hardware, model: Model, kv_bytes: float = 0.0) -> float:
    """Return the tokens in flight at which compute time reaches memory time.

    ``(weight bytes + KV bytes) / bandwidth * FLOPS / (2 * active params)``. H100 SXM, bf16, dense:
    295, whatever the size; times total/active for a mixture of experts; 74 with 4-bit weights and
    bf16 math. Context *raises* it, since it adds memory time. That the KV cache's capacity lowers the
    largest batch is another matter, and no part of this.
    """
    seconds = float(memory_seconds(hardware, model, kv_bytes))
    return seconds * hardware.flops / (FLOP_PER_PARAM * model.active_params)


def crossover_batch(
    hardware: Hardware, model: Model, tokens_per_request: float, kv_bytes_per_request: float = 0.0
) -> float:
    """Return the batch at which the step turns compute-bound when each request brings its own context.

    With B requests the step holds ``B * tokens_per_request`` tokens and reads ``B * kv_bytes_per_request``,
    so both sides grow with B. ``math.inf`` where reading a request's context outlasts its arithmetic:
    such traffic never leaves the memory-bound side and speculation gains *more* at larger batches
    (MagicDec, arXiv:2408.11049).
    """
    _positive(tokens_per_request, "tokens per request", "give draft length + 1")
    compute = float(compute_seconds(hardware, model, tokens_per_request))
    reading = float(_not_negative(kv_bytes_per_request, "KV bytes")) / hardware.bandwidth
    if compute <= reading:
        return math.inf
    return float(memory_seconds(hardware, model)) / (compute - reading)


def largest_batch_below(crossover: float, tokens_per_request: int) -> int:
    """Return the largest batch whose tokens in flight stay at or below ``crossover``, at least 0.

    What ``max_num_seqs`` may be at most for ``max_num_seqs * (K + 1)`` to stay memory-bound:
    59 for 295 tokens at K = 4.
    """
    _positive(tokens_per_request, "tokens per request", "give draft length + 1")
    return int(_positive(crossover, "crossover", "give tokens in flight") // tokens_per_request)


def _positive(value: float, what: str, remedy: str) -> float:
    """Return ``value`` if it is a finite number above 0."""
    if not (value > 0.0 and math.isfinite(value)):
        raise InputError(f"{what} must be a finite number above 0, got {value:g}: {remedy}")
    return value


def _not_negative(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """Return ``values`` as floats if all are finite and not below 0."""
    array = np.asarray(values, dtype=np.float64)
    if not np.all((array >= 0.0) & np.isfinite(array)):
        raise InputError(f"{what} must be finite and not negative")
    return array
