"""What no real engine has: forced gauges, faults and counters of the fake engine, for tests and demos."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, structs

from extproc.sim.engine_pacer import EnginePacer, Lateness
from extproc.sim.engine_stats import EngineStats, Gauges
from extproc.sim.openai_request import ApiError
from extproc.sim.vllm_metrics import VllmMetrics


class Change(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /engine/control`. What is not given stays as it is; null takes a force back."""

    kv_usage: Annotated[float, Meta(ge=0, le=1)] | UnsetType | None = UNSET
    """Shown as KV usage, whatever it is."""
    waiting: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    """Shown as waiting requests."""
    freeze_metrics: bool | UnsetType = UNSET
    """`/metrics` repeats what it would show at this moment."""
    fail: Literal["500", "hang"] | UnsetType | None = UNSET
    """New generation requests get a 500, or no answer until this is taken back. `/health` stays 200."""
    speed: Annotated[float, Meta(gt=0)] | UnsetType = UNSET


@dataclass(slots=True)
class HttpCounts:
    """Generation requests over HTTP since the start or the last reset; `open` is a state and outlives a reset."""

    open: int = 0
    """Inside now, whatever the answer will be."""
    max_open: int = 0
    total: int = 0
    completed: int = 0
    """Answered in full."""
    refused: int = 0
    """Answered with an error."""
    aborts: int = 0
    """The client left before its answer was complete."""
    resets: int = 0
    """Of those: after the headers of a stream had gone out."""

    @contextmanager
    def request(self) -> Iterator[None]:
        self.total += 1
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            yield
        finally:
            self.open -= 1

    def reset(self) -> None:
        self.total = self.completed = self.refused = self.aborts = self.resets = 0
        self.max_open = self.open


class EngineControl:
    """Stands between the engine and what it shows."""

    def __init__(self, pacer: EnginePacer, counts: HttpCounts, metrics: VllmMetrics) -> None:
        self._pacer = pacer
        self._counts = counts
        self._metrics = metrics
        self._kv_usage: float | None = None
        self._waiting: int | None = None
        self._frozen: tuple[Gauges, EngineStats] | None = None
        self._fail: str | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()

    def change(self, change: Change) -> None:
        if change.kv_usage is not UNSET:
            self._kv_usage = change.kv_usage
        if change.waiting is not UNSET:
            self._waiting = change.waiting
        if change.speed is not UNSET:
            self._pacer.model.speed = change.speed
        if change.fail is not UNSET:
            self._fail = change.fail
            (self._flowing.clear if change.fail == "hang" else self._flowing.set)()
        if change.freeze_metrics is not UNSET:
            stats = copy.deepcopy(self._pacer.model.stats)
            self._frozen = (self._gauges(), stats) if change.freeze_metrics else None

    async def fault(self) -> ApiError | None:
        """Waits while the engine hangs; then the error it is to answer with, if any."""
        await self._flowing.wait()
        if self._fail is None:
            return None
        return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError", "EngineCore encountered an issue.")

    def metrics_text(self, names: Collection[str] | None) -> str:
        gauges, stats = self._frozen or (self._gauges(), self._pacer.model.stats)
        return self._metrics.render(gauges, stats, names)

    def stats(self) -> dict[str, object]:
        """The body of `GET /engine/stats`: true values, never the forced ones."""
        pacer, stats = self._pacer, self._pacer.model.stats
        return {
            **asdict(self._counts),
            **structs.asdict(pacer.gauges),
            "preemptions": stats.preemptions,
            "prompt_tokens": stats.prompt_tokens,
            "generation_tokens": stats.generation_tokens,
            "recomputed_tokens": stats.recomputed_tokens,
            "sequences_aborted": stats.aborts,
            "steps": stats.steps,
            "busy_s": stats.busy_s,
            "speed": pacer.model.speed,
            "late": asdict(pacer.lateness),
        }

    def reset(self) -> None:
        """All requests given up, all counters to zero. Forces and faults stay."""
        self._pacer.cut_all()
        self._pacer.model.stats = EngineStats()
        self._pacer.lateness = Lateness()
        self._counts.reset()

    def _gauges(self) -> Gauges:
        gauges = self._pacer.gauges
        if self._kv_usage is not None:
            gauges = structs.replace(gauges, kv_usage=self._kv_usage)
        return gauges if self._waiting is None else structs.replace(gauges, waiting=self._waiting)
