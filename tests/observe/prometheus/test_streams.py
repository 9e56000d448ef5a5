"""Series become scrapes: by target, by time, one replica, under the engine's own labels."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.observe.prometheus.stub import Stub, matrix, reply
from tests.observe.prometheus.test_client import NOW, Clock
from tuner._exceptions import InputError
from tuner.fleet import Target
from tuner.observe.exposition import Scrape, SeriesKey, TimedScrape
from tuner.observe.prometheus import PrometheusSource, SourceAnswer
from tuner.observe.prometheus.promql import any_of, matchers, raw_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

TARGET = Target("chat", "a", "http://a:1/metrics")
Samples = list[tuple[float, str]]


def series(
    name: str, samples: Sequence[tuple[float, float | str]], **labels: str
) -> tuple[dict[str, str], Samples]:
    """One series at instance a:1; times count from NOW - 60."""
    own = {"__name__": name, "instance": "a:1", "job": "vllm"} | labels
    return own, [(NOW - 60 + time, str(value)) for time, value in samples]


def ask(
    *answers: dict[str, Any], targets: Sequence[Target] = (TARGET,), source: PrometheusSource | None = None
) -> list[SourceAnswer]:
    """Ask round after round, 15 s apart, from NOW - 60 on."""
    with Stub(*(reply(answer) for answer in answers)).serve() as stub:
        clock = Clock()
        asked = source or PrometheusSource(
            "main", stub.url, scrape_interval=15.0, settle=0.0, monotonic=clock
        )
        names = frozenset({"running", "tokens_total"})
        since = [NOW - 61, *(NOW + 15 * i for i in range(len(answers)))]
        return [
            asked.scrapes(targets, 'job="vllm"', names, since[i], NOW + 15 * i) for i in range(len(answers))
        ]


def values(scrapes: Sequence[TimedScrape], name: str = "running") -> list[tuple[float, float | str]]:
    """Return (seconds from NOW - 60, value) of a series, the error of a failed scrape."""
    out: list[tuple[float, float | str]] = []
    for time, result in scrapes:
        at = round(time - NOW + 60, 3)
        if isinstance(result, InputError):
            out.append((at, str(result)))
        else:
            out += [(at, value) for key, value in result.samples.items() if key.name == name]
    return out


def codes(answer: SourceAnswer) -> list[str]:
    return [finding.code for finding in answer.findings]


def test_a_pair_of_servers_counts_once() -> None:
    """Two replicas tell of 40 requests each; the batch is 40, not 80, and nobody is told to worry."""
    pair = [
        one
        for replica in "01"
        for one in (
            series("up", [(0, 1), (15, 1)], prometheus_replica=replica),
            series("running", [(0, 40), (15, 40)], prometheus_replica=replica),
        )
    ]
    (got,) = ask(matrix(*pair))
    assert values(got.scraped[TARGET]) == [(0, 40), (15, 40)]
    assert codes(got) == []


def test_one_replica_is_kept_until_it_fails() -> None:
    """A later answer in another order changes nothing; a replica that tells nothing more is replaced."""

    def pair(first: int, *replicas: str) -> dict[str, Any]:
        return matrix(
            *(
                one
                for replica in replicas
                for one in (
                    series("up", [(first + float(replica), 1)], replica=replica),
                    series("running", [(first + float(replica), 40)], replica=replica),
                )
            )
        )

    rounds = ask(pair(0, "1", "2"), pair(60, "2", "1"), pair(75, "1"), pair(90, "1", "2"))
    times = [[time for time, _ in values(got.scraped[TARGET])] for got in rounds]
    assert times == [[2], [62], [76], [91]]


def test_streams_apart_by_an_unknown_label_are_told() -> None:
    """Two jobs that scrape one engine would double it; one is read and the label is named."""
    twice = [
        one
        for job in ("vllm", "all")
        for one in (series("up", [(0, 1)], job=job), series("running", [(0, 40)], job=job))
    ]
    (got,) = ask(matrix(*twice))
    assert values(got.scraped[TARGET]) == [(0, 40)]
    assert codes(got) == ["target_told_twice"]
    assert got.findings[0].evidence["labels"] == ["job"]


def test_failed_scrapes_are_errors_at_their_time() -> None:
    """``up`` 0 is a scrape that failed, no scrape without samples."""
    (got,) = ask(matrix(series("up", [(0, 1), (15, 0), (30, 1)]), series("running", [(0, 4), (30, 5)])))
    assert values(got.scraped[TARGET]) == [(0, 4), (15, "main could not scrape a:1"), (30, 5)]


def test_labels_of_the_engine_come_back_under_their_names() -> None:
    """What the scrape configuration adds is taken off, what it pushed aside gets its name back."""
    up = series("up", [(0, 1)], engine="replica-3", cluster="eu")
    tokens = series(
        "tokens_total",
        [(0, 9)],
        engine="replica-3",
        cluster="eu",
        exported_engine="0",
        model_name="m",
        empty="",
    )
    (got,) = ask(matrix(up, tokens))
    (scrape,) = got.scraped[TARGET]
    assert isinstance(scrape.result, Scrape)
    key = SeriesKey("tokens_total", frozenset({("engine", "0"), ("model_name", "m")}))
    assert dict(scrape.result.samples) == {key: 9.0}


def test_targets_at_one_address_are_told_apart_by_labels() -> None:
    """Two engines behind one address, by path, are two targets if discovery gave them labels."""
    targets = [
        Target("chat", n, f"http://a:1/{n}/metrics", labels=(("engine_id", n), ("instance", "a:1")))
        for n in "xy"
    ]
    told = [
        one
        for n, running in (("x", 1), ("y", 2), ("z", 3))
        for one in (series("up", [(0, 1)], engine_id=n), series("running", [(0, running)], engine_id=n))
    ]
    (got,) = ask(matrix(*told), targets=targets)
    assert [values(got.scraped[target]) for target in targets] == [[(0, 1)], [(0, 2)]]


def test_without_up_samples_are_scrapes_at_their_times() -> None:
    """Where ``up`` is not kept (remote write, a selector it does not pass), times are the samples' own."""
    (got,) = ask(matrix(series("running", [(0, 4), (15, 5)]), series("tokens_total", [(0, 7), (15, 9)])))
    assert values(got.scraped[TARGET]) == [(0, 4), (15, 5)]
    assert codes(got) == []


