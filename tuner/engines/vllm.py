"""vLLM: metric names old and new, what versions can do, the batch -> draft length dialect.

Read in vLLM 0.32.0: ``vllm/v1/metrics/loggers.py``, ``vllm/v1/spec_decode/metrics.py``,
``vllm/v1/spec_decode/dynamic/utils.py``. What each metric means is told in docs/engines.md.
"""

from __future__ import annotations

from tuner.fleet import Metric, Vocabulary


def _named(*names: str, position: str = "") -> Metric:
    """Return a metric by its plain names; Ray Serve writes a colon as an underscore and prefixes."""
    spelled = tuple(
        form.format(name) for name in names for form in ("vllm:{}", "vllm_{}", "ray_vllm:{}", "ray_vllm_{}")
    )
    return Metric(spelled, position=position)


VOCABULARY = Vocabulary(
    engine="vllm",
    counters={
        "steps": _named("iteration_tokens_total_count"),
        "request_steps": _named("inter_token_latency_seconds_count", "time_per_output_token_seconds_count"),
        "request_step_seconds": _named(
            "inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum"
        ),
        "drafts": _named("spec_decode_num_drafts_total"),
        "draft_tokens": _named("spec_decode_num_draft_tokens_total"),
        "accepted": _named("spec_decode_num_accepted_tokens_total"),
        "accepted_by_position": _named("spec_decode_num_accepted_tokens_per_pos_total", position="position"),
        "emitted": _named("generation_tokens_total"),
        "first_tokens": _named("time_to_first_token_seconds_count"),
        "step_tokens": _named("iteration_tokens_total_sum"),
        "prompt_tokens": _named("prompt_tokens_total"),
        "finished": _named("e2e_request_latency_seconds_count"),
        "request_seconds": _named("e2e_request_latency_seconds_sum"),
        "preemptions": _named("num_preemptions_total"),
    },
    gauges={
        "running": _named("num_requests_running"),
        "waiting": _named("num_requests_waiting"),
        "kv_usage": _named("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    },
    required=frozenset(
        {
            "steps",
            "request_steps",
            "request_step_seconds",
            "drafts",
            "draft_tokens",
            "accepted",
            "accepted_by_position",
            "emitted",
            "first_tokens",
        }
    ),
    model_label="model_name",
    rank_label="engine",
    process_start=Metric(("process_start_time_seconds",)),
    info=_named("cache_config_info"),
    kv_capacity_labels=(("kv_cache_size_tokens",), ("num_gpu_blocks", "block_size")),
    kv_dtype_label="cache_dtype",
)
