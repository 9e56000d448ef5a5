"""The settings: one frozen model per section, defaults in one place, unknown keys refused."""

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ModelWrapValidatorHandler, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from tuner._exceptions import InputError
from tuner.config import kinds
from tuner.config.checks import combine, cross_checks
from tuner.config.structure import settable
from tuner.theory.hardware import SHEETS, hardware_sheet
from tuner.theory.roofline import Hardware, Model

ENV_PREFIX = "TUNER_"
ENV_DELIMITER = "__"


def variable_loc(name: str) -> tuple[str, ...] | None:
    """Return what a ``TUNER_*`` variable sets by its name, or ``None`` for other variables."""
    if not name.upper().startswith(ENV_PREFIX):
        return None
    return tuple(name[len(ENV_PREFIX) :].lower().split(ENV_DELIMITER))


class Section(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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


class Cycle(Section):
    """How often fits and plans are made."""

    interval: kinds.Duration = Field(
        default=60.0, gt=0, description="Time between two cycles; at least the scrape interval."
    )


class PrometheusSource(Section):
    """A Prometheus server, or what speaks its API."""

    name: kinds.Name = Field(description="Name that pools refer to.")
    url: kinds.HttpUrl = Field(description="Address, with the path prefix if there is one.")
    bearer_token_file: kinds.File | None = Field(default=None, description="File with a bearer token.")
    ca_file: kinds.File | None = Field(
        default=None, description="File with the authority that signed its certificate."
    )
    headers: kinds.Headers = Field(default={}, description="Further headers, such as a tenant; no secrets.")


class Sources(Section):
    """Servers that hold metrics of engines."""

    prometheus: tuple[PrometheusSource, ...] = Field(default=(), description="Prometheus servers by name.")


class Selector(Section):
    """Engines as a Prometheus server knows them."""

    source: kinds.Name = Field(description="Name of one of `sources.prometheus`.")
    selector: kinds.Text = Field(description='Label matchers, as in `job="vllm"`.')


class Engines(Section):
    """Where the engines of a pool are; several ways may be combined."""

    static: kinds.HttpUrls = Field(default=(), description="Addresses of engines.")
    file_sd: kinds.Globs = Field(default=(), description="Prometheus file_sd files.")
    http_sd: kinds.HttpUrl | None = Field(
        default=None, description="Prometheus HTTP service discovery endpoint."
    )
    prometheus: Selector | None = Field(default=None, description="Engines that a Prometheus server scrapes.")

    @property
    def named(self) -> bool:
        """Whether any way to find engines is given."""
        return bool(self.static or self.file_sd or self.http_sd or self.prometheus)


class Admin(Section):
    """How schedules are pushed to an engine."""

    url_template: kinds.UrlTemplate = Field(
        default="http://{{ address }}", description="Address of an engine's admin API."
    )
    token_file: kinds.File | None = Field(default=None, description="File with the engine's bearer token.")


class HardwareRates(Section):
    """What the device, or the tensor-parallel group, can do."""

    name: Annotated[str, Field(max_length=kinds.LARGEST_NAME), kinds.Kind("text")] = Field(
        default="", description="Label of the hardware in fingerprints; the sheet's name for built-in sheets."
    )
    flops: kinds.Count = Field(description="Dense FLOP/s in the math the model runs.")
    bandwidth: kinds.Count = Field(description="Memory bandwidth in bytes/s.")

    def roofline(self) -> Hardware:
        """Return the rates as the theory takes them."""
        return Hardware(self.flops, self.bandwidth)


def _sheet(value: object) -> object:
    """Replace the name of a built-in sheet by its rates."""
    if not isinstance(value, str):
        return value
    try:
        sheet = hardware_sheet(value)
    except InputError:
        raise ValueError(
            f"is no built-in sheet: use one of {', '.join(SHEETS)}, or give flops and bandwidth"
        ) from None
    return HardwareRates(name=sheet.name, flops=sheet.hardware.flops, bandwidth=sheet.hardware.bandwidth)


HardwareSetting = Annotated[HardwareRates, BeforeValidator(_sheet), kinds.Kind("name of a sheet, or section")]


class ModelSize(Section):
    """What one forward pass of the served model reads and multiplies."""

    params: kinds.Count = Field(description="Parameters in memory, all experts.")
    active_params: kinds.Count | None = Field(
        default=None, description="Parameters one token multiplies; all of them unless given."
    )
    weight_bits: kinds.Count = Field(
        default=16.0, description="Bits per weight: 16 for bf16, 8 for fp8, 4 for AWQ."
    )

    def roofline(self) -> Model:
        """Return the sizes as the theory takes them."""
        return Model(self.params, self.active_params or self.params, self.weight_bits)


class Drafter(Section):
    """What proposes the draft tokens."""

    method: kinds.Word = Field(
        description="The engine's name of the method: eagle3, mtp, draft_model, ngram, suffix, ..."
    )
    params: kinds.CountOrZero = Field(
        default=0.0, description="Parameters of the drafter; 0 for n-gram and suffix drafters."
    )


class Slo(Section):
    """Latencies the pool must keep."""

    tpot: kinds.Duration | None = Field(default=None, gt=0, description="Time per output token.")
    ttft: kinds.Duration | None = Field(default=None, gt=0, description="Time to first token.")


class Routes(Section):
    """How traffic is split into routes."""

    label: kinds.LabelName = Field(
        default="route", description="Label of the engine's series that names the route."
    )
    header: kinds.HeaderName = Field(default="X-Route", description="Request header that names the route.")
    max: kinds.Whole = Field(
        default=50, ge=1, le=1000, description="Routes told apart; the rest is counted as one."
    )


class Guard(Section):
    """What holds a schedule back."""

    min_gain: kinds.Ratio = Field(
        default=0.03, ge=0, lt=1, description="Gain over no speculation below which speculation stays off."
    )
    tie: kinds.Ratio = Field(
        default=0.01,
        ge=0,
        le=0.5,
        description="Difference between draft lengths taken for equal; the smaller one wins.",
    )
    dwell: kinds.Duration = Field(default=600.0, ge=0, description="Shortest time between two changes.")
    max_changes_per_day: kinds.Whole = Field(
        default=6, ge=0, le=1440, description="Changes of one pool in 24 hours; 0 forbids any."
    )
    engines_at_once: kinds.Whole = Field(
        default=1, ge=1, le=10_000, description="Engines changed at the same time."
    )
    lease: kinds.Duration = Field(
        default=300.0,
        gt=0,
        description="Time after which an engine undoes an unconfirmed push; at least two cycles.",
    )


class Explore(Section):
    """Probing of draft lengths that are not run."""

    budget: kinds.Ratio = Field(
        default=0.01, ge=0, le=0.2, description="Share of engine time spent on probes; 0 forbids them."
    )


class Pool(Section):
    """Engines that serve one model with one drafter on one kind of hardware."""

    name: kinds.Name = Field(description="Name of the pool in metrics, reports and commands.")
    mode: Literal["observe", "advise", "auto"] = Field(
        default="observe", description="Fit and alert; also propose a schedule; also push it."
    )
    engine: kinds.Word = Field(description="Kind of engine: vllm.")
    engines: Engines = Field(default=Engines(), description="Where the engines are.")
    admin: Admin | None = Field(default=None, description="How schedules are pushed; needed for `auto`.")
    hardware: HardwareSetting | None = Field(
        default=None, description="Name of a built-in sheet, or rates; the prior of the cost fit."
    )
    model: ModelSize | None = Field(
        default=None, description="Size of the served model; the prior of the cost fit."
    )
    drafter: Drafter | None = Field(default=None, description="What proposes the draft tokens.")
    allowed_draft_lens: kinds.DraftLens | None = Field(
        default=None, description="Draft lengths a schedule may use, rising; those measured unless given."
    )
    max_batch: kinds.Batch | None = Field(
        default=None, description="Largest batch of the engine; the largest one measured unless given."
    )
    objective: Literal["throughput", "latency"] = Field(
        default="throughput", description="What a schedule is chosen for."
    )
    slo: Slo = Field(default=Slo(), description="Latencies to keep.")
    routes: Routes = Field(default=Routes(), description="How traffic is split.")
    guard: Guard = Field(default=Guard(), description="What holds a schedule back.")
    explore: Explore = Field(default=Explore(), description="Probing of draft lengths that are not run.")


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
