"""Metrics pages of simulated engines: vLLM 0.32.0's names, labels and order, and the plugin's.

Text that does not change is made once per engine; a page is one ``%`` over its numbers (0.1 ms for 8 KB).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tuner.simulate.padding import padding
from tuner.simulate.state import BATCH_BOUNDS, E2E_BOUNDS, ITL_BOUNDS, STEP_BOUNDS, TTFT_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.simulate.engines import Engines

PLUGIN_VERSION = "1.0.0"
REASONS = ("stop", "length", "abort", "error", "repetition")
PAGE_BYTES = 55_000
"""Size of a padded page: what vLLM 0.32.0 serves with one model and one engine."""

CREATED = (
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:iteration_tokens_total",
    "vllm:inter_token_latency_seconds",
    "vllm:time_to_first_token_seconds",
    "vllm:e2e_request_latency_seconds",
)
"""Families whose ``_created`` series are shown; they must never be summed with what they stand beside."""
HISTOGRAMS = (
    ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", STEP_BOUNDS),
    ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", TTFT_BOUNDS),
    ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", ITL_BOUNDS),
    ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", E2E_BOUNDS),
)


class Pages:
    """Renders the pages of all engines of a fleet; caches their labels."""

    def __init__(self, engines: Engines, *, pad: bool) -> None:
        """Render for ``engines``, filled to 55 KB if ``pad``."""
        self.engines = engines
        self.pad = pad
        self._templates: dict[tuple[str, int, int], str] = {}
        self._padding: dict[str, str] = {}
        self._labels: dict[tuple[str, int, int], str] = {}

    def render(self, engine: int, model: str, version: tuple[str, str], offset: float = 0.0) -> str:
        """Return one engine's page.

        Args:
            engine: number of the engine.
            model: its model's name, as labels carry it.
            version: version and source of its schedule, for the plugin's info.
            offset: seconds that the engine's own clock is ahead.
        """
        pool = self.engines.pools[self.engines.fixed.pool_of[engine]]
        key = (model, pool.kv_tokens // pool.kv_block, pool.max_draft_len)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = _template(
                model, pool.kv_tokens, pool.kv_block, pool.max_draft_len
            )
        text = template % tuple(self._numbers(engine, pool.max_draft_len, offset))
        if pool.plugin:
            text += self._plugin(engine, version)
        if self.pad:
            filling = self._padding.get(model)
            if filling is None:
                filling = self._padding[model] = padding(escaped(model), PAGE_BYTES - len(text))
            text += filling
        return text

    def _numbers(self, engine: int, longest: int, offset: float) -> list[float]:
        """Return the numbers of the template, in its order."""
        state, counters = self.engines.state, self.engines.state.counters
        joint = counters.joint[engine].sum(axis=0)
        by_accepted = joint[1:].sum(axis=0)
        at_least = by_accepted[::-1].cumsum()[::-1]
        started = float(state.started[engine]) + offset
        busy = float(counters.busy_seconds[engine])
        drafts = float(at_least[0])
        tokens = float(joint.sum(axis=1) @ np.arange(len(joint)))
        accepted = float(at_least[1:].sum())
        waiting = float(state.waiting[engine] + state.held[engine])
        capacity = float(self.engines.fixed.kv_tokens[engine])
        numbers: list[float] = [started, 3.0 + 0.9 * busy]
        numbers += (drafts, tokens, accepted)
        numbers += at_least[1 : longest + 1].astype(np.float64).tolist()
        numbers += (float(state.running[engine]), waiting, waiting, 0.0)
        numbers.append(min(float(state.context[engine]) / capacity, 1.0))
        for counter in (counters.preemptions, counters.prompt_tokens, counters.generated):
            numbers.append(float(counter[engine]))
        numbers += (float(counters.stopped[engine]), float(counters.cut_by_length[engine]), 0.0, 0.0, 0.0)
        for hist, total in (
            (counters.step_hist, counters.step_tokens),
            (counters.first_hist, counters.first_seconds),
            (counters.itl_hist, counters.itl_seconds),
            (counters.e2e_hist, counters.e2e_seconds),
        ):
            cumulated = hist[engine].cumsum().tolist()
            numbers += cumulated
            numbers += (cumulated[-1], float(total[engine]))
        numbers += [started + 1.5 + 1e-5 * i for i in range(len(CREATED))]
        return numbers

    def _plugin(self, engine: int, version: tuple[str, str]) -> str:
        """Return the plugin's families: only series that have counted something, as its client does."""
        counters = self.engines.state.counters
        pool = self.engines.pools[self.engines.fixed.pool_of[engine]]
        joint = counters.joint[engine]
        by_accepted = joint.sum(axis=0)
        at_least = by_accepted[:, ::-1].cumsum(axis=1)[:, ::-1].tolist()
        drafted = [(k, i) for k in range(1, len(at_least)) if at_least[k][0] for i in range(k)]
        lines = _head("spec_exposed_total", "counter", "Draft positions that were reached and drafted.")
        lines += [f"{self._spec('exposed', k, i)} {at_least[k][i]}.0" for k, i in drafted]
        lines += _head("spec_accepted_total", "counter", "Draft positions that were accepted.")
        lines += [f"{self._spec('accepted', k, i)} {at_least[k][i + 1]}.0" for k, i in drafted]
        lines += self._steps(engine)
        lines += _head(
            "route_accepted_total", "counter", "Request steps by route, draft and accepted tokens."
        )
        for route, draft_len, count in np.argwhere(joint[:, 1:]).tolist():
            name = pool.routes[route].name
            value = joint[route, draft_len + 1, count]
            lines.append(f"{self._route(name, draft_len + 1, count)} {value}.0")
        lines += _head("schedule_info", "gauge", "Schedule in force.")
        lines.append(f'tuner:schedule_info{{source="{version[1]}",version="{escaped(version[0])}"}} 1.0\n')
        return "\n".join(lines)

    def _steps(self, engine: int) -> list[str]:
        """Return the plugin's step times by batch bucket and draft length."""
        counters = self.engines.state.counters
        used = np.argwhere(counters.bucket_steps[engine]).tolist()
        seconds, steps, tokens = (
            array[engine].tolist()
            for array in (counters.bucket_seconds, counters.bucket_steps, counters.bucket_tokens)
        )
        lines = _head("step_seconds", "summary", "Wall seconds of engine steps.")
        for b, k in used:
            label = self._bucket(b, k)
            lines.append(f"tuner:step_seconds_count{label} {steps[b][k]!r}")
            lines.append(f"tuner:step_seconds_sum{label} {seconds[b][k]!r}")
        lines += _head("step_tokens_total", "counter", "Tokens in engine steps.")
        lines += [f"tuner:step_tokens_total{self._bucket(b, k)} {tokens[b][k]!r}" for b, k in used]
        return lines

    def _spec(self, what: str, draft_len: int, position: int) -> str:
        key = (what, draft_len, position)
        if key not in self._labels:
            labels = f'{{draft_len="{draft_len}",position="{position}"}}'
            self._labels[key] = f"tuner:spec_{what}_total{labels}"
        return self._labels[key]

    def _route(self, route: str, draft_len: int, accepted: int) -> str:
        key = (f"route {route}", draft_len, accepted)
        if key not in self._labels:
            labels = f'{{accepted="{accepted}",draft_len="{draft_len}",route="{escaped(route)}"}}'
            self._labels[key] = f"tuner:route_accepted_total{labels}"
        return self._labels[key]

    def _bucket(self, bucket: int, draft_len: int) -> str:
        key = ("bucket", bucket, draft_len)
        if key not in self._labels:
            self._labels[key] = f'{{batch_bucket="{BATCH_BOUNDS[bucket]}",draft_len="{draft_len}"}}'
        return self._labels[key]