def test_exporters_with_times_of_their_own() -> None:
    """All samples timed by the exporter: its times are the timeline, not those of the scrapes."""
    (got,) = ask(matrix(series("up", [(3, 1), (18, 1)]), series("running", [(0, 4), (15, 5)])))
    assert values(got.scraped[TARGET]) == [(0, 4), (15, 5)]
    assert codes(got) == ["timestamps_of_exporter"]


def test_some_samples_with_times_of_their_own() -> None:
    """A gauge timed by the exporter beside counters timed by the scrape counts for the scrape that saw it."""
    told = matrix(
        series("up", [(3, 1), (18, 1)]),
        series("tokens_total", [(3, 7), (18, 9)]),
        series("running", [(1, 3), (2, 4), (17, 5), (19, 6)]),
    )
    (got,) = ask(told)
    assert values(got.scraped[TARGET]) == [(3, 4), (18, 5)]
    assert values(got.scraped[TARGET], "tokens_total") == [(3, 7), (18, 9)]


def test_marks_of_the_end_of_a_series_are_no_samples() -> None:
    """VictoriaMetrics sends them as NaN; a gauge that was NaN says nothing either."""
    (got,) = ask(matrix(series("up", [(0, 1), (15, 1)]), series("running", [(0, 4), (15, "NaN")])))
    assert values(got.scraped[TARGET]) == [(0, 4)]
    assert [one.time - NOW + 60 for one in got.scraped[TARGET]] == [0, 15]


def test_no_scrape_is_handed_out_twice_and_none_is_lost() -> None:
    """Answers overlap, since a range may leave its edge out and a server may lag; scrapes do not."""
    up = [(t, 1) for t in range(0, 91, 15)]
    rounds = ask(
        matrix(series("up", up[:4]), series("running", [(t, t) for t, _ in up[:4]])),
        matrix(series("up", up[:4]), series("running", [(t, t) for t, _ in up[:4]])),
        matrix(series("up", up), series("running", [(t, t) for t, _ in up])),
    )
    times = [[time for time, _ in values(got.scraped.get(TARGET, ()))] for got in rounds]
    assert times == [[0, 15, 30, 45], [], [60, 75, 90]]


def test_a_server_that_lags_loses_nothing() -> None:
    """Scrapes that appear after their time was asked about come with a later answer."""
    told = [series("up", [(t, 1) for t in (0, 15)]), series("running", [(0, 1), (15, 2)])]
    first, *_, last = ask(matrix(), matrix(), matrix(*told))
    assert first.scraped == {}
    assert values(last.scraped[TARGET]) == [(0, 1), (15, 2)]


def test_rounds_shorter_than_the_delay_lose_nothing() -> None:
    """Scrapes are read two seconds after they were made, however often they are asked for."""
    told = matrix(series("up", [(0, 1), (1, 1)]), series("running", [(0, 4), (1, 5)]))
    with Stub(reply(told)).serve() as stub:
        asked = PrometheusSource("main", stub.url, scrape_interval=15.0)
        ends = [NOW - 61 + 0.5 * i for i in range(12)]
        rounds = [
            asked.scrapes([TARGET], "", frozenset({"running"}), since, until).scraped.get(TARGET, ())
            for since, until in pairwise(ends)
        ]
    assert [values(scrapes) for scrapes in rounds if scrapes] == [[(0, 4)], [(1, 5)]]


