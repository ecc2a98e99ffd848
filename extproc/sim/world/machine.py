"""One engine in virtual time: a model, stepped; its gauges as its metrics page shows them. No callback per token."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Protocol

from extproc.engines.sampler import Histogram, Reading
from extproc.sim.engine import EngineModel, EngineSpec, Gauges, Refusal, SimRequest, StepResult
from extproc.sim.engine_stats import Histogram as Counts

PAGE_KEPT_S = 6.0
"""How far back a page can show."""


class Receiver(Protocol):
    """Whose sequence it is."""

    def first(self, now: float) -> None:
        """Its first token."""

    def last(self, now: float) -> None:
        """Its last token."""

    def cut(self) -> None:
        """The engine is gone, and the sequence with it."""


class Machine:
    """One engine. `generated`: called after each step with the time and the tokens that came."""

    def __init__(
        self, name: str, spec: EngineSpec, loop: asyncio.AbstractEventLoop, *, generated: Callable[[float, int], None]
    ) -> None:
        self.name = name
        self.up = True
        self.open = 0
        """Requests that the router has sent here and that have not ended."""
        self.prefilled_tokens = self.generated_tokens = 0
        self._preemptions = 0
        self.metrics = Page(self)
        self._spec = spec
        self._loop = loop
        self._generated = generated
        self._receivers: dict[int, Receiver] = {}
        self._start()

    def _start(self) -> None:
        self.model = EngineModel(self._spec, detailed=False)
        self.gauges = Gauges()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def enter(self, request: SimRequest, receiver: Receiver) -> int | Refusal:
        now = self._loop.time()
        handle = self.model.add(now, request)
        if isinstance(handle, Refusal):
            return handle
        self._receivers[handle] = receiver
        if self._timer is None:
            self._due = now
            self._timer = self._loop.call_at(now, self._step)
        return handle

    def abort(self, handle: int) -> None:
        """The client left."""
        if self._receivers.pop(handle, None) is not None:
            self.model.abort(handle)

    def die(self) -> None:
        """The process is gone, and with it all it held and counted."""
        self.up = False
        if self._timer is not None:
            self._timer.cancel()
        receivers, self._receivers = self._receivers, {}
        self._preemptions += self.model.stats.preemptions
        self._start()
        for receiver in receivers.values():
            receiver.cut()

    def come_back(self) -> None:
        self.up = True

    def slow_down(self, factor: float) -> None:
        """`factor` times as slow as at first, from the next step on."""
        self.model.speed = self._spec.speed / factor

    @property
    def preemptions(self) -> int:
        return self._preemptions + self.model.stats.preemptions

    def _step(self) -> None:
        result = self.model.step(self._due)
        if not result.duration_s:
            self._timer = None
            self.gauges = self.model.gauges()
            return
        self._due += result.duration_s
        self._timer = self._loop.call_at(self._due, self._deliver, result)

    def _deliver(self, result: StepResult) -> None:
        now, receivers = self._due, self._receivers
        self.gauges = self.model.gauges()
        self.prefilled_tokens += result.prefilled_tokens
        self.generated_tokens += result.tokens
        self._generated(now, result.tokens)
        for handle in result.first_tokens:
            if handle in receivers:
                receivers[handle].first(now)
        for handle in result.finished:
            receiver = receivers.pop(handle, None)
            if receiver is not None:
                receiver.last(now)
        self._step()


class Page:
    """An engine's metrics page, and how it may lie. `frozen`: the content stands still; `delay_s`: it is that old;
    `silent`: no answer comes; `every_s`: none comes sooner than this after the last."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._kept: deque[tuple[float, Reading]] = deque()
        self.frozen = self.silent = False
        self.delay_s = self.every_s = 0.0
        self._read_at = -math.inf

    def read(self, now: float) -> Reading | None:
        """What a scrape that begins now brings; None: nothing."""
        if self.silent or not self._machine.up or now - self._read_at < self.every_s:
            return None
        self._read_at = now
        kept = self._kept
        if not (self.frozen and kept):
            kept.append((now, reading(self._machine)))
        while len(kept) > 1 and kept[0][0] < now - PAGE_KEPT_S:
            kept.popleft()
        if not self.delay_s:
            return kept[-1][1]
        return next((page for at, page in reversed(kept) if at <= now - self.delay_s), kept[0][1])


def reading(machine: Machine) -> Reading:
    """The page as the adapter of vLLM's metrics reads it."""
    stats, gauges, spec = machine.model.stats, machine.gauges, machine.model.spec
    return Reading(
        kv_usage=gauges.kv_usage,
        kv_capacity_tokens=spec.total_blocks * spec.block_size,
        running=gauges.running,
        waiting=gauges.waiting,
        preemptions=float(stats.preemptions),
        prompt_tokens=float(stats.prompt_tokens),
        generation_tokens=float(stats.generation_tokens),
        ttft=_cumulative(stats.first_token_s),
        tpot=_cumulative(stats.token_gap_s),
        output=_cumulative(stats.request_generation_tokens),
    )


def _cumulative(counts: Counts) -> Histogram:
    return Histogram(float(counts.count), counts.total, (*counts.bounds, math.inf), tuple(accumulate(counts.counts)))
