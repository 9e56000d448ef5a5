"""The engines of a pool: what each source says, taken together, and names that outlive addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.observe.discovery.helper import Server, codes, directory, engines, groups, write
from tuner._exceptions import InputError
from tuner.fleet import Target
from tuner.observe.discovery import Directory, EnginesSpec, find_shared
from tuner.observe.outcomes import SourceError

if TYPE_CHECKING:
    from pathlib import Path


def test_static_engines() -> None:
    """Addresses of the settings get the metrics path, and are named by what is left without it."""
    roster = directory(EnginesSpec("p", static=("http://10.0.0.5:8000", "https://gw/e/1"))).refresh(0.0)

    assert roster.targets == (
        Target("p", "10.0.0.5:8000", "http://10.0.0.5:8000/metrics"),
        Target("p", "gw/e/1", "https://gw/e/1/metrics"),
    )
    assert roster.findings == ()
    assert roster.sources_up == {"static": True}


def test_labels_as_prometheus_reads_them(tmp_path: Path) -> None:
    """Scheme, metrics path and parameters come from labels; those with two underscores are not kept."""
    labels = {
        "address": "10.0.0.5:8000", "__scheme__": "https", "__metrics_path__": "engines/1/metrics",
        "__param_b": "2 3", "__param_a": "1", "__meta_zone": "z", "pod": "a", "node": "n",
    }  # fmt: skip
    write(tmp_path / "a.json", groups(labels))
    spec = EnginesSpec(
        "p",
        file_sd=(str(tmp_path / "*.json"),),
        admin_url_template="http://{{ host }}:9/{{ __meta_zone }}{{ path }}",
    )

    (target,) = directory(spec).refresh(0.0).targets

    assert target == Target(
        "p",
        "10.0.0.5:8000/engines/1?a=1&b=2+3",
        "https://10.0.0.5:8000/engines/1/metrics?a=1&b=2+3",
        "http://10.0.0.5:9/z/engines/1",
        "file_sd",
        (("node", "n"), ("pod", "a")),
    )


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"address": "http://h:8000"}, "is not host:port"),
        ({"address": "u:hunter2@h:8000"}, "is not host:port"),
        ({"address": "h:8000/x"}, "is not host:port"),
        ({"address": ""}, "is not host:port"),
        ({"address": "h:99999"}, "is not a URL"),
        ({"address": "h", "__scheme__": "file"}, "is not an HTTP address"),
        ({"address": "h", "__scheme__": "gopher"}, "is not an HTTP address"),
        ({"address": "169.254.169.254"}, "is link-local"),
        ({"address": "[fe80::1]:80"}, "is link-local"),
        ({"address": "[::ffff:169.254.169.254]:80"}, "is link-local"),
        ({"address": "[64:ff9b::a9fe:a9fe]:80"}, "is link-local"),
        ({"address": "[2002:a9fe:a9fe::1]:80"}, "is link-local"),
        ({"address": "[::a9fe:a9fe]:80"}, "is link-local"),
        ({"address": "0xa9fea9fe:80"}, "is link-local"),
        ({"address": "2852039166"}, "is link-local"),
        ({"address": "169.254.43518"}, "is link-local"),
        ({"address": "0251.0376.0251.0376"}, "is link-local"),
        ({"address": "169.254.169.254.:80"}, "is link-local"),
    ],
)
def test_targets_that_are_not_asked(tmp_path: Path, labels: dict[str, str], words: str) -> None:
    """Only HTTP and HTTPS addresses of hosts are taken; what is left out is told, and its neighbours stay."""
    path = write(tmp_path / "a.json", groups("10.0.0.1:8000", labels))

    roster = directory(EnginesSpec("p", file_sd=(str(path),))).refresh(0.0)

    assert list(engines(roster)) == ["10.0.0.1:8000"]
    assert codes(roster) == ["target_invalid"]
    assert words in roster.findings[0].message


@pytest.mark.parametrize("odd", ["a\nb", "\x1b[2J", "x" * 1025], ids=["newline", "control", "long"])
def test_a_label_that_cannot_be_kept_is_left_out(tmp_path: Path, odd: str) -> None:
    """An annotation with a manifest costs that label; the engines, and what else they say, stay."""
    labels = {"address": "10.0.0.1:1", "pod": "a", "__meta_last_applied": odd, "note": odd, odd: "x"}
    path = write(tmp_path / "a.json", groups(labels, {"address": "10.0.0.2:1", "pod": "b"}))

    roster = directory(EnginesSpec("p", file_sd=(str(path),), identity_labels=("pod",))).refresh(0.0)

    assert list(engines(roster)) == ["a", "b"]
    assert roster.targets[0].labels == (("pod", "a"),)
    assert codes(roster) == []


@pytest.mark.parametrize("name", ["pod", "__param_x", "__metrics_path__", "__scheme__"])
def test_a_target_whose_name_cannot_be_told_is_left_out(tmp_path: Path, name: str) -> None:
    """A label that names an engine or is a part of its address costs that engine, not its neighbours."""
    labels = {"address": "10.0.0.1:1", "pod": "a"} | {name: "x\ny"}
    path = write(tmp_path / "a.json", groups(labels, {"address": "10.0.0.2:1", "pod": "b"}))

    roster = directory(EnginesSpec("p", file_sd=(str(path),), identity_labels=("pod",))).refresh(0.0)

    assert list(engines(roster)) == ["b"]
    assert codes(roster) == ["target_invalid"]
    assert f"a label {name!r} over 1024 characters or with control characters" in roster.findings[0].message


def test_an_admin_address_is_not_link_local(tmp_path: Path) -> None:
    """The token is sent to it: a label cannot lead there, in no spelling."""
    path = write(tmp_path / "a.json", groups({"address": "10.0.0.1:8000", "ip": "2852039166"}))
    spec = EnginesSpec("p", file_sd=(str(path),), admin_url_template="http://{{ labels.ip }}:9")

    roster = directory(spec).refresh(0.0)

    assert [target.admin_url for target in roster.targets] == [""]
    assert codes(roster) == ["admin_url_invalid"]
    assert "is link-local" in roster.findings[0].message


def test_a_path_cannot_leave_its_place(tmp_path: Path) -> None:
    """What a label says of the path is quoted, so it adds no query and no second line."""
    path = write(tmp_path / "a.json", groups({"address": "h:1", "__metrics_path__": "/a?x=1#y z"}))
    (target,) = directory(EnginesSpec("p", file_sd=(str(path),))).refresh(0.0).targets
    assert target.url == "http://h:1/a%3Fx=1%23y%20z"


def test_a_pod_that_moves_stays_the_engine_it_was(tmp_path: Path) -> None:
    """With identity labels a rolling deploy changes addresses and no names."""
    path = tmp_path / "a.json"
    spec = EnginesSpec("p", file_sd=(str(path),), identity_labels=("ns", "pod"))
    book = directory(spec)
    write(path, groups(*({"address": f"10.0.0.{i}:1", "ns": "x", "pod": f"e-{i}"} for i in range(3))))
    before = book.refresh(0.0)

    write(path, groups(*({"address": f"10.0.9.{i}:1", "ns": "x", "pod": f"e-{i}"} for i in range(3))))
    after = book.refresh(1.0)

    assert list(engines(before)) == list(engines(after)) == ["x/e-0", "x/e-1", "x/e-2"]
    assert engines(after)["x/e-1"] == "http://10.0.9.1:1/metrics"
    assert after.findings == ()


def test_old_and_new_address_of_a_pod_side_by_side(tmp_path: Path) -> None:
    """While both are listed the known one is read; once it is gone, the other one; order plays no part."""
    path = tmp_path / "a.json"
    book = directory(EnginesSpec("p", file_sd=(str(path),), identity_labels=("pod",)))
    old, new = {"address": "10.0.0.9:1", "pod": "e"}, {"address": "10.0.0.1:1", "pod": "e"}
    write(path, groups(old))
    book.refresh(0.0)

    for both in ((new, old), (old, new)):
        write(path, groups(*both))
        roster = book.refresh(1.0)
        assert engines(roster) == {"e": "http://10.0.0.9:1/metrics"}
        assert codes(roster) == ["engine_identity_shared"]

    write(path, groups(new))
    roster = book.refresh(2.0)
    assert engines(roster) == {"e": "http://10.0.0.1:1/metrics"}
    assert roster.findings == ()


def test_without_the_label_the_address_names_an_engine(tmp_path: Path) -> None:
    """An engine that lacks an identity label is named by its address, with a finding; static ones without."""
    path = write(tmp_path / "a.json", groups({"address": "h:1", "pod": "a"}, {"address": "h:2"}))
    spec = EnginesSpec("p", static=("http://s",), file_sd=(str(path),), identity_labels=("pod",))

    roster = directory(spec).refresh(0.0)

    assert list(engines(roster)) == ["a", "h:2", "s"]
    assert codes(roster) == ["engine_identity_missing"]
    assert roster.findings[0].evidence == {"count": 1, "examples": ["h:2"]}


def test_scale_up_and_down_touch_no_other_engine(tmp_path: Path) -> None:
    """Engines that come and go leave the targets of the others as they were."""
    path = tmp_path / "a.json"
    book = directory(EnginesSpec("p", file_sd=(str(path),)))
    write(path, groups("h:1", "h:2"))
    before = book.refresh(0.0).targets
    write(path, groups("h:3", "h:2", "h:1", "h:4"))
    more = book.refresh(1.0)
    write(path, groups("h:2"))
    less = book.refresh(2.0)

    assert set(before) < set(more.targets)
    assert less.targets == (before[1],)
    assert more.findings == less.findings == ()


def test_one_engine_of_several_origins_is_one(tmp_path: Path) -> None:
    """An address that two sources name is one target: of the first, unless only the other knows its name."""
    path = write(tmp_path / "a.json", groups({"address": "H:80", "pod": "a"}, {"address": "h:2", "pod": "b"}))
    server = Server(({"instance": "h:2", "pod": "b"}, {"instance": "h:3", "pod": "c"}))
    spec = EnginesSpec("p", static=("http://h",), file_sd=(str(path),), prometheus=server)

    plain = directory(spec).refresh(0.0)
    named = directory(replace(spec, identity_labels=("pod",))).refresh(0.0)

    assert [(t.engine, t.origin) for t in plain.targets] == [
        ("h", "static"), ("h:2", "file_sd"), ("h:3", "prometheus:main"),
    ]  # fmt: skip
    assert [(t.engine, t.origin) for t in named.targets] == [
        ("a", "file_sd"), ("b", "file_sd"), ("c", "prometheus:main"),
    ]  # fmt: skip
    assert codes(plain) == codes(named) == ["target_duplicated"]
    assert plain.findings[0].severity == "info"
    assert plain.findings[0].evidence["count"] == 2


def test_engines_that_a_prometheus_server_scrapes() -> None:
    """The server is asked with the selector and the time; its labels are those of the targets."""
    server = Server(({"instance": "10.0.0.1:8000", "job": "vllm"},))
    book = directory(EnginesSpec("p", prometheus=server, selector='job="vllm"'))

    roster = book.refresh(7.0)

    assert server.asked == [('job="vllm"', 7.0)]
    assert roster.targets == (
        Target(
            "p", "10.0.0.1:8000", "http://10.0.0.1:8000/metrics", "", "prometheus:main",
            (("instance", "10.0.0.1:8000"), ("job", "vllm")),
        ),
    )  # fmt: skip


def test_engines_behind_one_address_of_a_prometheus_server() -> None:
    """The server tells no paths: identity labels tell engines at one address apart."""
    server = Server(tuple({"instance": "gw:80", "engine": f"e{i}"} for i in range(3)))

    apart = directory(EnginesSpec("p", prometheus=server, identity_labels=("engine",))).refresh(0.0)
    together = directory(EnginesSpec("p", prometheus=server)).refresh(0.0)

    assert list(engines(apart)) == ["e0", "e1", "e2"]
    assert apart.findings == ()
    assert list(engines(together)) == ["gw:80"]
    assert codes(together) == ["target_duplicated"]


def test_instances_that_are_no_addresses() -> None:
    """Where instance was relabelled to a name, identity labels make it a target of the server."""
    server = Server(({"instance": "chat/1", "engine": "e1"},))

    named = directory(EnginesSpec("p", prometheus=server, identity_labels=("engine",))).refresh(0.0)
    unnamed = directory(EnginesSpec("p", prometheus=server)).refresh(0.0)

    assert engines(named) == {"e1": "http://chat%2F1/metrics"}
    assert codes(unnamed) == ["target_invalid", "pool_empty"]


def test_an_error_empties_no_pool_and_an_empty_answer_does() -> None:
    """A server that fails counts with what it said last; one that says that there is nothing is believed."""
    server = Server(({"instance": "h:1"},))
    book = directory(EnginesSpec("p", prometheus=server))
    assert codes(book.refresh(0.0)) == []

    server.said = SourceError("HTTP 503", retryable=True)
    failed = book.refresh(1.0)
    assert list(engines(failed)) == ["h:1"]
    assert failed.sources_up == {"prometheus:main": False}
    assert codes(failed) == ["discovery_failed"]
    assert "1 target it named before stay" in failed.findings[0].message
    assert failed.findings[0].subject == {"pool": "p", "source": "prometheus:main"}

    server.said = ()
    emptied = book.refresh(2.0)
    assert emptied.targets == ()
    assert emptied.sources_up == {"prometheus:main": True}
    assert codes(emptied) == ["pool_empty"]


def test_a_source_that_never_answered_is_no_empty_pool() -> None:
    """Nothing is known then, and only the failure is told."""
    server = Server(SourceError("no answer", retryable=True))
    assert codes(directory(EnginesSpec("p", prometheus=server)).refresh(0.0)) == ["discovery_failed"]


def test_a_pool_without_any_way_to_find_engines() -> None:
    """A pool for replays has no engines and nothing to say."""
    assert directory(EnginesSpec("p")).refresh(0.0).findings == ()


def test_an_engine_without_admin_address_is_still_read(tmp_path: Path) -> None:
    """Where the template gives nothing for one engine, that engine has no admin address, and a finding."""
    path = write(tmp_path / "a.json", groups({"address": "h:1", "pod": "a"}, {"address": "h:2"}))
    spec = EnginesSpec("p", file_sd=(str(path),), admin_url_template="http://{{ labels.pod }}:9")

    roster = directory(spec).refresh(0.0)

    assert [target.admin_url for target in roster.targets] == ["http://a:9", ""]
    assert codes(roster) == ["admin_url_invalid"]


def test_a_template_that_cannot_be_used_is_refused_at_once() -> None:
    """A directory is not made with a template that could never give an address."""
    with pytest.raises(InputError, match=r"admin\.url_template has an unknown placeholder"):
        Directory(EnginesSpec("p", admin_url_template="http://{{ 1 + 1 }}"), httpx2.Client())


def test_pools_that_share_engines() -> None:
    """An engine in two pools is told: its evidence would count twice."""
    a = directory(EnginesSpec("a", static=("http://h:1", "http://h:2"))).refresh(0.0)
    b = directory(EnginesSpec("b", static=("http://H:2/", "http://h:3"))).refresh(0.0)

    (finding,) = find_shared({"a": a, "b": b})

    assert finding.code == "engine_in_two_pools"
    assert finding.subject == {"pool": "b", "other_pool": "a"}
    assert finding.evidence == {"engines": ["h:2"], "count": 1}
    assert find_shared({"a": a}) == ()
