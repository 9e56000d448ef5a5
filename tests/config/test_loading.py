"""Loading settings: what is accepted, and every fault with its file, line, field and remedy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tuner._exceptions import InputError
from tuner.config import Config, Guard, Pool, check_config, load_config, read_secret
from tuner.fleet import Schedule
from tuner.theory.roofline import crossover_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLE = Path(__file__).resolve().parents[2] / "tuner.example.yaml"


def test_example() -> None:
    """The example loads, and its values come out as written."""
    config = load_config(EXAMPLE)
    pool = config.pool()

    assert (config.scrape.interval, config.cycle.interval, config.retention.hour) == (
        15.0,
        60.0,
        400 * 86_400,
    )
    assert (pool.name, pool.mode, pool.engine) == ("chat-70b", "observe", "vllm")
    assert (pool.allowed_draft_lens, pool.max_batch) == ((0, 1, 2, 3, 4), 256)
    assert (pool.guard.min_gain, pool.guard.tie, pool.guard.dwell) == (0.03, 0.01, 600.0)
    assert pool.slo.tpot == pytest.approx(0.04)
    assert pool.drafter is not None
    assert (pool.drafter.method, pool.drafter.params) == ("eagle3", 1e9)
    assert pool.hardware is not None
    assert pool.model is not None
    assert round(crossover_tokens(pool.hardware.roofline(), pool.model.roofline())) == 295


def test_smallest_settings(write: Callable[[str | bytes], Path], fine: str) -> None:
    """A pool with a name and an engine is enough; the rest has defaults."""
    config = load_config(write(fine))

    assert config.pool("chat").guard == Guard()
    assert config.web.loopback
    assert config.pool().allowed_draft_lens is None


def test_custom_hardware_and_suffixes(write: Callable[[str | bytes], Path], fine: str) -> None:
    """Hardware may be given by its rates, counts with suffixes."""
    text = fine + "    hardware: {flops: 989T, bandwidth: 3.35e12}\n    model: {params: 70B}\n"
    pool = load_config(write(text)).pool()

    assert pool.hardware is not None
    assert (pool.hardware.flops, pool.hardware.bandwidth) == (989e12, 3.35e12)
    assert pool.model is not None
    assert pool.model.roofline().active_params == 70e9


def test_settings_are_frozen(write: Callable[[str | bytes], Path], fine: str) -> None:
    """Nothing can be changed after loading."""
    config = load_config(write(fine))

    with pytest.raises(ValidationError, match="frozen"):
        config.pool().guard.tie = 0.5


SOURCE = "sources: {prometheus: [{name: main, url: 'http://p'"
FAULTS = [
    ("scrape: {interval: 15}\n", "scrape.interval has no unit: write 15s, or m, h, d, ms"),
    (
        "scrape: {interval: soon}\n",
        "scrape.interval 'soon' is not a duration: write whole numbers with units",
    ),
    ("scrape: {interval: 0s}\n", "scrape.interval is out of range: give a value above 0"),
    ("scrape: {timeout: 15s}\n", "scrape.timeout is not shorter than scrape.interval"),
    ("cycle: {interval: 5s}\n", "cycle.interval is shorter than scrape.interval"),
    ("cycel: {}\n", "cycel is not a known key: did you mean cycle?"),
    ("_env_file: /etc/passwd\n", "_env_file is not a known key"),
    ("store: /var/lib\n", "store is not a section: write key: value lines under it"),
    ("store: {url: 'postgresql://db/t'}\n", "store.url names no driver: write postgresql+psycopg://"),
    ("store: {url: 'mysql://db/t'}\n", "store.url is no database the tuner knows"),
    ("store: {url: 'sqlite://'}\n", "store.url is no database the tuner knows"),
    ("store: {url: 'sqlite:///:memory:'}\n", "store.url is no plain file"),
    ("store: {url: 'sqlite:////a.db?mode=ro'}\n", "store.url is no plain file"),
    ("store: {url: 'sqlite:///file:a?uri=true'}\n", "store.url is no plain file"),
    ("store: {url: 'postgresql+psycopg://u:hunter2@db/t'}\n", "store.url holds a password: put it in a file"),
    ("store: {url: 'postgresql+psycopg://db/t?password=hunter2'}\n", "store.url holds a password"),
    ("store: {password: hunter2}\n", "store.password is not a known key: did you mean password_file?"),
    (
        "sources: {prometheus: [{name: a, url: 'http://u:hunter2@h'}]}\n",
        "prometheus[0].url holds a user name",
    ),
    ("sources: {prometheus: [{name: a, url: 'http://hunter2@h'}]}\n", "prometheus[0].url holds a user name"),
    ("sources: {prometheus: [{name: a, url: 'http://h?token=hunter2'}]}\n", "url has a query or fragment"),
    ("sources: {prometheus: [{name: a, url: 'http://h:99999'}]}\n", "url is not a URL"),
    ("sources: {prometheus: [{name: a, url: 'h:9090'}]}\n", "url is not an HTTP address"),
    ("sources: {prometheus: [{name: a}]}\n", "sources.prometheus[0].url is missing: add it"),
    (
        "sources: {prometheus: [{name: a, url: 'http://h', headers: {Authorization: Bearer hunter2}}]}\n",
        "sources.prometheus[0].headers sets Authorization, a secret",
    ),
    (
        "sources: {prometheus: [{name: a, url: 'http://h'}, {name: a, url: 'http://i'}]}\n",
        "sources.prometheus[1].name is also the name of sources.prometheus[0]",
    ),
    ("alerting: {delivery: alertmanager}\n", "alerting.delivery is alertmanager without an address"),
    (
        "alerting: {alertmanagers: ['http://am']}\n",
        "alerting.alertmanagers is never used under delivery rules",
    ),
    (
        "alerting: {delivery: email}\n",
        "alerting.delivery is not one of the choices: write 'rules' or 'alertmanager'",
    ),
    ("report: {at: '7:00'}\n", "report.at is not a time of day"),
    ("report: {at: '24:00'}\n", "report.at is not a time of day"),
    ("report: {timezone: Mars/Olympus}\n", "report.timezone is not a time zone"),
    ("report: {timezone: ../../etc/passwd}\n", "report.timezone is not a time zone"),
    ("report: {directory: ''}\n", "report.directory is not the path of a file"),
    ("retention: {raw: 50h}\n", "retention.minute is shorter than retention.raw"),
    ("scrape: {concurrency: 0}\n", "scrape.concurrency is out of range: give a value at least 1"),
    ("scrape: {max_body: 1MB}\n", "scrape.max_body is not a size: write bytes, or 512KiB, 16MiB"),
    ("scrape: {max_body: 1KiB}\n", "scrape.max_body is out of range: give a value at least 65536"),
    ("scrape: {max_body: 17MiB}\n", "scrape.max_body is out of range"),
    ("discovery: {interval: 10ms}\n", "discovery.interval is out of range: give a value at least 1"),
    ("cycle: {half_life: 30s}\n", "cycle.half_life is shorter than cycle.interval"),
    ("cycle: {max_windows: 3}\n", "cycle.max_windows is out of range: give a value at least 100"),
    (f"{SOURCE}, username: a}}]}}\n", "username has no password: name the file that holds it"),
    (f"{SOURCE}, password_file: /a}}]}}\n", "password_file is never used without username"),
    (
        f"{SOURCE}, username: a, password_file: /a, bearer_token_file: /b}}]}}\n",
        "username stands beside bearer_token_file: keep one of them",
    ),
    (f"{SOURCE}, username: 'a:hunter2', password_file: /a}}]}}\n", "username is not a user name"),
    (f"{SOURCE}, timeout: 15s}}]}}\n", "timeout is not shorter than scrape.interval"),
    (f"{SOURCE}, replica_labels: [a, a]}}]}}\n", "replica_labels lists the same label twice"),
    ("web: {enable_lifecycle: true}\n", "web.enable_lifecycle is on and no token is set"),
    ("web: {enable_lifecycle: yes}\n", "web.enable_lifecycle is neither true nor false"),
    ("web: {listen: '0.0.0.0:9477'}\n", "web.listen is open to other hosts without authentication"),
    ("web: {listen: ':9477'}\n", "web.listen is open to other hosts without authentication"),
    ("web: {listen: 127.0.0.1}\n", "web.listen is not an address to listen on"),
    ("web: {listen: '127.0.0.1:70000'}\n", "web.listen is not an address to listen on"),
]
POOL_FAULTS = [
    ("allowed_draft_lens: [0, 2, 1]", "allowed_draft_lens is not in rising order: write [0, 1, 2]"),
    ("allowed_draft_lens: [0, 1, 1]", "allowed_draft_lens lists a draft length twice"),
    ("allowed_draft_lens: [-1, 1]", "allowed_draft_lens has a draft length outside 0..1024"),
    ("allowed_draft_lens: []", "allowed_draft_lens is empty"),
    ("allowed_draft_lens: 4", "allowed_draft_lens is not a list: write it as [a, b]"),
    ("allowed_draft_lens: [1.5]", "allowed_draft_lens[0] is not a whole number"),
    ("max_batch: 0", "max_batch is out of range: give a value at least 1"),
    ("max_batch: true", "max_batch is true or false, not a number"),
    ("max_batch: many", "max_batch is not a whole number"),
    ("mode: off", "mode is not one of the choices: write 'observe', 'advise' or 'auto'"),
    ("mode: auto", "mode is auto without a way to push: add admin"),
    ("hardware: abacus", "hardware is no built-in sheet: use one of a100-sxm"),
    ("hardware: {flops: 989e12}", "hardware.bandwidth is missing"),
    ("hardware: {flops: -1, bandwidth: 1}", "hardware.flops is out of range"),
    ("hardware: {flops: .nan, bandwidth: 1}", "hardware.flops is"),
    ("model: {params: 1e9, active_params: 2e9}", "model.active_params exceeds params"),
    ("guard: {tie: 1%}", "guard.tie '1%' is not a number"),
    ("guard: {tie: 80}", "guard.tie is out of range: give a value at most 0.5"),
    ("guard: {lease: 90s}", "guard.lease is shorter than two cycles"),
    ("guard: {min_gian: 1}", "guard.min_gian is not a known key: did you mean min_gain?"),
    ("slo: {tpot: 40}", "slo.tpot has no unit: write 40s"),
    ("engines: {prometheus: {source: main, selector: up}}", "engines.prometheus.source is not defined"),
    ("engines: {static: [10.0.0.5:8000]}", "engines.static[0] is not an HTTP address"),
    ("engines: {static: ['http://a', 'http://a/']}", "engines.static lists the same address twice"),
    ("admin: {url_template: 'http://{{ pod }}'}", "admin.url_template has an unknown placeholder"),
    ("admin: {url_template: 'http://{{ 1 + 1 }}'}", "admin.url_template has an unknown placeholder"),
    ("admin: {url_template: 'http://{{ labels.a.b }}'}", "admin.url_template has an unknown placeholder"),
    ("admin: {url_template: 'http://{{ address'}", "admin.url_template has a placeholder that does not end"),
    ("admin: {url_template: 'http://{% if a %}'}", "admin.url_template has a placeholder that does not end"),
    ("admin: {url_template: 'http://u:hunter2@{{ host }}'}", "admin.url_template holds a user name or"),
    ("admin: {url_template: 'ftp://{{ host }}'}", "admin.url_template is not an HTTP address"),
    ("admin: {url_template: 'http://{{ host }}/?a=1'}", "admin.url_template has a query or fragment"),
    ("engines: {metrics_path: metrics}", "engines.metrics_path is not a path: write it as in /metrics"),
    ("engines: {metrics_path: '/m?x=1'}", "engines.metrics_path is not a path"),
    ("engines: {identity: [a-b]}", "engines.identity[0] is not a valid name"),
    ("engines: {identity: [pod, pod]}", "engines.identity lists the same label twice"),
    ("startup_schedule: [[2, 8, 1]]", "startup_schedule range [2, 8, 1] starts at 2, expected 1: ranges"),
    ("startup_schedule: [[1, 8]]", "startup_schedule range [1, 8] is not [first, last, draft_len]: write"),
    ("startup_schedule: [[1, 8, true]]", "startup_schedule range [1, 8, True] must hold whole numbers"),
    ("startup_schedule: []", "startup_schedule schedule is empty: give at least one range"),
    ("startup_schedule: 4", "startup_schedule is not a table: write [[1, 8, 4], [9, 64, 2]]"),
    ("gpu: {join: {pod: pod}}", "gpu names no source: add exporters or prometheus, or remove gpu"),
    ("gpu: {exporters: ['http://a']}", "gpu.join is missing: add it"),
    ("gpu: {exporters: ['http://a'], join: {}}", "gpu.join is empty: say which labels are equal"),
    ("gpu: {exporters: ['http://a'], join: {a-b: c}}", "gpu.join has a name that is no label"),
    (
        "gpu: {prometheus: {source: x, selector: up}, join: {a: b}}",
        "gpu.prometheus.source is not defined: add a source of that name under sources.prometheus",
    ),
    ("admin: {url_template: '{{ address }}'}", "admin.url_template is not an HTTP address"),
    ("routes: {label: 'a-b'}", "routes.label is not a valid name"),
    ("drafter: {params: 1e9}", "drafter.method is missing"),
]


@pytest.mark.parametrize(("text", "words"), FAULTS)
def test_faults(write: Callable[[str | bytes], Path], fine: str, text: str, words: str) -> None:
    """A fault names the file, its line, the field and the remedy, and repeats no secret."""
    path = write(fine + text)

    (fault,) = [fault for fault in check_config(path).faults if words in str(fault)]

    assert str(fault).startswith(f"{path}:4: ")
    assert "\n" not in str(fault)
    assert fault.remedy
    assert all("hunter2" not in str(each) for each in check_config(path).faults)


@pytest.mark.parametrize(("text", "words"), POOL_FAULTS)
def test_faults_of_a_pool(write: Callable[[str | bytes], Path], fine: str, text: str, words: str) -> None:
    """Faults inside a pool name the pool by its place and the line they stand on."""
    path = write(f"{fine}    {text}\n")

    (fault,) = check_config(path).faults

    assert f"{path}:4: pools[0].{words}" in str(fault)


def test_faults_of_missing_things(write: Callable[[str | bytes], Path]) -> None:
    """A missing pool list, an empty one, and a missing name are said where they are missing."""
    assert [str(f).split(":", 1)[1] for f in check_config(write("web: {}\n")).faults] == [
        "1: pools is missing: add it"
    ]
    assert "pools is empty" in str(check_config(write("pools: []\n")).faults[0])
    assert ":2: pools[0].name is missing" in str(check_config(write("pools:\n  - engine: vllm\n")).faults[0])


def test_fallback_is_for_samples_of_a_server(write: Callable[[str | bytes], Path], fine: str) -> None:
    """A fallback beside direct reading would never be used."""
    text = fine + "    engines: {prometheus: {source: main, selector: up, read: direct, fallback: true}}\n"

    (fault,) = check_config(write(f"{text}{SOURCE}}}]}}\n")).faults

    assert str(fault).endswith(
        ":4: pools[0].engines.prometheus.fallback is never used under read direct: "
        "remove it, or read from prometheus"
    )


def test_settings_of_the_daemon(write: Callable[[str | bytes], Path], fine: str) -> None:
    """Sizes, tables, label pairs and switches come out as values."""
    text = (
        fine
        + "    startup_schedule: [[9, 64, 2], [1, 8, 4]]\n"
        + "    engines: {identity: [namespace, pod], metrics_path: /m}\n"
        + "    gpu: {exporters: ['http://a:9400/metrics'], join: {pod: exported_pod}}\n"
        + "scrape: {max_body: 512KiB}\nweb: {enable_lifecycle: true, token_file: /a}\n"
    )
    config = load_config(write(text))
    pool = config.pool()

    assert pool.startup == Schedule.from_ranges([[1, 8, 4], [9, 64, 2]])
    assert pool.engines.identity == ("namespace", "pod")
    assert pool.gpu is not None
    assert pool.gpu.join == {"pod": "exported_pod"}
    assert config.scrape.max_body == 512 * 1024
    assert config.web.enable_lifecycle
    assert (config.scrape.concurrency, config.discovery.interval) == (64, 60.0)
    assert (config.cycle.half_life, config.cycle.max_windows) == (21_600.0, 4000)


@pytest.mark.parametrize("other", ["http://h:80/", "http://H", "http://h"])
def test_engine_in_two_pools(write: Callable[[str | bytes], Path], fine: str, other: str) -> None:
    """One engine in two pools would be pushed two schedules; spelling does not hide it."""
    first = "    engines: {static: ['http://h:80']}\n"
    second = f"  - {{name: b, engine: vllm, engines: {{static: ['{other}']}}}}\n"

    (fault,) = check_config(write(fine + first + second)).faults

    assert fault.field == "pools[1].engines.static[0]"
    assert fault.line == 5
    assert "is an engine of pools[0] too" in fault.problem


def test_all_faults_are_listed_in_order(write: Callable[[str | bytes], Path], fine: str) -> None:
    """Faults of the text, of single settings and across settings come together, by line."""
    text = (
        fine
        + "    max_batch: 0\n  - {name: chat, engine: vllm}\n"
        + "scrape: {interval: 15}\nwbe: {}\nalerting: {delivery: alertmanager}\n"
    )
    checked = check_config(write(text))

    assert checked.config is None
    assert [(fault.line, fault.field) for fault in checked.faults] == [
        (4, "pools[0].max_batch"),
        (5, "pools[1].name"),
        (6, "scrape.interval"),
        (7, "wbe"),
        (8, "alerting.delivery"),
    ]


def test_error_is_one_line_with_the_first_fault(write: Callable[[str | bytes], Path], fine: str) -> None:
    """Loading raises one line: the first fault, and where to see the others."""
    path = write(fine + "    max_batch: 0\nweb: {listen: 1}\n")

    with pytest.raises(InputError) as caught:
        load_config(path)

    assert str(caught.value) == (
        f"{path}:4: pools[0].max_batch is out of range: give a value at least 1 "
        f"(and 1 more, see `tuner check config {path}`)"
    )


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder, an impossible name and a file of megabytes are refused in one line."""
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1 << 20) + b"\n")

    for path, words in (
        (tmp_path / "none.yaml", "cannot be read"),
        (tmp_path, "is a folder"),
        (Path("a\0b"), "cannot be read"),
        (large, "is larger than"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            load_config(path)
        assert "\n" not in str(caught.value)


def test_pools_by_name(write: Callable[[str | bytes], Path], fine: str) -> None:
    """A pool is found by name; without a name only if it is the only one."""
    config = load_config(write(fine + "  - {name: tools, engine: vllm, max_batch: 8}\n"))

    assert config.pool("tools").max_batch == 8
    with pytest.raises(InputError, match="name one of chat, tools"):
        config.pool()
    with pytest.raises(InputError, match="no pool 'x': name one of chat, tools"):
        config.pool("x")


def test_built_in_code() -> None:
    """Settings built in code are checked across sections as those of a file are."""
    with pytest.raises(ValidationError, match="is also the name of"):
        Config(pools=(Pool(name="a", engine="vllm"), Pool(name="a", engine="vllm")))


def test_secrets_come_from_files(tmp_path: Path) -> None:
    """A secret file holds one line; its newline is dropped; anything else is refused without repeating it."""
    path = tmp_path / "token"
    path.write_text("hunter2\n")
    assert read_secret(path) == "hunter2"

    for content in (b"", b"\n", b"hunter2\nsecond\n", b"\xff\xfe", b"x" * (1 << 17)):
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_secret(path)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_secret(tmp_path / "none")


mutations = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(0, 30), st.binary(max_size=12)), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations)
def test_mutated_files_never_crash(
    write: Callable[[str | bytes], Path], edits: list[tuple[int, int, bytes]]
) -> None:
    """Whatever a file holds, the answer is settings or faults of one line each."""
    content = EXAMPLE.read_bytes()
    for start, length, replacement in edits:
        content = content[:start] + replacement + content[start + length :]

    checked = check_config(write(content))

    assert (checked.config is None) == bool(checked.faults)
    for fault in checked.faults:
        assert str(fault).count("\n") == 0
        assert all(dataclasses.asdict(fault)[key] for key in ("place", "problem", "remedy"))
