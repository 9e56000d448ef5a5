"""The settings: one frozen model per section, defaults in one place, unknown keys refused."""

import ipaddress
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from tuner._exceptions import InputError
from tuner.config import kinds
from tuner.config.checks import combine, cross_checks
from tuner.config.pools import Pool
from tuner.config.section import Section
from tuner.config.structure import settable

ENV_PREFIX = "TUNER_"
ENV_DELIMITER = "__"


def variable_loc(name: str) -> tuple[str, ...] | None:
    """Return what a ``TUNER_*`` variable sets by its name, or ``None`` for other variables."""
    if not name.upper().startswith(ENV_PREFIX):
        return None
    return tuple(name[len(ENV_PREFIX) :].lower().split(ENV_DELIMITER))


class Store(Section):
    """Where fits, schedules and events are kept."""

    url: kinds.StoreUrl = Field(
        default="sqlite:////var/lib/tuner/tuner.db",
        description="SQLite file or PostgreSQL database, without a password.",
    )
    password_file: kinds.File | None = Field(default=None, description="File with the database password.")


class Scrape(Section):
    """How engines are read."""

    interval: kinds.Duration = Field(default=15.0, gt=0, description="Time between two scrapes of an engine.")
    timeout: kinds.Duration = Field(
        default=5.0, gt=0, description="Longest wait for one scrape; shorter than the interval."
    )
    concurrency: kinds.Whole = Field(
        default=64, ge=1, le=1024, description="Engines that are scraped at the same time."
    )
    max_body: kinds.Size = Field(
        default=kinds.LARGEST_BODY,
        ge=kinds.SMALLEST_BODY,
        le=kinds.LARGEST_BODY,
        description="Longest metrics page taken from an engine, unpacked; 55 KiB is usual.",
    )


class Discovery(Section):
    """How engines are looked for."""

    interval: kinds.Duration = Field(
        default=60.0, ge=1, description="Time between two looks for engines that came or went."
    )


class Cycle(Section):
    """How often fits and plans are made."""

    interval: kinds.Duration = Field(
        default=60.0, gt=0, description="Time between two cycles; at least the scrape interval."
    )
    half_life: kinds.Duration = Field(
        default=6 * 3600.0,
        gt=0,
        description="Age at which a window counts half for acceptance; at least the cycle interval.",
    )
    max_windows: kinds.Whole = Field(
        default=4000, ge=100, le=1_000_000, description="Windows of a pool that a cycle looks at."
    )


class PrometheusSource(Section):
    """A Prometheus server, or what speaks its API."""

    name: kinds.Name = Field(description="Name that pools refer to.")
    url: kinds.HttpUrl = Field(description="Address, with the path prefix if there is one.")
    bearer_token_file: kinds.File | None = Field(default=None, description="File with a bearer token.")
    username: kinds.UserName | None = Field(
        default=None, description="User of basic authentication; needs `password_file`."
    )
    password_file: kinds.File | None = Field(
        default=None, description="File with the password of basic authentication."
    )
    ca_file: kinds.File | None = Field(
        default=None, description="File with the authority that signed its certificate."
    )
    headers: kinds.Headers = Field(default={}, description="Further headers, such as a tenant; no secrets.")
    timeout: kinds.Duration = Field(
        default=5.0, gt=0, description="Longest wait for one answer; shorter than the scrape interval."
    )
    replica_labels: kinds.LabelNames = Field(
        default=("prometheus_replica", "replica"),
        description="Labels that tell the replicas of one Prometheus apart; their series are taken once.",
    )


class Sources(Section):
    """Servers that hold metrics of engines."""

    prometheus: tuple[PrometheusSource, ...] = Field(default=(), description="Prometheus servers by name.")


class Alerting(Section):
    """Where alerts go."""

    delivery: Literal["rules", "alertmanager"] = Field(
        default="rules",
        description="Rules on the tuner's metrics, or posts to Alertmanager; never both for one finding.",
    )
    alertmanagers: kinds.HttpUrls = Field(default=(), description="Every instance, never a load balancer.")


class Report(Section):
    """The weekly report."""

    weekday: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] = Field(
        default="monday", description="Day it is written."
    )
    at: kinds.Clock = Field(default="07:00", description="Time of day it is written.")
    timezone: kinds.TimeZone = Field(
        default="UTC", description="Time zone of `at` and of the days in the report."
    )
    directory: kinds.File = Field(
        default=Path("/var/lib/tuner/reports"), description="Folder it is written to."
    )


class Retention(Section):
    """How long evidence is kept, by resolution; each at least as long as the one before."""

    raw: kinds.Duration = Field(default=6 * 3600.0, gt=0, description="Single windows.")
    minute: kinds.Duration = Field(default=48 * 3600.0, gt=0, description="Sums by minute.")
    hour: kinds.Duration = Field(default=400 * 86_400.0, gt=0, description="Sums by hour.")


class Web(Section):
    """The tuner's own HTTP server."""

    listen: kinds.Listen = Field(default="127.0.0.1:9477", description="Address to listen on.")
    config_file: kinds.File | None = Field(
        default=None,
        description="Prometheus web configuration file with TLS and users; required off loopback.",
    )
    token_file: kinds.File | None = Field(
        default=None,
        description="File with the bearer token of calls that change anything; without it they are refused.",
    )
    enable_lifecycle: kinds.Switch = Field(
        default=False, description="Whether `POST /-/reload` reads the settings anew; needs `token_file`."
    )

    @property
    def loopback(self) -> bool:
        """Whether only this host can connect."""
        host, _ = kinds.split_listen(self.listen)
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


class Config(BaseSettings):
    """All settings: the file, overridden by ``TUNER_*`` variables."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        env_ignore_empty=False,
    )

    store: Store = Field(default=Store(), description="Where fits, schedules and events are kept.")
    scrape: Scrape = Field(default=Scrape(), description="How engines are read.")
    discovery: Discovery = Field(default=Discovery(), description="How engines are looked for.")
    cycle: Cycle = Field(default=Cycle(), description="How often fits and plans are made.")
    sources: Sources = Field(default=Sources(), description="Servers that hold metrics of engines.")
    pools: tuple[Pool, ...] = Field(description="The pools, at least one.")
    alerting: Alerting = Field(default=Alerting(), description="Where alerts go.")
    report: Report = Field(default=Report(), description="The weekly report.")
    retention: Retention = Field(default=Retention(), description="How long evidence is kept.")
    web: Web = Field(default=Web(), description="The tuner's own HTTP server.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let variables that name a setting override what the file says; no other source is read."""
        assert isinstance(env_settings, EnvSettingsSource)
        env_settings.env_vars = {
            name: value
            for name, value in env_settings.env_vars.items()
            if (loc := variable_loc(name)) is not None and settable(cls, loc)
        }
        return env_settings, init_settings

    @model_validator(mode="wrap")
    @classmethod
    def _check_across(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:  # noqa: ANN401
        """Report faults across sections together with those inside them."""
        return combine(cls.__name__, cross_checks(data), lambda: handler(data))

    def pool(self, name: str | None = None) -> Pool:
        """Return the pool called ``name``, or the only one.

        Raises:
            InputError: there is no such pool, or several and no name.
        """
        names = ", ".join(pool.name for pool in self.pools)
        if name is None:
            if len(self.pools) > 1:
                raise InputError(f"the configuration has several pools: name one of {names}")
            return self.pools[0]
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise InputError(f"the configuration has no pool {name!r}: name one of {names}")
