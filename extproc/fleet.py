"""What is known of a pool's engines at one moment. Values; how they are read is in `extproc.engines`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine's state at `at` (clock seconds). None is *missing*, never zero.

    `iteration_s`: mean time of an engine step over the last second; `*_per_s`: rates over the last seconds;
    `mean_output_tokens`: of requests finished in the last seconds.
    """

    engine: str
    at: float
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    iteration_s: float | None = None
    preemptions_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    mean_output_tokens: float | None = None
    ttft_mean_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_mean_s: float | None = None
    tpot_p95_s: float | None = None
    frozen: bool = False
    """Requests run, yet token counters have stood still for the staleness time: the content is old, whatever its age."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is known of a pool's engines at one moment: `configured` addresses and the latest sample of each that ever answered."""

    configured: tuple[str, ...] = ()
    samples: Mapping[str, EngineSample] = field(default_factory=lambda: MappingProxyType({}))

    def reporting(self, now: float, stale_after_s: float) -> tuple[EngineSample, ...]:
        """Samples young enough to be believed, in the order of `configured`."""
        known = [self.samples.get(engine) for engine in self.configured]
        return tuple([s for s in known if s is not None and not s.frozen and now - s.at <= stale_after_s])
