"""One pool's section of the policy: its engines, what its users were promised, and who controls it."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct, field

from extproc.config.controllers import (
    ControllerName,
    FixedPolicy,
    FusedPolicy,
    LimitPolicy,
    PidPolicy,
    VegasPolicy,
    WatermarkPolicy,
)
from extproc.config.section import Seconds, Section
from extproc.model import Priority


class EngineKind(StrEnum):
    VLLM = "vllm"


class EnginesPolicy(Section, frozen=True):
    """The engines of one pool and how their metrics are read."""

    kind: EngineKind = EngineKind.VLLM
    """Whose metric names they speak. Default vllm."""
    static: tuple[str, ...] = ()
    """`host:port` of each engine, as in Envoy's cluster. Default none: no metrics, limits by `fixed` or `failure`."""
    scrape_interval_s: Seconds = field(name="scrapeInterval", default=Seconds(0.1))
    """How often each engine is asked. Default 100ms; 50ms to 5s."""
    metrics_path: str = "/metrics"
    """Where each engine is asked. Default /metrics."""


class TargetPolicy(Section, frozen=True):
    """What a priority's users were promised. Controller `fused` keeps to it; the others know no target."""

    ttft_s: Seconds | None = field(name="ttft", default=None)
    """Time to first token. Default none."""
    tpot_s: Seconds | None = field(name="tpot", default=None)
    """Time per output token after the first. Default none; in a pool controlled by `fused` 60ms."""


class OverridePolicy(Section, frozen=True):
    """For the night shift: replaces what the controllers say."""

    limit: LimitPolicy | None = None
    """The pool's limit, whatever the controllers say. Default: theirs."""
    rejection: float | None = None
    """Share of newcomers refused, 0..1, for every priority. Default: the controllers'."""


class PoolPolicy(Section, frozen=True):
    """The engines behind one Envoy cluster."""

    name: str = "default"
    """Its name in metrics, rules and the shared state. Default default; each once."""
    models: tuple[str, ...] = ()
    """Models it serves. Default: every model. A model that no pool serves goes to the first pool, whose engines say so."""
    engines: EnginesPolicy = EnginesPolicy()
    """The engines and how their metrics are read."""
    controllers: tuple[ControllerName, ...] = (ControllerName.FUSED,)
    """Limits take the minimum, rejections the maximum. Default [fused]; in a pool that has settings of `fixed` or `watermark`
    [fixed, watermark], so that a limit that is written down holds."""
    fixed: FixedPolicy = FixedPolicy()
    """Settings of the controller `fixed`."""
    watermark: WatermarkPolicy = WatermarkPolicy()
    """Settings of the controller `watermark`."""
    vegas: VegasPolicy = VegasPolicy()
    """Settings of the controller `vegas`."""
    pid: PidPolicy = PidPolicy()
    """Settings of the controller `pid`."""
    fused: FusedPolicy = FusedPolicy()
    """Settings of the controller `fused`."""
    targets: dict[Priority, TargetPolicy] = {}
    """Per priority, what its users were promised. Default none."""
    upstream_auth: str = "keep"
    """What engines see of a client's credentials: `keep`, `strip`, or `env:NAME` (the variable's value as the bearer token
    instead). Default keep."""
    override: OverridePolicy = OverridePolicy()
    """Replaces what the controllers say. Default nothing."""


def implied(section: type[Struct], given: Collection[str]) -> dict[str, object]:
    """What the fields that are given in a section say of others that are left out."""
    if section is PoolPolicy and "controllers" not in given and not {"fixed", "watermark"}.isdisjoint(given):
        return {"controllers": (ControllerName.FIXED, ControllerName.WATERMARK)}
    return {}
