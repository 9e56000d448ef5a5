"""``TUNER_*`` variables: they override the file, and none is passed over in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tuner.config import check_config, load_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[[str | bytes], Path]


def test_variable_overrides_the_file(write: Write, fine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable wins over the file, leaves its neighbours alone, and is noted."""
    monkeypatch.setenv("TUNER_CYCLE__INTERVAL", "30s")
    monkeypatch.setenv("TUNER_SCRAPE__TIMEOUT", "2s")
    path = write(fine + "cycle: {interval: 5m}\nscrape: {interval: 10s}\n")

    config = load_config(path)

    assert (config.cycle.interval, config.scrape.interval, config.scrape.timeout) == (30.0, 10.0, 2.0)
    assert "cycle.interval is set by the variable TUNER_CYCLE__INTERVAL" in check_config(path).notes


def test_lists_are_given_as_json(write: Write, fine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list is replaced as a whole by JSON."""
    monkeypatch.setenv("TUNER_POOLS", '[{"name": "other", "engine": "vllm", "max_batch": 8}]')

    assert load_config(write(fine)).pool().name == "other"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TUNER_CYCLE__INTERVAL", "30", "TUNER_CYCLE__INTERVAL: cycle.interval '30' is not a duration"),
        (
            "TUNER_CYCLE__INTERVAL",
            "5s",
            "TUNER_CYCLE__INTERVAL: cycle.interval is shorter than scrape.interval",
        ),
        ("TUNER_CYCLE__INTREVAL", "30s", "TUNER_CYCLE__INTREVAL: is not a setting"),
        ("TUNER_CYCEL", "30s", "TUNER_CYCEL: is not a setting"),
        ("TUNER_POOLS__0__NAME", "x", "TUNER_POOLS__0__NAME: is not a setting"),
        ("TUNER_POOLS", "rubbish", "TUNER_POOLS: is not JSON"),
        ("TUNER_POOLS", '[{"name": "a"}]', "TUNER_POOLS: pools[0].engine is missing"),
        ("TUNER_STORE__URL", "", "TUNER_STORE__URL: store.url is no database the tuner knows"),
        (
            "TUNER_STORE__URL",
            "postgresql+psycopg://u:hunter2@h/d",
            "TUNER_STORE__URL: store.url holds a password",
        ),
        ("TUNER_WEB", '{"listen": 5}', "TUNER_WEB: web.listen is not text"),
    ],
)
def test_bad_variables(
    write: Write, fine: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    """A fault that a variable causes names the variable; one that sets nothing is a fault."""
    monkeypatch.setenv(name, value)

    faults = [str(fault) for fault in check_config(write(fine)).faults]

    assert len(faults) == 1
    assert words in faults[0]
    assert "hunter2" not in faults[0]


@pytest.mark.parametrize(
    "name",
    [
        "TUNER_SERVICE_HOST",
        "TUNER_PORT",
        "TUNER_PORT_9477_TCP_ADDR",
        "TUNER_WEB_SERVICE_PORT_HTTP",
        "TUNER_API_PORT",
    ],
)
def test_variables_of_kubernetes_are_passed_over(
    write: Write, fine: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What Kubernetes sets for a Service called tuner is no setting and no fault."""
    monkeypatch.setenv(name, "tcp://10.96.0.7:9477")

    assert check_config(write(fine)).faults == ()
