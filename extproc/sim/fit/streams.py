"""Closed loop against the engine model: a number of streams, each of which asks again when it has its answer. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, fields

from extproc.sim.engine import EngineModel, EngineSpec, Refusal, Scheduling, SimRequest, StepResult
from extproc.sim.fit import measured
from extproc.sim.fit.measured import Cell

REQUEST = SimRequest(measured.PROMPT_TOKENS, measured.OUTPUT_TOKENS)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """What the fit looks for. The first four are those of `EngineSpec`.

    `front_end_s`: the API front end's time per request, one after the other. `window_s`: how long the streams went on;
    what has no end by then is left out, as it is by a load generator that stops.
    """

    step_base_s: float
    prefill_token_s: float
    sequence_s: float
    context_token_s: float
    front_end_s: float
    window_s: float

    def values(self) -> list[float]:
        return [float(getattr(self, field.name)) for field in fields(self)]


def spec_of(coefficients: Coefficients, kv_tokens: int) -> EngineSpec:
    """The measured engine, with these coefficients."""
    return EngineSpec(
        kv_tokens=kv_tokens,
        block_size=measured.BLOCK_SIZE,
        max_num_seqs=measured.MAX_NUM_SEQS,
        chunk=measured.CHUNK,
        scheduling=Scheduling.PRIORITY,
        step_base_s=coefficients.step_base_s,
        prefill_token_s=coefficients.prefill_token_s,
        sequence_s=coefficients.sequence_s,
        context_token_s=coefficients.context_token_s,
    )


def run_streams(coefficients: Coefficients, streams: int, *, kv_tokens: int = measured.KV_TOKENS) -> Cell:
    """All streams begin at 0 s."""
    return _Streams(spec_of(coefficients, kv_tokens), coefficients, streams=streams).run()


def percentile(values: Iterable[tuple[float, int]], share: float) -> float:
    """The least value at or below which `share` (0..1) of all lie; each value comes with how often it was seen.

    Infinite when there is none: who never got a token waits for ever.
    """
    ordered = sorted(values)
    wanted = share * sum(times for _, times in ordered)
    for value, times in ordered:
        wanted -= times
        if wanted <= 0:
            return value
    return math.inf


class _Streams:
    def __init__(self, spec: EngineSpec, coefficients: Coefficients, *, streams: int) -> None:
        self._front_end_s, self._window_s = coefficients.front_end_s, coefficients.window_s
        self._engine = EngineModel(spec)
        self._front_free_at = 0.0
        self._coming: deque[tuple[float, float]] = deque()
        """In the front end: when each reaches the engine, and when it was sent."""
        self._sent_at: dict[int, float] = {}
        self._stalled: dict[int, float] = {}
        """Preempted sequences, and when they had their last token."""
        self._first: list[tuple[float, int]] = []
        self._gaps: list[tuple[float, int]] = []
        self._tokens = 0
        for _ in range(streams):
            self._send(0.0)

    def run(self) -> Cell:
        now = last = 0.0
        while now < self._window_s:
            self._arrive(now)
            step = self._engine.step(now)
            if not step.duration_s:
                now = self._coming[0][0]
                continue
            now += step.duration_s
            self._read(step, now=now, last=last)
            last = now
        return Cell(
            percentile(self._first, 0.50),
            percentile(self._first, 0.95),
            percentile(self._gaps, 0.50),
            percentile(self._gaps, 0.95),
            percentile(self._gaps, 1.0),
            self._tokens / now,
            self._engine.stats.preemptions,
        )

    def _send(self, now: float) -> None:
        self._front_free_at = max(self._front_free_at, now) + self._front_end_s
        self._coming.append((self._front_free_at, now))

    def _arrive(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            arrived_at, sent_at = self._coming.popleft()
            handle = self._engine.add(arrived_at, REQUEST)
            assert not isinstance(handle, Refusal), "each fits the engine"
            self._sent_at[handle] = sent_at

    def _read(self, step: StepResult, *, now: float, last: float) -> None:
        """`last`: the end of the step before, in which everything that decodes had its token before this one."""
        self._tokens += step.tokens
        self._first += [(now - self._sent_at[handle], 1) for handle in step.first_tokens]
        self._stalled.update(dict.fromkeys(step.preempted, last))
        back = self._back(step.finished) + self._back(step.streaming)
        self._gaps += [(now - self._stalled.pop(handle), 1) for handle in back]
        steady = step.tokens - len(step.first_tokens) - len(back)
        if steady:
            self._gaps.append((now - last, steady))
        for handle in step.finished:
            del self._sent_at[handle]
            self._send(now)

    def _back(self, handles: Iterable[int]) -> list[int]:
        return [handle for handle in handles if handle in self._stalled] if self._stalled else []
