"""Can everything be reached that the settings name, and is what it says usable? Asks; changes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tuner._exceptions import InputError, StoreError, UnsupportedError
from tuner.daemon.opening import connect
from tuner.engines import get_engine
from tuner.fleet import Finding
from tuner.observe.outcomes import SourceError
from tuner.observe.readback import Readback, read_back
from tuner.observe.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import httpx2

    from tuner.config import Config, Pool
    from tuner.daemon.parts import RealParts
    from tuner.fleet import Target
    from tuner.observe.exposition import Scrape
    from tuner.vocabulary import Vocabulary

Verdict = Literal["ok", "warning", "fault"]
NAMED = 3
"""Engines that a line names."""
PROBED = 20
"""Engines of a pool whose admin API is probed without a key: they are set up alike."""
DEV_PATH = "/server_info"
"""vLLM answers it in development mode only, which opens calls that change the engine too (vLLM 0.32.0
``entrypoints/launchers/api_server/routers.py:40``)."""
PROBE_SECONDS = 5.0
SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was asked."""

    subject: str
    """What: ``database``, ``engines of chat``, ..."""
    verdict: Verdict
    said: str
    remedy: str = ""


@dataclass(slots=True)
class Report:
    """All that was asked, and findings worth a code."""

    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """How many checks found a fault."""
        return sum(check.verdict == "fault" for check in self.checks)

    def add(self, subject: str, verdict: Verdict, said: str, remedy: str = "") -> None:
        """Note what came of one check; what was said may hold its remedy after the last colon."""
        if not remedy and verdict != "ok":
            said, _, remedy = said.rpartition(": ")
        check = Check(subject, verdict, said or remedy, remedy if said else "")
        if check not in self.checks:
            self.checks.append(check)


def examine(config: Config, parts: RealParts, client: httpx2.Client, now: Callable[[], float]) -> Report:
    """Ask everything that the settings name.

    Args:
        config: settings without fault.
        parts: the real parts, which are used as the daemon uses them.
        client: for Alertmanager and for probes; follows no redirects.
        now: unix seconds.
    """
    report = Report()
    _database(config, report)
    servers = {source.name: parts.server(config, source.name) for source in config.sources.prometheus}
    for name, server in servers.items():
        asked = [p for p in config.pools if p.engines.prometheus and p.engines.prometheus.source == name]
        selector = asked[0].engines.prometheus.selector if asked and asked[0].engines.prometheus else ""
        said = server.targets(selector or 'job=~".+"', now())
        if isinstance(said, SourceError):
            report.add(f"metrics server {name}", "fault", said.reason, "check its address, access and state")
        else:
            report.add(f"metrics server {name}", "ok", f"answers, {counted(len(said), 'target')}")
    for pool in config.pools:
        _pool(config, pool, parts, report, client, now)
    for address in config.alerting.alertmanagers:
        _alertmanager(client, address, report)
    return report


def _database(config: Config, report: Report) -> None:
    """Open the database, and see whether its schema is this release's and whether it takes writes."""
    try:
        store = connect(config)
    except StoreError as error:
        report.add("database", "fault", str(error))
        return
    try:
        revision = store.revision()
        if revision.current is None:
            report.add("database", "ok", f"{store.place} is empty: tuner run makes its tables")
        elif revision.current != revision.head:
            store.check()
        else:
            report.add("database", "ok", f"{store.place} is at {revision.head}")
            if config.store.url.startswith(SQLITE) and not _writable(config.store.url.removeprefix(SQLITE)):
                report.add(
                    "database", "fault", f"{store.place} takes no writes", "make file and folder writable"
                )
    except StoreError as error:
        report.add("database", "fault", str(error))
    finally:
        store.close()


def _writable(file: str) -> bool:
    """Whether SQLite can write: to the file, and to the journals beside it."""
    return os.access(file, os.W_OK) and os.access(os.path.dirname(file) or ".", os.W_OK)  # noqa: PTH120


def _pool(
    config: Config,
    pool: Pool,
    parts: RealParts,
    report: Report,
    client: httpx2.Client,
    now: Callable[[], float],
) -> None:
    """Find the engines of a pool, read each once, and look at what they say."""
    try:
        engine = get_engine(pool.engine)
    except UnsupportedError as error:
        report.add(f"pool {pool.name}", "fault", str(error))
        return
    if not pool.engines.named:
        report.add(f"pool {pool.name}", "warning", "names no engines", "add engines: it serves replays only")
        return
    servers = {source.name: parts.server(config, source.name) for source in config.sources.prometheus}
    found = parts.directory(config, pool, servers).refresh(now())
    for finding in found.findings:
        verdict: Verdict = "fault" if not found.targets else "warning"
        report.add(f"discovery of {pool.name}", verdict, finding.message)
    if not found.targets:
        return
    report.add(f"discovery of {pool.name}", "ok", counted(len(found.targets), "engine"))
    way = pool.engines.prometheus
    if way is None or way.read == "direct" or way.fallback:
        _engines(config, pool, engine.vocabulary, parts, found.targets, report)
    _admin(pool, parts, client, found.targets, report)


