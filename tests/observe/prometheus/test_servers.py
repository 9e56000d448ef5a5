"""The servers that other tests run against."""

from __future__ import annotations

import pytest

from tests.servers import PostgresServer, StartsMetricsServer, program


def test_a_database_of_its_own_for_each_test(postgres_url: str, postgres_server: PostgresServer) -> None:
    """Databases are empty and apart; data survive a restart, and a crash."""
    name = postgres_url.rsplit("/", 1)[1]
    postgres_server.execute("CREATE TABLE kept (n int)", name)
    postgres_server.restart()
    assert postgres_server.execute("SELECT * FROM kept", name) == []
    assert postgres_server.new_database() != postgres_url


@pytest.mark.parametrize("fixture", ["prometheus_server", "victoria_metrics"])
def test_metrics_servers_answer(fixture: str, request: pytest.FixtureRequest) -> None:
    """Both kinds start with a configuration and answer PromQL."""
    start: StartsMetricsServer = request.getfixturevalue(fixture)
    server = start([{"job_name": "nobody", "static_configs": [{"targets": ["127.0.0.1:1"]}]}])
    assert [sample["value"][1] for sample in server.query("vector(1)")] == ["1"]


def test_a_missing_program_skips_at_home_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI cannot pass by leaving tests out."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        program("no-such-program")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI=true"):
        program("no-such-program")
