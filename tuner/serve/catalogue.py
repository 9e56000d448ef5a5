"""Every metric of the tuner: name, kind, labels, meaning. The collector fills it, the docs repeat it.

``docs/metrics.md`` holds the same table; a test compares the two in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram", "summary", "info"]

CANNOT_SAY: Final = ("acceptance", "alpha", "step_time", "crossover", "schedule", "speedup")
"""Values of ``what``: the estimates of a pool that may be missing for want of evidence."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as a scrape shows it."""

    name: str
    """As in the text format: counters end in ``_total``, info in ``_info``."""
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    """HELP text, with the unit."""
    interval: bool = False
    """``<name>_low`` and ``<name>_high`` stand beside it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name, and those of the ends of its interval."""
        return (self.name, f"{self.name}_low", f"{self.name}_high") if self.interval else (self.name,)


ESTIMATES: Final = (
    Metric(
        "tuner_acceptance_ratio",
        "gauge",
        ("pool", "route", "position"),
        "Probability (0-1) that the draft token at this position is accepted, given that it was reached and "
        "drafted. Absent where it was not measured.",
        interval=True,
    ),
    Metric(
        "tuner_acceptance_alpha_ratio",
        "gauge",
        ("pool", "route"),
        "One acceptance probability (0-1) for all positions: maximum likelihood of the truncated geometric.",
        interval=True,
    ),
    Metric(
        "tuner_accepted_tokens_per_step",
        "histogram",
        ("pool", "route", "draft_len"),
        "Accepted draft tokens per verify step and request, in good windows since the start, where the draft "
        "length of the step is known.",
    ),
    Metric(
        "tuner_crossover_tokens",
        "gauge",
        ("pool",),
        "Tokens in flight at which the time per token equals the fixed time of a step.",
        interval=True,
    ),
    Metric(
        "tuner_step_time_seconds",
        "gauge",
        ("pool", "batch", "draft_len"),
        "Predicted seconds of a step that computes no prompt, at the mean speed of the engines. Absent where "
        "it would be extrapolated.",
        interval=True,
    ),
    Metric(
        "tuner_predicted_speedup_ratio",
        "gauge",
        ("pool", "route"),
        "Predicted decode speed under the schedule over that without speculation, at the load seen (1 is "
        "no gain).",
        interval=True,
    ),
    Metric(
        "tuner_cannot_say",
        "gauge",
        ("pool", "what"),
        "1 where the evidence does not tell the estimate, whose series are then absent; 0 where it does.",
    ),
)

OBSERVATIONS: Final = (
    Metric(
        "tuner_goodput_tokens_per_second",
        "gauge",
        ("pool", "engine"),
        "Tokens per second given to users by an engine, all its ranks together, measured over the last 5 "
        "minutes.",
    ),
    Metric(
        "tuner_goodput_efficiency_ratio",
        "gauge",
        ("pool",),
        "Emitted over verified tokens (0-1), measured over the last 5 minutes.",
    ),
    Metric("tuner_windows_total", "counter", ("pool", "state"), "Windows observed, by what they are worth."),
    Metric(
        "tuner_windows_buffered",
        "gauge",
        (),
        "Windows that wait for the database for longer than a round of scrapes.",
    ),
    Metric(
        "tuner_windows_dropped_total",
        "counter",
        (),
        "Windows dropped because the buffer was full, those of routes included.",
    ),
    Metric(
        "tuner_windows_held",
        "gauge",
        ("pool",),
        "Windows of engines that are held for the next cycle; those of routes are beside them.",
    ),
    Metric("tuner_series_state", "gauge", (), "Series of engines that state is held for between scrapes."),
    Metric("tuner_targets", "gauge", ("pool", "state"), "Engines by state: up, down, or not scraped yet."),
    Metric("tuner_target_up", "gauge", ("pool", "engine"), "1 if the last scrape of the engine was good."),
    Metric(
        "tuner_source_up",
        "gauge",
        ("source",),
        "1 if the source answered last: a Prometheus server, the database, discovery or scrape of a pool.",
    ),
)

SCHEDULES: Final = (
    Metric(
        "tuner_schedule_info",
        "info",
        ("pool", "version", "state"),
        "Schedule versions in force or proposed.",
    ),
    Metric(
        "tuner_schedule_draft_len",
        "gauge",
        ("pool", "batch"),
        "Draft tokens per request at a batch size: by the active schedule, else the proposed one, else by "
        "what the last cycle would choose.",
    ),
    Metric(
        "tuner_schedule_drift",
        "gauge",
        ("pool", "engine"),
        "1 if the engine runs another schedule than the active one, 0 if the same; absent where not known.",
    ),
    Metric("tuner_push_total", "counter", ("pool", "result"), "Pushes of a schedule to an engine."),
    Metric(
        "tuner_finding_active",
        "gauge",
        ("code", "severity", "pool", "route"),
        "1 for each finding that is active; pool and route are empty where it concerns none.",
    ),
)

DAEMON: Final = (
    Metric("tuner_build_info", "info", ("version", "python_version"), "What is running."),
    Metric("tuner_start_timestamp_seconds", "gauge", (), "Unix seconds of the start."),
    Metric("tuner_snapshot_timestamp_seconds", "gauge", (), "Unix seconds of what is shown here."),
    Metric("tuner_leader", "gauge", (), "1 if this instance writes, 0 if it stands by."),
    Metric("tuner_fence", "gauge", (), "Fencing number of the lease that this instance holds or saw last."),
    Metric("tuner_ready", "gauge", (), "1 if the daemon is ready."),
    Metric("tuner_config_last_reload_successful", "gauge", (), "1 if the last load of settings succeeded."),
    Metric(
        "tuner_config_last_reload_success_timestamp_seconds",
        "gauge",
        (),
        "Unix seconds of the last load of the settings that succeeded.",
    ),
    Metric("tuner_cycle_duration_seconds", "summary", ("stage",), "Seconds that stages of a cycle took."),
    Metric("tuner_job_runs_total", "counter", ("job_name",), "Runs of a job."),
    Metric("tuner_job_errors_total", "counter", ("job_name",), "Runs of a job that failed."),
    Metric(
        "tuner_job_missed_total",
        "counter",
        ("job_name",),
        "Runs of a job that were missed: too late to be made.",
    ),
    Metric(
        "tuner_job_skipped_total",
        "counter",
        ("job_name",),
        "Runs of a job left out because the one before was still going.",
    ),
    Metric("tuner_job_duration_seconds", "gauge", ("job_name",), "Seconds that the last run of a job took."),
    Metric(
        "tuner_job_last_success_timestamp_seconds",
        "gauge",
        ("job_name",),
        "Unix seconds of the last run of a job that succeeded; absent before the first.",
    ),
    Metric(
        "tuner_label_values_left_out",
        "gauge",
        ("label",),
        "Label values that are not shown because there are more than the bound.",
    ),
)

METRICS: Final = (*ESTIMATES, *OBSERVATIONS, *SCHEDULES, *DAEMON)
