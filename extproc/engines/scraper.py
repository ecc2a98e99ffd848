"""Scrapes the engines of one pool: one task per engine, the last sample of each kept with its age."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

import aiohttp
import structlog

from extproc.clock import Clock
from extproc.config import EngineKind, EnginesPolicy
from extproc.engines.discovery import REFRESH_S, Discovery, Resolve, Target, resolve
from extproc.engines.fetch import MetricsClient, Result, ScrapeFailed
from extproc.engines.kinds import ADAPTERS
from extproc.engines.sampler import Sampler
from extproc.fleet import EngineSample, Fleet
from extproc.ports import Observer

MAX_TIMEOUT_S = 0.5
"""A scrape is given up after this, or after half of `failure.staleAfter` if that is less. Not after the interval:
engines answer late just when they are overloaded, and a sample some 100 ms old is worth more than none. Nothing piles
up, because an engine's next scrape starts only when the last has ended."""

FULL_SHARE = 0.1
"""The full page costs a busy engine 10 to 27 ms of the event loop that serves its tokens: it is read so seldom that this
takes at most this share of the engine's time, judged by how long the last one took. A small page costs nothing."""

FULL_INTERVAL_S = 0.5
"""But no more seldom than this (or half of `failure.staleAfter`, or the interval if longer)."""

MAX_BACKOFF_S = 0.5
"""An engine that fails is probed at doubling intervals up to this (or the interval if longer), so that it is back
within it."""

LOG_EVERY_S = 60.0
"""At most one log line per engine in this time, however often its state changes."""

KEEPALIVE_S = 4.0
"""Engines close idle connections after 5 s: we close first."""

