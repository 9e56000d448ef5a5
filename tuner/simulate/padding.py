"""What a real vLLM tells beside the families that are simulated: text that does not change, to size."""

from __future__ import annotations

_LONG = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
)
_TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
_SMALL = (1.0, 2.0, 5.0, 10.0, 20.0)

FAMILIES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("request_queue_time_seconds", _LONG),
    ("request_inference_time_seconds", _LONG),
    ("request_prefill_time_seconds", _LONG),
    ("request_decode_time_seconds", _LONG),
    ("request_prompt_tokens", _TOKENS),
    ("request_generation_tokens", _TOKENS),
    ("request_max_num_generation_tokens", _TOKENS),
    ("request_params_max_tokens", _TOKENS),
    ("request_params_n", _SMALL),
    ("request_prefill_kv_computed_tokens", _TOKENS),
    ("request_time_per_output_token_seconds", tuple(x / 100 for x in _LONG)),
    ("kv_block_lifetime_seconds", _LONG),
    ("kv_block_idle_before_evict_seconds", _LONG),
    ("kv_block_reuse_gap_seconds", _LONG),
)
"""Histograms of vLLM that nothing here is counted in: all their buckets are 0."""
COUNTERS = (
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    "mm_cache_queries_total",
    "mm_cache_hits_total",
    "prompt_tokens_cached_total",
    "estimated_flops_per_gpu_total",
    "estimated_read_bytes_per_gpu_total",
    "estimated_write_bytes_per_gpu_total",
)


def padding(model: str, size: int) -> str:
    """Return about ``size`` bytes of families of a real engine with nothing counted in them.

    The list is gone through once; what is left is filled by request latencies per HTTP handler, which is
    what fills the pages of real servers too.
    """
    own = f'engine="0",model_name="{model}"'
    lines: list[str] = []
    used = 0

    def add(name: str, kind: str, series: list[str]) -> None:
        nonlocal used
        block = [
            f"# HELP {name} {name.partition(':')[2].replace('_', ' ')}.",
            f"# TYPE {name} {kind}",
            *series,
        ]
        lines.extend(block)
        used += sum(len(line) + 1 for line in block)

    for counter in COUNTERS:
        add(f"vllm:{counter}", "counter", [f"vllm:{counter}{{{own}}} 0.0"])
    for family, bounds in FAMILIES:
        if used < size:
            add(f"vllm:{family}", "histogram", _buckets(f"vllm:{family}", bounds, own))
    name = "http_request_duration_seconds"
    series: list[str] = []
    handlers = 0
    while used + sum(len(line) + 1 for line in series) < size:
        series += _buckets(name, _LONG, f'handler="/v1/handler-{handlers}",method="POST"')
        handlers += 1
    if series:
        add(name, "histogram", series)
    return "\n".join(lines) + "\n"


def _buckets(name: str, bounds: tuple[float, ...], labels: str) -> list[str]:
    """Return the series of an empty histogram."""
    return [
        *(f'{name}_bucket{{{labels},le="{bound}"}} 0.0' for bound in (*bounds, "+Inf")),
        f"{name}_count{{{labels}}} 0.0",
        f"{name}_sum{{{labels}}} 0.0",
    ]
