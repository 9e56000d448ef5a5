"""Which settings this release acts on, and in which command; all others are checked and kept for later."""

from __future__ import annotations

OBEYED = frozenset(
    {
        "pools",
        "pools[].name",
        "pools[].hardware.flops",
        "pools[].hardware.bandwidth",
        "pools[].model.params",
        "pools[].model.active_params",
        "pools[].model.weight_bits",
        "pools[].drafter.method",
        "pools[].allowed_draft_lens",
        "pools[].max_batch",
        "pools[].objective",
        "pools[].slo.tpot",
        "pools[].guard.min_gain",
        "pools[].guard.tie",
    }
)
"""Settings that a replay obeys, by dotted name; a test holds this list to what a replay reads."""

DAEMON = OBEYED | {
    "store.url",
    "store.password_file",
    "scrape.interval",
    "scrape.timeout",
    "scrape.concurrency",
    "scrape.max_body",
    "discovery.interval",
    "cycle.interval",
    "cycle.half_life",
    "cycle.max_windows",
    "sources.prometheus",
    "sources.prometheus[].name",
    "sources.prometheus[].url",
    "sources.prometheus[].bearer_token_file",
    "sources.prometheus[].username",
    "sources.prometheus[].password_file",
    "sources.prometheus[].ca_file",
    "sources.prometheus[].headers",
    "sources.prometheus[].timeout",
    "sources.prometheus[].replica_labels",
    "pools[].mode",
    "pools[].engine",
    "pools[].engines.static",
    "pools[].engines.file_sd",
    "pools[].engines.http_sd",
    "pools[].engines.prometheus.source",
    "pools[].engines.prometheus.selector",
    "pools[].engines.prometheus.read",
    "pools[].engines.prometheus.fallback",
    "pools[].engines.metrics_path",
    "pools[].engines.identity",
    "pools[].admin.url_template",
    "pools[].admin.token_file",
    "pools[].hardware.name",
    "pools[].gpu.exporters",
    "pools[].gpu.prometheus.source",
    "pools[].gpu.prometheus.selector",
    "pools[].gpu.join",
    "pools[].startup_schedule",
    "pools[].routes.max",
    "pools[].guard.dwell",
    "retention.raw",
    "retention.minute",
    "retention.hour",
    "web.listen",
    "web.config_file",
    "web.token_file",
    "web.enable_lifecycle",
}
"""Settings that the daemon obeys; a test holds this list to what the daemon's source reads."""


def obeyed(name: str) -> bool:
    """Return whether a replay acts on a setting, or on one in a section of that name."""
    return _within(name, OBEYED)


def used_by(name: str) -> str:
    """Return who acts on a setting, or on one in a section of that name: a cell of the reference."""
    if obeyed(name):
        return "replay and daemon"
    return "daemon" if _within(name, DAEMON) else "not yet"


def _within(name: str, settings: frozenset[str]) -> bool:
    """Return whether a setting, or one in a section of that name, is among ``settings``."""
    return any(each == name or each.startswith((f"{name}.", f"{name}[]")) for each in settings)