_GOLDEN = 0.618033988749895

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine as `/state` shows it. `age_s`: of its last sample, None if it never gave one. `result`: of the last
    scrape, None before the first. `filtered`: read by the cheap page."""

    engine: str
    address: str
    age_s: float | None
    result: Result | None
    last_error: str
    sample: EngineSample | None
    filtered: bool


def next_start(now: float, phase: float, interval_s: float) -> float:
    """The first moment after `now` on the grid phase + k x interval: no drift, and what was missed is skipped."""
    return phase + (math.floor((now - phase) / interval_s) + 1) * interval_s


def full_page_interval_s(interval_s: float, took_s: float, *, most_s: float) -> float:
    """How long after one full page the next is read: see `FULL_SHARE`. Never sooner than `interval_s`."""
    return max(interval_s, min(took_s / FULL_SHARE, most_s))


class LogLimit:
    """Whether a result is worth a log line: it differs from the one last logged (at first: ok), and that was long
    ago."""

    def __init__(self) -> None:
        self._result = Result.OK
        self._at = -math.inf

    def due(self, now: float, result: Result) -> bool:
        if result is self._result or now - self._at < LOG_EVERY_S:
            return False
        self._result, self._at = result, now
        return True


class _Engine:
    """What is kept of one engine. Written by its own task only. `read`: how it is read, by kind and path."""

    def __init__(self, target: Target, read: tuple[EngineKind, str], *, stale_after_s: float) -> None:
        self.target = target
        self.read = read
        self.sampler = Sampler(target.name, stale_after_s=stale_after_s)
        self.client: MetricsClient | None = None
        self.sample: EngineSample | None = None
        self.result: Result | None = None
        self.last_error = ""
        self.failures = 0
        self.took_s = 0.0
        self.log_limit = LogLimit()
        self.task: asyncio.Task[None] | None = None


class Scraper:
    """A `FleetSource` over HTTP for one pool. `fleet()` is an immutable snapshot, replaced at every sample."""

    def __init__(
        self,
        policy: EnginesPolicy,
        *,
        stale_after_s: float,
        observer: Observer,
        clock: Clock,
        resolve: Resolve = resolve,
    ) -> None:
        self._observer = observer
        self._clock = clock
        self._discovery = Discovery((), resolve)
        self._engines: dict[str, _Engine] = {}
        self._listeners: list[Callable[[], None]] = []
        self._started = 0
        self._changed = asyncio.Event()
        self.use(policy, stale_after_s=stale_after_s)

    def use(self, policy: EnginesPolicy, *, stale_after_s: float) -> None:
        """A new policy. `fleet` shows it at once, `run` follows. Engines that stay keep their samples and their turn."""
        self._policy = policy
        self._stale_after_s = stale_after_s
        self._adapter = ADAPTERS[policy.kind]()
        self._timeout_s = min(MAX_TIMEOUT_S, stale_after_s / 2)
        self._discovery.use(policy.static)
        for engine in self._engines.values():
            engine.sampler.stale_after_s = stale_after_s
        self._changed.set()
        self._publish()

    def fleet(self) -> Fleet:
        return self._fleet

    def on_sample(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def statuses(self) -> tuple[EngineStatus, ...]:
        """In the order of `fleet().configured`."""
        now = self._clock.now()
        return tuple(_status(target, self._engines.get(target.name), now) for target in self._discovery.targets)

    async def run(self) -> None:
        """Until cancelled, and again whenever it is called again. No engine's misbehaviour ends it."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
            auto_decompress=False,  # a page that comes compressed all the same must not unpack to more than its cap
            timeout=aiohttp.ClientTimeout(total=None),
        )
        try:
            async with session, asyncio.TaskGroup() as tasks:
                while True:
                    self._changed.clear()
                    self._reconcile(session, tasks)
                    if self._discovery.moves:
                        tasks.create_task(self._refresh(session, tasks), name="resolve")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(REFRESH_S if self._discovery.moves else None):
                            await self._changed.wait()
        finally:
            for engine in self._engines.values():  # whoever runs it again begins anew with those it knows
                engine.client = engine.task = None

    async def _refresh(self, session: aiohttp.ClientSession, tasks: asyncio.TaskGroup) -> None:
        """Beside the rest: a name that takes its time holds nobody up."""
        await self._discovery.refresh()
        self._reconcile(session, tasks)

    def _reconcile(self, session: aiohttp.ClientSession, tasks: asyncio.TaskGroup) -> None:
        """Starts what is new, has moved or is read otherwise; stops what is gone."""
        targets = {target.name: target for target in self._discovery.targets}
        read = self._policy.kind, self._policy.metrics_path
        left: dict[str, _Engine] = {}
        for name, engine in list(self._engines.items()):
            if targets.get(name) != engine.target or engine.read != read:
                if engine.task is not None:
                    engine.task.cancel()
                left[name] = self._engines.pop(name)
        for name, target in targets.items():
            known = self._engines.get(name)
            if known is not None and (known.task is not None or not target.address):
                continue
            engine = self._engines[name] = known or _Engine(target, read, stale_after_s=self._stale_after_s)
            if name in left and left[name].target == target:
                engine.sample = left[name].sample  # of the same engine, until it has been read the new way
            if not target.address:
                self._note(engine, Result.UNRESOLVED, took_s=0.0, error="the name has no address")
                continue
            engine.client = MetricsClient(session, target, path=self._policy.metrics_path, adapter=self._adapter)
            engine.task = tasks.create_task(self._keep_scraping(engine, engine.client), name=f"scrape {name}")
        self._publish()

    async def _keep_scraping(self, engine: _Engine, client: MetricsClient) -> None:
        interval_s = self._policy.scrape_interval_s
        # Engines take turns within an interval, whatever their number, and keep their turn.
        phase = self._clock.now() + interval_s * (self._started * _GOLDEN % 1.0)
        self._started += 1
        while True:
            await self._scrape(engine, client)
            now = self._clock.now()
            await asyncio.sleep(next_start(now, phase, self._interval_s(engine, client)) - now)

    def _interval_s(self, engine: _Engine, client: MetricsClient) -> float:
        interval_s = self._policy.scrape_interval_s
        if engine.failures:
            return max(interval_s, min(MAX_BACKOFF_S, interval_s * 2.0 ** min(engine.failures - 1, 10)))
        most_s = min(FULL_INTERVAL_S, self._stale_after_s / 2)
        return interval_s if client.filtered else full_page_interval_s(interval_s, engine.took_s, most_s=most_s)

    async def _scrape(self, engine: _Engine, client: MetricsClient) -> None:
        """One scrape. Its sample is dated by its start: the engine wrote the page at some time after that."""
        at = self._clock.now()
        try:
            async with asyncio.timeout(self._timeout_s):
                reading = await client.read(at)
        except TimeoutError:
            result, error = Result.TIMEOUT, f"no answer within {self._timeout_s:g} s"
        except ScrapeFailed as failure:
            result, error = failure.result, str(failure)
        else:
            engine.sample = engine.sampler.sample(at, reading)
            result, error = Result.OK, ""
        if result is not Result.OK and engine.failures == 0:
            client.forget()
        self._note(engine, result, took_s=self._clock.now() - at, error=error)
        if result is Result.OK:
            self._publish()

    def _note(self, engine: _Engine, result: Result, *, took_s: float, error: str) -> None:
        name = engine.target.name
        engine.took_s = took_s
        engine.result = result
        engine.last_error = error or engine.last_error
        engine.failures = 0 if result is Result.OK else engine.failures + 1
        self._observer.scraped(name, result.value, took_s=took_s)
        if not engine.log_limit.due(self._clock.now(), result):
            return
        if result is Result.OK:
            _log.info("engine answers again", engine=name)
        else:
            _log.warning("engine cannot be scraped", engine=name, result=result.value, error=error)

    def _publish(self) -> None:
        configured = tuple(target.name for target in self._discovery.targets)
        known = {name: self._engines[name].sample for name in configured if name in self._engines}
        samples = {name: sample for name, sample in known.items() if sample is not None}
        self._fleet = Fleet(configured, MappingProxyType(samples))
        for changed in self._listeners:
            changed()


def _status(target: Target, engine: _Engine | None, now: float) -> EngineStatus:
    sample = engine.sample if engine else None
    return EngineStatus(
        engine=target.name,
        address=target.address,
        age_s=now - sample.at if sample else None,
        result=engine.result if engine else None,
        last_error=engine.last_error if engine else "",
        sample=sample,
        filtered=engine.client.filtered if engine and engine.client else False,
    )
