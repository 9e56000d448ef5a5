"""The settings of a pool: its engines, what they run on, and what a schedule may do to them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tuner._exceptions import InputError
from tuner.config import kinds
from tuner.config.section import Section
from tuner.fleet import Schedule
from tuner.theory.hardware import SHEETS, hardware_sheet
from tuner.theory.roofline import Hardware, Model


class Selector(Section):
    """Series as a Prometheus server knows them."""

    source: kinds.Name = Field(description="Name of one of `sources.prometheus`.")
    selector: kinds.Text = Field(description='Label matchers, as in `job="vllm"`.')


class EngineSelector(Selector):
    """Engines as a Prometheus server knows them."""

    read: Literal["prometheus", "direct"] = Field(
        default="prometheus", description="Where samples come from: the server, or the engines themselves."
    )
    fallback: kinds.Switch = Field(
        default=False, description="Whether engines are scraped directly while the server is down."
    )


class Engines(Section):
    """Where the engines of a pool are; several ways may be combined."""

    static: kinds.HttpUrls = Field(default=(), description="Addresses of engines.")
    file_sd: kinds.Globs = Field(default=(), description="Prometheus file_sd files.")
    http_sd: kinds.HttpUrl | None = Field(
        default=None, description="Prometheus HTTP service discovery endpoint."
    )
    prometheus: EngineSelector | None = Field(
        default=None, description="Engines that a Prometheus server scrapes."
    )
    metrics_path: kinds.UrlPath = Field(
        default="/metrics", description="Path of an engine's metrics, unless discovery names another."
    )
    identity: kinds.LabelNames = Field(
        default=(),
        description="Labels of discovery that name an engine, as in `[pod]`; its address unless given.",
    )

    @property
    def named(self) -> bool:
        """Whether any way to find engines is given."""
        return bool(self.static or self.file_sd or self.http_sd or self.prometheus)


class Admin(Section):
    """How schedules are pushed to an engine."""

    url_template: kinds.UrlTemplate = Field(
        default="http://{{ address }}",
        description="Address of an engine's admin API, of its own address and labels.",
    )
    token_file: kinds.File | None = Field(default=None, description="File with the engine's bearer token.")


class Gpu(Section):
    """Where metrics of the GPUs are, to check the fits against."""

    exporters: kinds.HttpUrls = Field(
        default=(), description="Metrics pages of GPU exporters: DCGM's, or nvidia_gpu_exporter's."
    )
    prometheus: Selector | None = Field(
        default=None, description="GPU metrics that a Prometheus server scrapes."
    )
    join: kinds.LabelMap = Field(
        description="Label of an engine: label of a GPU with the same value, as in `{pod: exported_pod}`."
    )


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
    gpu: Gpu | None = Field(default=None, description="Where metrics of the GPUs are.")
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
    startup_schedule: kinds.Ranges | None = Field(
        default=None, description="Table that the engines are started with: `[[first, last, K], ...]`."
    )
    objective: Literal["throughput", "latency"] = Field(
        default="throughput", description="What a schedule is chosen for."
    )
    slo: Slo = Field(default=Slo(), description="Latencies to keep.")
    routes: Routes = Field(default=Routes(), description="How traffic is split.")
    guard: Guard = Field(default=Guard(), description="What holds a schedule back.")
    explore: Explore = Field(default=Explore(), description="Probing of draft lengths that are not run.")

    @property
    def startup(self) -> Schedule | None:
        """The table that the engines are started with, if it is known."""
        return None if self.startup_schedule is None else Schedule.from_ranges(self.startup_schedule)