def test_a_time_that_was_covered_otherwise_is_left_out() -> None:
    """After engines were scraped directly for a while, what the server kept of that time is not read."""
    told = [
        series("up", [(t, 1) for t in (0, 15, 30, 45)]),
        series("running", [(t, t) for t in (0, 15, 30, 45)]),
    ]
    with Stub(reply(matrix(*told))).serve() as stub:
        asked = PrometheusSource("main", stub.url, scrape_interval=15.0, settle=0.0)
        names = frozenset({"running"})
        first = asked.scrapes([TARGET], "", names, NOW - 61, NOW - 60)
        assert values(first.scraped[TARGET]) == [(0, 0)]
        later = asked.scrapes([TARGET], "", names, NOW - 35, NOW)
        assert values(later.scraped[TARGET]) == [(30, 30), (45, 45)]


def test_partial_answers_never_lower_a_count() -> None:
    """With warnings, a scrape that lacks series known before is refused; a whole one is taken."""
    known = [series("up", [(t, 1) for t in (0, 15, 65, 75)]), series("running", [(0, 4), (15, 4), (75, 5)])]
    tokens = [series("tokens_total", [(0, 7), (15, 9), (65, 20), (75, 22)], reason=r) for r in "ab"]
    warned = matrix(*known, *tokens, warnings=["store 10.0.0.9: connection refused"])
    first, second = ask(matrix(*known, *tokens), warned)
    assert codes(first) == []
    assert second.partial
    assert values(second.scraped[TARGET]) == [(65, "main told 2 of 3 series of this scrape"), (75, 5)]
    assert codes(second) == ["metrics_source_partial"]
    assert "store 10.0.0.9" in second.warnings[0]


def test_infos_are_no_warnings() -> None:
    """From version 3 on Prometheus comments on queries; only warnings say that data are missing."""
    (got,) = ask(matrix(series("up", [(0, 1)]), infos=["metric might not be a counter"]))
    assert not got.partial
    assert codes(got) == []


def test_a_partial_mark_without_words() -> None:
    """A VictoriaMetrics cluster says ``isPartial`` and nothing else."""
    (got,) = ask(matrix(series("up", [(0, 1)]), isPartial=True))
    assert got.partial
    assert codes(got) == ["metrics_source_partial"]


def test_unknown_engines_are_named() -> None:
    """A selector that passes none of the engines is said, not read as engines at rest."""
    other = Target("chat", "b", "http://b:1/metrics")
    (got,) = ask(matrix(series("up", [(0, 1)])), targets=[TARGET, other])
    assert codes(got) == ["target_not_in_source"]
    assert got.findings[0].evidence["engines"] == ["b"]
    assert other not in got.scraped


def test_after_an_outage_a_bounded_past_is_read() -> None:
    """Twenty intervals at most: what is older is a hole, not a flood of samples."""
    with Stub(reply(matrix(series("up", [(0, 1)])))).serve() as stub:
        asked = PrometheusSource("main", stub.url, scrape_interval=15.0, settle=0.0)
        asked.scrapes([TARGET], "", frozenset({"running"}), NOW - 86400, NOW)
        assert stub.requests[0].form["query"].endswith("}[315000ms]")


def test_state_of_engines_that_are_gone_is_dropped() -> None:
    """What is kept per engine goes an hour after it was last told of."""
    with Stub(reply(matrix(series("up", [(0, 1)])))).serve() as stub:
        asked = PrometheusSource("main", stub.url, scrape_interval=15.0, settle=0.0)
        for i in range(200):
            target = Target("chat", f"e{i}", f"http://10.0.0.{i}:1/metrics")
            asked.scrapes([target], "", frozenset({"running"}), NOW + 60 * i - 15, NOW + 60 * i)
        assert len(asked._taken) < 80


def test_targets_are_those_that_were_scraped_lately() -> None:
    """Up or down, once each, without the replica's label."""
    told = matrix(
        series("up", [(0, 1)], replica="a"),
        series("up", [(0, 1)], replica="b"),
        series("up", [(0, 0)], instance="b:1", pod="b"),
    )
    with Stub(reply(told)).serve() as stub:
        asked = PrometheusSource("main", stub.url, scrape_interval=15.0)
        assert asked.targets('{job="vllm"}', NOW) == (
            {"instance": "a:1", "job": "vllm"},
            {"instance": "b:1", "job": "vllm", "pod": "b"},
        )
        assert stub.requests[0].form["query"] == '{__name__="up",job="vllm"}[300000ms]'


def test_promql_is_quoted() -> None:
    """Names and addresses stand for themselves in regular expressions, whatever they hold."""
    assert any_of(["a.b:1", 'c"d\\']) == r'"a\\.b:1|c\"d\\\\"'
    assert matchers('up{job="x",}') == matchers('{job="x"}') == matchers('job="x"') == 'job="x"'
    assert raw_samples({"a", "b"}, "", 1.5, ["h:1"]) == '{__name__=~"a|b",instance=~"h:1"}[1500ms]'
