"""vLLM: metric names old and new, what versions can do, the batch -> draft length dialect.

Read in vLLM 0.32.0: ``vllm/v1/metrics/loggers.py``, ``vllm/v1/spec_decode/metrics.py``,
``vllm/v1/spec_decode/dynamic/utils.py``. What each metric means is told in docs/engines.md.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tuner._exceptions import ScheduleError, UnsupportedError
from tuner.engines._engine import Rendered
from tuner.engines._vllm_dialect import KEY, MAX_KEY, check_bounds, expand, rows_of, unwrap
from tuner.fleet import Capabilities, Finding, Schedule
from tuner.vocabulary import Metric, Vocabulary

if TYPE_CHECKING:
    from tuner.engines._engine import Setup
    from tuner.fleet import Severity

FIRST_WITH_SCHEDULE = (0, 24)
"""vllm-project/vllm#32374 was approved on 2026-06-12, after 0.23; vllm-metal#463 meets it in 0.24.0."""
NEWEST_READ = (0, 32)
"""Version whose source this file describes."""
NEWEST_TRUSTED = (0, 34)
"""vLLM warns two minor versions ahead of a removal, so what 0.32 reads without a warning lasts to here."""
FIRST_LIVE = (0, 32)
"""Version on which a running engine was seen to take another table."""
HONOURS_DRAFT_LEN_ON_V2 = ("eagle", "mtp")
"""Drafters that shorten with K on runner V2; the others draft the maximum and mask the tail (#51510)."""
FALLS_BACK_TO_V1 = ("suffix", "medusa", "mlp_speculator", "custom_class")

SETUP_LIMITS: tuple[tuple[str, Severity, str], ...] = (
    (
        "unsupported_data_parallel",
        "critical",
        (
            "unsupported: dp>1 with dynamic schedule: vLLM drops the table with a warning and keeps one K; "
            "choose the best single K"
        ),
    ),
    (
        "adaptive_verification",
        "critical",
        "adaptive verification chooses its own budget: leave the draft length to it or switch it off",
    ),
    (
        "started_without_schedule",
        "warning",
        (
            "started without a table: drafts are padded and graphs assume one K; restart with a table that "
            "holds every K to be used before changing it live"
        ),
    ),
    (
        "draft_cost_constant",
        "info",
        (
            "this drafter drafts the maximum on runner V2 whatever K says, and the tail is masked: a shorter "
            "K saves verification, not drafting (vllm-project/vllm#51510)"
        ),
    ),
    (
        "graph_mode_piecewise",
        "warning",
        (
            "a table forces piecewise graphs on this runner, which taxes every row, K = 0 included: compare "
            "with one fixed K, not with a flat table (vllm-project/vllm#49986)"
        ),
    ),
)
"""What the way of starting rules out, worst first."""

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.\d{1,4})?(?:[-.+]?[a-z0-9.+_-]*)", re.IGNORECASE)


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
    plugin={
        "exposed": Metric(("tuner:spec_exposed_total",)),
        "accepted": Metric(("tuner:spec_accepted_total",)),
        "route_accepted": Metric(("tuner:route_accepted_total",)),
        "schedule_info": Metric(("tuner:schedule_info",)),
    },
)


