"""The real dispatcher, controllers and engine model in a closed loop in virtual time, on an engine with a small cache.

Only the engine and its clients are simulated. Its gauges are read every 100 ms, as the scraper does it. The same seed
gives the same run.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from extproc.clock import LoopClock
from extproc.config import PoolPolicy, parse_policy
from extproc.control import ControlLoop
from extproc.controllers.compose import PoolController
from extproc.dispatcher import Dispatcher
from extproc.fleet import EngineSample, Fleet
from extproc.identity import Sender
from extproc.levels import Levels
from extproc.model import PRIORITIES, UNLIMITED, Cost, End, PoolState, Priority, Rejection
from extproc.sim.engine import EngineModel, EngineSpec, Refusal, SimRequest
from extproc.sim.engine_pacer import EnginePacer
from extproc.sim.virtual_time import run_virtual
from extproc.state.local import LocalLedger
from extproc.submission import Submission
from extproc.tickets import Ticket, Waiting
from tests.support.observing import Remembering

ENGINE = "engine:1"
ENGINE_SPEC = EngineSpec(kv_tokens=60_000, chunk=512)
"""A small cache beside a fast card: with prompts of 500 tokens it is what fills first."""
SCRAPE_S = 0.1
DEFAULT_OUTPUT_TOKENS = 256
TTFT_TARGETS_S = (1.0, 3.0, 10.0)
TPOT_TARGET_S = 0.06


@dataclass(frozen=True, slots=True)
class Intent:
    """One request as its client means to send it."""

    at_s: float
    priority: Priority
    prompt_tokens: int
    output_tokens: int


def poisson(
    rate_per_s: float,
    until_s: float,
    *,
    seed: int,
    from_s: float = 0.0,
    prompt_median: float = 500.0,
    output_median: float = 200.0,
    mix: tuple[float, float, float] = (0.15, 0.35, 0.50),
) -> list[Intent]:
    """Poisson arrivals; lengths lognormal with a sigma of 0.7, prompts cut at 8000 and answers at 1000 tokens."""
    random, at_s, intents = Random(seed), from_s, []
    while (at_s := at_s + random.expovariate(rate_per_s)) < until_s:
        prompt = min(8000, round(random.lognormvariate(math.log(prompt_median), 0.7)) + 1)
        output = min(1000, round(random.lognormvariate(math.log(output_median), 0.7)) + 2)
        intents.append(Intent(at_s, random.choices(PRIORITIES, mix)[0], prompt, output))
    return intents


@dataclass(slots=True)
class Result:
    """What became of one request. `first_at`, `last_at`: of its tokens."""

    intent: Intent
    first_at: float | None = None
    last_at: float | None = None

    @property
    def in_target(self) -> bool:
        """First token and pace as promised to its priority, counted from the client's sending."""
        if self.first_at is None or self.last_at is None:
            return False
        tpot_s = (self.last_at - self.first_at) / (self.intent.output_tokens - 1)
        return self.first_at - self.intent.at_s <= TTFT_TARGETS_S[self.intent.priority] and tpot_s <= TPOT_TARGET_S


@dataclass(slots=True)
class Run:
    """All that happened."""

    results: list[Result] = field(default_factory=list)
    preemptions: int = 0

    def missed(self, priority: Priority, from_s: float = 0.0) -> float:
        """Share of a priority's requests that were late, refused or failed."""
        sent = [one for one in self.results if one.intent.priority is priority and one.intent.at_s >= from_s]
        return sum(not one.in_target for one in sent) / len(sent)


class _Answer:
    """A request inside the engine: a `Receiver`."""

    __slots__ = ("_loop", "_ticket", "result")

    def __init__(self, loop: _Loop, ticket: Ticket, result: Result) -> None:
        self._loop, self._ticket, self.result = loop, ticket, result

    def token(self) -> None:
        if self.result.first_at is None:
            self.result.first_at = self._loop.clock.now()

    def last(self) -> None:
        self.token()
        self.result.last_at = self._loop.clock.now()
        self._ticket.end(End.COMPLETED)

    def cut(self) -> None:
        self._ticket.end(End.DROPPED)