def _engines(
    config: Config,
    pool: Pool,
    vocabulary: Vocabulary,
    parts: RealParts,
    targets: Sequence[Target],
    report: Report,
) -> None:
    """Scrape every engine once."""
    subject = f"engines of {pool.name}"
    scraper = parts.scraper(config)
    try:
        answers = scraper.round(targets, lambda _: vocabulary.sample_names).scraped
    finally:
        scraper.close()
    down = [f"{a.target.engine} ({a.error})" for a in answers if a.error]
    good = {a.target.engine: a.scrape.result for a in answers if not isinstance(a.scrape.result, InputError)}
    if down:
        report.add(
            subject,
            "fault",
            f"{len(down)} of {len(targets)} cannot be read: {_some(down)}",
            "check that they run, and their addresses",
        )
    missing: dict[str, list[str]] = {}
    for name, scrape in good.items():
        for counter in _missing(scrape, vocabulary):
            missing.setdefault(counter, []).append(name)
    for counter, names in missing.items():
        report.add(
            subject,
            "fault" if counter in vocabulary.required else "warning",
            f"{' or '.join(vocabulary.counters[counter].names)} is missing of "
            f"{counted(len(names), 'engine')}: {_some(names)}",
            "check version and flags of the engine; some counters appear with the first request",
        )
    ranks = {name: n for name, scrape in good.items() if (n := _ranks(scrape, vocabulary)) > 1}
    if ranks:
        said = (
            f"data parallel on {counted(len(ranks), 'engine')}, {max(ranks.values())} ranks at most: "
            f"{_some(ranks)}"
        )
        report.add(subject, "warning", said, "choose one draft length: engines drop a table then")
    if good and not missing:
        report.add(subject, "ok", f"all that is needed is told by {len(good)} of {len(targets)}")


def _missing(scrape: Scrape, vocabulary: Vocabulary) -> list[str]:
    """Return the counters that a scrape tells under none of their names."""
    told = {key.name for key in scrape.samples}
    return [name for name, metric in vocabulary.counters.items() if not told.intersection(metric.names)]


def _ranks(scrape: Scrape, vocabulary: Vocabulary) -> int:
    """Return how many ranks of one server a scrape tells of."""
    names = {name for counter in vocabulary.required for name in vocabulary.counters[counter].names}
    ranks = {dict(key.labels).get(vocabulary.rank_label) for key in scrape.samples if key.name in names}
    return len(ranks - {None})


def _admin(
    pool: Pool, parts: RealParts, client: httpx2.Client, targets: Sequence[Target], report: Report
) -> None:
    """Ask admin APIs for their schedules, with the token and without."""
    reader = parts.reader(pool)
    if reader is None:
        return
    subject = f"admin API of {pool.name}"
    said = {target.engine: reader.read(target) for target in targets[:PROBED]}
    failed = [f"{name} ({got.reason})" for name, got in said.items() if isinstance(got, SourceError)]
    told = [got for got in said.values() if isinstance(got, Readback)]
    if failed:
        report.add(
            subject,
            "fault",
            f"no schedule is told by {len(failed)} of {len(said)}: {_some(failed)}",
            "check admin.url_template, the plugin and the token, or leave admin out",
        )
    without = sum(got.schedule is None for got in told)
    refusing = [got for got in told if not got.supported]
    if without:
        report.add(
            subject, "warning", f"no schedule runs on {counted(without, 'engine')}", "start them with a table"
        )
    if refusing:
        why = ", ".join(refusing[0].reasons) or "no reason given"
        report.add(
            subject,
            "warning",
            f"no push is taken by {counted(len(refusing), 'engine')}: {why}",
            "see docs/engines.md",
        )
    if told and not failed and not without and not refusing:
        versions = sorted({got.plugin_version or "unknown" for got in told})
        report.add(
            subject,
            "ok",
            f"the schedule is told by {counted(len(told), 'engine')}, plugin {', '.join(versions)}",
        )
    _probe(pool, client, targets[:PROBED], report)


def _probe(pool: Pool, client: httpx2.Client, targets: Iterable[Target], report: Report) -> None:
    """See by reading alone whether a stranger could change engines."""
    open_ = [target.engine for target in targets if target.admin_url and _opens(client, target.admin_url)]
    foreign = [
        target.engine
        for target in targets
        if target.admin_url
        and isinstance(said := read_back(client, target.admin_url, None), Readback)
        and not said.plugin_version
    ]
    if open_:
        report.findings.append(_admin_open(pool.name, open_, "development mode answers", "critical"))
    if foreign:
        report.findings.append(_admin_open(pool.name, foreign, "the schedule is told", "warning"))
    for finding in report.findings:
        if finding.subject.get("pool") == pool.name:
            verdict: Verdict = "fault" if finding.severity == "critical" else "warning"
            report.add(f"admin API of {pool.name}", verdict, finding.message)


def _admin_open(
    pool: str, engines: list[str], what: str, severity: Literal["warning", "critical"]
) -> Finding:
    return Finding(
        "engine_admin_open",
        severity if severity == "warning" else "critical",
        f"{counted(len(engines), 'engine')}, {engines[0]} first: {what} without a key, so others may "
        "change them: set a key, unset VLLM_SERVER_DEV_MODE, or keep the port from other hosts",
        {"pool": pool},
        {"engines": engines[:NAMED]},
    )


def _opens(client: httpx2.Client, admin_url: str) -> bool:
    """Whether an engine answers what it answers in development mode only. The body is not read."""
    import httpx2  # noqa: PLC0415 - 0.1 s

    try:
        with client.stream("GET", admin_url.rstrip("/") + DEV_PATH, timeout=PROBE_SECONDS) as answer:
            return answer.status_code == 200  # noqa: PLR2004 - of HTTP
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return False


def _alertmanager(client: httpx2.Client, address: str, report: Report) -> None:
    import httpx2  # noqa: PLC0415 - 0.1 s

    subject = f"Alertmanager {address}"
    try:
        status = client.get(f"{address}/-/ready", timeout=PROBE_SECONDS).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        report.add(subject, "fault", f"no answer ({type(error).__name__})", "check address and network")
        return
    if status != 200:  # noqa: PLR2004 - of HTTP
        report.add(subject, "fault", f"answers {status}", "check the address, and its log")
    else:
        report.add(subject, "ok", "is ready")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return ", ".join(listed[:NAMED]) + more
