"""The text of a scrape: formats, what clients ask for, and that scrapes stay cheap."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.serve.samples import parse, scrape_text
from tests.serve.worlds import snapshot, target
from tuner.serve.exposition import Exposition, Format, accepts_gzip, negotiate
from tuner.serve.observed import Observed

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2
    from prometheus_client import Metric

    from tuner.serve.snapshot import Snapshot

OPENMETRICS = "application/openmetrics-text"
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
"""What these servers send (prometheus/prometheus, scrape/scrape.go)."""


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Format.PLAIN),
        ("*/*", Format.PLAIN),
        ("text/html,*/*;q=0.8", Format.PLAIN),
        ("text/plain;version=0.0.4", Format.PLAIN),
        (OPENMETRICS, Format.OPENMETRICS),
        (PROMETHEUS_2, Format.OPENMETRICS),
        (PROMETHEUS_3, Format.OPENMETRICS),
        ("application/openmetrics-text;q=0.1,text/plain;q=0.9", Format.PLAIN),
        ("application/openmetrics-text;q=0", Format.PLAIN),
        ("application/openmetrics-text;version=9.9.9", Format.PLAIN),
        ("application/openmetrics-text;version=abc;q=x", Format.PLAIN),
        (";;,q=,=", Format.PLAIN),
    ],
)
def test_clients_get_the_format_they_ask_for(accept: str, form: Format) -> None:
    """OpenMetrics to those that want it no less than plain text, plain text to all others."""
    assert negotiate(accept) is form


@pytest.mark.parametrize(
    ("header", "taken"),
    [("gzip", True), ("deflate, GZIP;q=0.5", True), ("gzip;q=0", False), ("", False), ("gzipped", False)],
)
def test_gzip_is_used_where_it_is_named(header: str, taken: bool) -> None:
    """A body is packed for clients that say they can unpack it."""
    assert accepts_gzip(header) is taken


def test_both_formats_hold_the_same_samples() -> None:
    """Whatever is asked for, name, labels and value are the same."""
    shown = snapshot()
    plain = parse(scrape_text(shown))
    text = scrape_text(shown, OPENMETRICS)
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    rich = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # has no types
        for sample in family.samples
    }
    ours = {key: number for key, number in plain.items() if key[0].startswith("tuner_")}
    assert {key: number for key, number in rich.items() if key[0].startswith("tuner_")} == ours
    assert len(ours) > 300


def test_every_family_has_help_and_type_once() -> None:
    """No family comes twice, and each tells what it is."""
    lines = scrape_text(snapshot()).splitlines()
    for kind in ("HELP", "TYPE"):
        names = [line.split()[2] for line in lines if line.startswith(f"# {kind} ")]
        assert len(names) == len(set(names)) > 50
    assert all(len(line.split(None, 3)) == 4 for line in lines if line.startswith("# HELP"))


def test_promtool_finds_nothing_to_mend() -> None:
    """Prometheus' own linter accepts names, units and help."""
    promtool = shutil.which("promtool")
    if promtool is None:
        assert not os.environ.get("CI"), "promtool is missing: install prometheus"
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=scrape_text(snapshot()),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_process_is_told_of_each_time() -> None:
    """Memory and processor time are those of now, also when no new snapshot comes."""
    shown = snapshot()
    exposition = Exposition(lambda: shown)
    first = parse(exposition.scrape("", "").body.decode())
    assert first["process_resident_memory_bytes", frozenset()] > 1e6
    for _ in range(200_000):
        pass
    second = parse(exposition.scrape("", "").body.decode())
    assert second["process_cpu_seconds_total", frozenset()] >= first["process_cpu_seconds_total", frozenset()]


def test_a_snapshot_is_rendered_once_for_each_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand engines cost one rendering a snapshot, however many scrape."""
    import tuner.serve.metrics as module

    made: list[object] = []
    families_of = module.families_of

    def counting(one: Snapshot) -> list[Metric]:
        made.append(one)
        return families_of(one)

    monkeypatch.setattr(module, "families_of", counting)
    targets = tuple(target(f"p{i % 20}", f"e{i}") for i in range(1000))
    goodput = {(one.target.pool, one.target.engine): 100.0 for one in targets}
    shown = [snapshot(targets=targets, observed=Observed(goodput=goodput))]
    exposition = Exposition(lambda: shown[0])
    bodies = {exposition.scrape(accept, "").body for accept in ("", OPENMETRICS) for _ in range(5)}
    assert len(made) == 1
    assert len(bodies) >= 2
    shown[0] = snapshot(buffered=3)
    exposition.scrape("", "")
    assert len(made) == 2


def test_a_scrape_over_http(served: Callable[..., httpx2.Client]) -> None:
    """Content type, packing and HEAD are those of an exporter."""
    client = served()
    plain = client.get("/metrics", headers={"accept": "*/*", "accept-encoding": "identity"})
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "content-encoding" not in plain.headers
    packed = client.get("/metrics", headers={"accept": PROMETHEUS_2, "accept-encoding": "gzip"})
    assert packed.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.text.endswith("# EOF\n")
    assert len(gzip.compress(packed.content)) < len(packed.content) / 3
    head = client.head("/metrics")
    assert (head.status_code, head.content) == (200, b"")