class _Loop:
    def __init__(self, pool: PoolPolicy) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.pacer = EnginePacer(EngineModel(ENGINE_SPEC), self.clock)
        self._sample = EngineSample(ENGINE, at=0.0, kv_usage=0.0, kv_capacity_tokens=ENGINE_SPEC.kv_tokens, waiting=0)
        self._changed: Callable[[], None] = lambda: None
        policy = parse_policy("{}")
        self.ledger = LocalLedger(PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED)), self.clock)
        self.dispatcher = Dispatcher(
            pool,
            policy.queues,
            retry=policy.retry_after,
            longest_wait_s=299.0,
            ledger=self.ledger,
            clock=self.clock,
            observer=Remembering(),
            levels=Levels(b""),
            wall=self.clock.now,
            new_future=asyncio.get_running_loop().create_future,
        )
        self.control = ControlLoop(
            PoolController(pool, queues=policy.queues, failure=policy.failure),
            self,
            fleet=self,
            demand=self.dispatcher,
            clock=self.clock,
            initial=self.ledger.state,
        )
        self.run = Run()

    def publish(self, state: PoolState) -> None:
        self.ledger.publish(state)

    def fleet(self) -> Fleet:
        return Fleet(configured=(ENGINE,), samples={ENGINE: self._sample})

    def on_sample(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def scrape(self) -> None:
        """The mean output is over everything so far: these runs are short."""
        gauges, outputs = self.pacer.gauges, self.pacer.model.stats.request_generation_tokens
        self._sample = EngineSample(
            ENGINE,
            at=self.clock.now(),
            kv_usage=gauges.kv_usage,
            kv_capacity_tokens=ENGINE_SPEC.kv_tokens,
            running=gauges.running,
            waiting=gauges.waiting,
            mean_output_tokens=outputs.total / outputs.count if outputs.count else None,
        )
        self._changed()

    def send(self, intent: Intent) -> None:
        result = Result(intent)
        self.run.results.append(result)
        expected = self.dispatcher.state.expected_output_tokens or DEFAULT_OUTPUT_TOKENS
        submission = Submission(intent.priority, Cost(intent.prompt_tokens, round(expected)))
        sender = Sender(b"%d" % len(self.run.results), one_client=True)
        answer = self.dispatcher.refuse_on_arrival(submission, lambda: sender) or self.dispatcher.submit(submission)
        if isinstance(answer, Waiting):
            answer.verdict.add_done_callback(lambda verdict: self._verdict(verdict.result(), result))
        else:
            self._verdict(answer, result)

    def _verdict(self, verdict: Ticket | Rejection, result: Result) -> None:
        if isinstance(verdict, Rejection):
            return
        intent = result.intent
        request = SimRequest(intent.prompt_tokens, intent.output_tokens)
        entered = self.pacer.add([request], [_Answer(self, verdict, result)])
        assert not isinstance(entered, Refusal), "requests fit the engine"

    async def drive(self, intents: Sequence[Intent], settle_s: float) -> Run:
        """Sends everything in time, then lets what runs run out."""
        loop, end_s = asyncio.get_running_loop(), intents[-1].at_s + settle_s
        for intent in intents:
            loop.call_at(intent.at_s, self.send, intent)
        for tick in range(round(end_s / SCRAPE_S)):
            loop.call_at(tick * SCRAPE_S, self.scrape)
        control = asyncio.ensure_future(self.control.run())
        await asyncio.sleep(end_s)
        control.cancel()
        await asyncio.wait({control})
        self.run.preemptions = self.pacer.model.stats.preemptions
        self.pacer.stop()
        return self.run


def closed_loop(pool: PoolPolicy, intents: Sequence[Intent], *, settle_s: float = 20.0) -> Run:
    """One engine behind one dispatcher."""

    async def main() -> Run:
        return await _Loop(pool).drive(intents, settle_s)

    return run_virtual(main())
