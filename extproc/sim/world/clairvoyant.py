"""Constant limits in the hands of one who knows all lengths and sees all engines: what requests come to, with nothing else
between. The same engine model, requests and targets as in a `World`; no service, no loop, no estimate.

A request is held with its prompt and its whole answer from its admission to its end. Priorities are strict, each first come,
first served: nobody passes who is smaller. Nobody goes to the engines who has waited too long to be served within target. It
goes to the engine with the fewest open.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

from extproc.sim.engine import EngineModel, EngineSpec, Refusal, SimRequest, StepResult
from extproc.sim.oracle import Limits
from extproc.sim.world.client import FRONT_S
from extproc.sim.world.record import Record
from extproc.sim.world.traffic import Arrival

_due, _open = attrgetter("due"), attrgetter("open")

PATIENCE_S = (0.8, 2.5, 9.0)
"""Longest wait for admission, by priority: what is left of the target is for the engine."""


class _Engine:
    """One model and its clock. `due`: when it has something to do; inf: nothing. `open`: sent here and not ended."""

    def __init__(self, spec: EngineSpec) -> None:
        self.due = math.inf
        self.open = 0
        self.records: dict[int, Record] = {}
        """By handle: admitted and not ended."""
        self.coming: deque[tuple[float, Record]] = deque()
        """On the way, with their times of entry."""
        self.line_tokens = 0
        """Prompts sent here that have no token yet."""
        self._model = EngineModel(spec, detailed=False)
        self._step: StepResult | None = None

    def send(self, now: float, record: Record) -> None:
        self.open += 1
        self.coming.append((now + FRONT_S, record))
        self.line_tokens += record.arrival.prompt_tokens
        if self._step is None:
            self.due = self.coming[0][0]

    def go_on(self) -> list[Record]:
        """At `due`: hands out the step that is done and begins the next. Returns whose answer is whole."""
        now, step = self.due, self._step
        ended: list[Record] = []
        if step is not None:
            for handle in step.first_tokens:
                record = self.records[handle]
                record.first_at = now
                self.line_tokens -= record.arrival.prompt_tokens
            for handle in step.finished:
                record = self.records.pop(handle)
                record.last_at = now
                ended.append(record)
        while self.coming and self.coming[0][0] <= now:
            at, record = self.coming.popleft()
            arrival = record.arrival
            entered = self._model.add(at, SimRequest(arrival.prompt_tokens, arrival.output_tokens))
            if isinstance(entered, Refusal):
                self.line_tokens -= arrival.prompt_tokens
                ended.append(record)
            else:
                self.records[entered] = record
        step = self._model.step(now)
        if step.duration_s:
            self._step, self.due = step, now + step.duration_s
        else:
            self._step, self.due = None, self.coming[0][0] if self.coming else math.inf
        self.open -= len(ended)
        return ended


class _Gate:
    """Who waits, and what is held, in front of a fleet of engines."""

    def __init__(self, fleet: Sequence[_Engine], limits: Limits, spec: EngineSpec) -> None:
        slots = spec.max_num_seqs * len(fleet)
        tokens = [limit * len(fleet) for limit in limits.kv_tokens]
        self._line_tokens = limits.line_s * spec.speed / spec.prefill_token_s
        self._fleet = fleet
        self._lines = [
            (deque[Record](), patience_s, limit, slots * limit / tokens[0])
            for patience_s, limit in zip(PATIENCE_S, tokens, strict=True)
        ]
        """By priority: who waits, how long at most, and the tokens and slots that it may bring the fleet to."""
        self._tokens = self._held = 0

    def wait(self, record: Record) -> None:
        self._lines[record.arrival.priority][0].append(record)

    def ended(self, record: Record) -> None:
        self._tokens -= _tokens(record.arrival)
        self._held -= 1

    def let_in(self, now: float) -> None:
        """Whoever's turn it is. Nobody passes who is more important, or was there before."""
        for line, patience_s, tokens, slots in self._lines:
            while line:
                record = line[0]
                if now - record.sent_at <= patience_s:
                    engine = min(self._fleet, key=_open)
                    wanted = self._tokens + _tokens(record.arrival)
                    stands = (
                        engine.line_tokens and engine.line_tokens + record.arrival.prompt_tokens > self._line_tokens
                    )
                    if wanted > tokens or self._held + 1 > slots or stands:
                        return
                    self._tokens, self._held = wanted, self._held + 1
                    engine.send(now, record)
                line.popleft()


def serve(arrivals: Sequence[Arrival], limits: Limits, spec: EngineSpec, *, engines: int) -> list[Record]:
    """All that arrives, and when its first and last token came. `limits`: of each engine; slots as it has them, less for
    lower priorities in the same proportion."""
    fleet = [_Engine(spec) for _ in range(engines)]
    gate = _Gate(fleet, limits, spec)
    records = [Record(arrival, arrival.at_s) for arrival in arrivals]
    for next_one in chain(records, (None,)):
        until = math.inf if next_one is None else next_one.sent_at
        while (engine := min(fleet, key=_due)).due < until:
            now = engine.due
            for record in engine.go_on():
                gate.ended(record)
            gate.let_in(now)
        if next_one is not None:
            gate.wait(next_one)
            gate.let_in(until)
    return records


def _tokens(arrival: Arrival) -> int:
    return arrival.prompt_tokens + arrival.output_tokens