class Vllm:
    """vLLM's side of the contract between the tuner and an engine."""

    name = "vllm"
    vocabulary = VOCABULARY

    def capabilities(self, version: str) -> Capabilities:
        """Say what this version can do with a schedule.

        Raises:
            UnsupportedError: the version cannot be read, or is newer than what is known.
        """
        number = _number(version)
        schedules = number >= FIRST_WITH_SCHEDULE
        notes = []
        if not schedules:
            notes.append(
                f"batch schedules came with {_dotted(FIRST_WITH_SCHEDULE)}: one draft length for all"
            )
        if number > NEWEST_READ:
            notes.append(f"newer than {_dotted(NEWEST_READ)}, whose source was read: compare what it drafts")
        if schedules:
            notes.append("the batch that chooses K counts every scheduled request, prefills included")
        return Capabilities(
            engine=self.name,
            engine_version=version,
            batch_schedule=schedules,
            live_schedule=number >= FIRST_LIVE,
            zero_harms_drafter=False,
            notes=tuple(notes),
        )

    def limits(self, version: str, setup: Setup) -> tuple[Finding, ...]:
        """Say what this version, started this way, cannot do or does badly with a schedule."""
        capabilities = self.capabilities(version)
        subject = {"engine": self.name, "engine_version": version}
        found = _limits_of(setup)
        if not capabilities.batch_schedule:
            found.insert(0, ("no_batch_schedule", "critical", capabilities.notes[0]))
        return tuple(Finding(code, severity, text, subject) for code, severity, text in found)

    def render(self, schedule: Schedule, *, max_batch: int, max_draft_len: int, version: str) -> Rendered:
        """Write a schedule as the inside of ``--speculative-config``.

        Every batch size up to ``max_batch`` (``--max-num-seqs``) is written out, so that nothing
        rests on how the engine fills gaps and tails.

        Raises:
            ScheduleError: a draft length is over ``max_draft_len``, which the engine would clamp
                without a word.
            UnsupportedError: this version has no schedules, or is unknown.
        """
        notes = list(self._require_schedules(version).notes)
        check_bounds(max_batch, max_draft_len)
        highest = max(schedule.draft_lens)
        if highest > max_draft_len:
            raise ScheduleError(
                f"draft length {highest} is over the maximum {max_draft_len}: vLLM would clamp it silently; "
                f"lower it, or start the engine with {MAX_KEY} {highest}"
            )
        rows: list[list[int]] = []
        for first, last, draft_len in schedule.ranges:
            if first <= max_batch:
                rows.append([first, min(last, max_batch), draft_len])
        if schedule.max_batch > max_batch:
            notes.append(f"cut at batch {max_batch}: the engine never runs more requests")
        elif rows[-1][1] < max_batch:
            notes.append(f"last range extended from batch {rows[-1][1]} to {max_batch}")
            rows[-1][1] = max_batch
        config = {MAX_KEY: max_draft_len, KEY: rows}
        return self._answer(version, config, Schedule.from_ranges(rows), notes)

    def parse(
        self, config: object, *, max_batch: int, max_draft_len: int | None = None, version: str
    ) -> Rendered:
        """Read a speculative config, or its bare table, and say what the engine would really run.

        Raises:
            ScheduleError: vLLM would refuse to start with it.
            UnsupportedError: this version has no schedules, or is unknown.
        """
        notes = list(self._require_schedules(version).notes)
        table, highest = unwrap(config, max_draft_len, notes)
        check_bounds(max_batch, highest)
        dense = (
            [highest] * max_batch
            if table is None
            else expand(rows_of(table, notes), max_batch, highest, notes)
        )
        told = {MAX_KEY: highest} if table is None else {MAX_KEY: highest, KEY: table}
        return self._answer(version, told, Schedule.from_dense(dense), notes)

    def _answer(self, version: str, config: dict[str, Any], dense: Schedule, notes: list[str]) -> Rendered:
        """Return a dialect with its notes, that on K = 0 where it is used."""
        if 0 in dense.draft_lens:
            notes.append("K = 0 still runs the drafter once a step, so it costs more than no speculation")
        return Rendered(self.name, version, config, dense, tuple(notes))

    def _require_schedules(self, version: str) -> Capabilities:
        """Return the capabilities of a version that has schedules."""
        capabilities = self.capabilities(version)
        if not capabilities.batch_schedule:
            raise UnsupportedError(
                f"vLLM {version} has no batch schedules, they came with {_dotted(FIRST_WITH_SCHEDULE)}: "
                f"choose one draft length and set {MAX_KEY}"
            )
        return capabilities


ENGINE = Vllm()


def _dotted(number: tuple[int, int]) -> str:
    """Return a version for people."""
    return f"{number[0]}.{number[1]}"


def _number(version: str) -> tuple[int, int]:
    """Return major and minor version.

    Raises:
        UnsupportedError: the version cannot be read, or is newer than what is known.
    """
    found = _VERSION.fullmatch(version.strip())
    if found is None:
        raise UnsupportedError(f"vLLM version {version!r} cannot be read: give it as in 0.32.0")
    number = int(found[1]), int(found[2])
    if number > NEWEST_TRUSTED:
        raise UnsupportedError(
            f"vLLM {version} is unknown, {_dotted(NEWEST_TRUSTED)} is the newest trusted: "
            "its schedule dialect may have changed, update the tuner"
        )
    return number


def _limits_of(setup: Setup) -> list[tuple[str, Severity, str]]:
    """Return code, severity and text of what the way of starting rules out."""
    method, runner = setup.method.lower(), setup.runner.lower()
    v2 = runner in ("v2", "full") and not method.startswith(FALLS_BACK_TO_V1)
    applies = {
        "unsupported_data_parallel": setup.data_parallel > 1,
        "adaptive_verification": setup.adaptive_verification,
        "started_without_schedule": setup.started_with_schedule is False,
        "draft_cost_constant": v2 and bool(method) and not method.startswith(HONOURS_DRAFT_LEN_ON_V2),
        "graph_mode_piecewise": bool(runner) and not v2,
    }
    return [(code, severity, text) for code, severity, text in SETUP_LIMITS if applies[code]]