def _template(model: str, kv_tokens: int, kv_block: int, longest: int) -> str:
    """Return an engine's page with ``%r`` in place of each number."""
    model = escaped(model).replace("%", "%%")
    own = f'engine="0",model_name="{model}"'
    lines = [
        "# HELP python_info Python platform information",
        "# TYPE python_info gauge",
        'python_info{implementation="CPython",major="3",minor="11",patchlevel="7",version="3.11.7"} 1.0',
    ]

    def family(name: str, kind: str, text: str, *labels: str, suffix: str = "") -> None:
        lines.append(f"# HELP {name} {text}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{suffix}{{{label}}} %r" if label else f"{name}{suffix} %r" for label in labels)

    family(
        "process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", ""
    )
    family("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", "")
    spec = "vllm:spec_decode_num_"
    family(f"{spec}drafts_total", "counter", "Number of spec decoding drafts.", own)
    family(f"{spec}draft_tokens_total", "counter", "Number of draft tokens.", own)
    family(f"{spec}accepted_tokens_total", "counter", "Number of accepted tokens.", own)
    positions = [f'{own},position="{i}"' for i in range(longest)]
    text = "Accepted tokens per draft position."
    family(f"{spec}accepted_tokens_per_pos_total", "counter", text, *positions)
    family("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", own)
    family("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", own)
    reasons = [f'{own},reason="{reason}"' for reason in ("capacity", "deferred")]
    family("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.", *reasons)
    family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", own)
    family("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", own)
    family("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", own)
    family("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", own)
    ends = [f'engine="0",finished_reason="{reason}",model_name="{model}"' for reason in REASONS]
    family("vllm:request_success_total", "counter", "Count of successfully processed requests.", *ends)
    for name, text, bounds in HISTOGRAMS:
        lines += _histogram(f"vllm:{name}", text, bounds, model)
    blocks = kv_tokens // kv_block
    cache = (
        f'block_size="{kv_block}",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
        f'gpu_memory_utilization="0.9",kv_cache_size_tokens="{blocks * kv_block}",num_gpu_blocks="{blocks}"'
    )
    lines += [
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
        "# TYPE vllm:cache_config_info gauge",
        f"vllm:cache_config_info{{{cache}}} 1.0",
    ]
    for name in CREATED:
        family(f"{name}_created", "gauge", "Time of creation.", own)
    return "\n".join(lines) + "\n"


def _histogram(name: str, text: str, bounds: Sequence[float], model: str) -> list[str]:
    """Return the lines of a histogram: buckets, count, sum."""
    own = f'engine="0",model_name="{model}"'
    bounds_and_rest = [*(repr(bound) for bound in bounds), "+Inf"]
    return [
        f"# HELP {name} {text}",
        f"# TYPE {name} histogram",
        *(f'{name}_bucket{{engine="0",le="{bound}",model_name="{model}"}} %r' for bound in bounds_and_rest),
        f"{name}_count{{{own}}} %r",
        f"{name}_sum{{{own}}} %r",
    ]


def _head(name: str, kind: str, text: str) -> list[str]:
    """Return the two lines above a family of the plugin."""
    return [f"# HELP tuner:{name} {text}", f"# TYPE tuner:{name} {kind}"]


def escaped(text: str) -> str:
    """Return a label value as the text format has it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
