"""What the engines say of themselves during a run: their /metrics every 250 ms, filtered, as any operator may read them.

Independent of the service's own scraper on purpose: the demo must not believe what it measures.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Self

import aiohttp

from extproc.sim.processes import StackError
from extproc.sim.results import EngineReadings

INTERVAL_S = 0.25
LEAST_SATURATED_S = 3.0
"""Below this a rate is mostly chance."""
_TIMEOUT_S = 1.0
_KV = "vllm:kv_cache_usage_perc"
_PREEMPTIONS = "vllm:num_preemptions_total"
_GENERATED = "vllm:generation_tokens_total"
_WAITING = "vllm:num_requests_waiting"
_NAMES = (_WAITING, _KV, _PREEMPTIONS, _GENERATED)
_SAMPLE = re.compile(r"^([\w:]+)(?:\{[^}]*\})? (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reading:
    """All engines at one moment (loop seconds): KV usage of each (0..1), counters summed over them.

    `saturated`: every engine had requests waiting, so none could do more.
    """

    at: float
    kv_usage: tuple[float, ...]
    preemptions: float
    generated_tokens: float
    saturated: bool


def parse_reading(at: float, texts: Sequence[str]) -> Reading:
    """From one metrics text per engine. KeyError where a series is missing, ValueError where
    it is no number."""
    engines = [{name: float(value) for name, value in _SAMPLE.findall(text)} for text in texts]
    return Reading(
        at=at,
        kv_usage=tuple(engine[_KV] for engine in engines),
        preemptions=sum(engine[_PREEMPTIONS] for engine in engines),
        generated_tokens=sum(engine[_GENERATED] for engine in engines),
        saturated=all(engine[_WAITING] > 0 for engine in engines),
    )


def summarise_readings(readings: Sequence[Reading], start: float, end: float) -> EngineReadings:
    """KV usage over [start, end] (loop seconds), mean over engines and time; preemptions over all readings.
    StackError where the engines never answered."""
    usages = [usage for reading in readings if start <= reading.at <= end for usage in reading.kv_usage]
    if not usages:
        raise StackError("the engines' metrics could not be read during the run")
    return EngineReadings(
        kv_usage_mean=sum(usages) / len(usages),
        kv_usage_max=max(usage for reading in readings for usage in reading.kv_usage),
        preemptions=round(readings[-1].preemptions - readings[0].preemptions),
    )


def saturated_tokens_per_s(readings: Sequence[Reading], start: float, end: float) -> float | None:
    """Output tokens per second of all engines together while all were saturated within [start, end] (loop seconds): what
    they can do. None where that was for less than `LEAST_SATURATED_S`."""
    inside = [reading for reading in readings if start <= reading.at <= end]
    pairs = [(a, b) for a, b in pairwise(inside) if a.saturated and b.saturated]
    seconds = sum(b.at - a.at for a, b in pairs)
    if seconds < LEAST_SATURATED_S:
        return None
    return sum(b.generated_tokens - a.generated_tokens for a, b in pairs) / seconds


class EngineWatch:
    """`async with EngineWatch(urls) as watch`: reads in the background; `readings` is what came so far, in order."""

    def __init__(self, engine_urls: Sequence[str]) -> None:
        query = "&".join(f"name[]={name}" for name in _NAMES)
        self._urls = [f"{url}/metrics/?{query}" for url in engine_urls]
        self.readings: list[Reading] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._read_for_ever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def _read_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as http:
            while True:
                due = loop.time() + INTERVAL_S
                try:
                    texts = await asyncio.gather(*(self._read(http, url) for url in self._urls))
                    self.readings.append(parse_reading(loop.time(), texts))
                except (aiohttp.ClientError, TimeoutError, KeyError, ValueError):
                    pass  # no answer, or not metrics: a gap; too many of them are an error at the end
                await asyncio.sleep(due - loop.time())

    async def _read(self, http: aiohttp.ClientSession, url: str) -> str:
        async with http.get(url) as response:
            return await response.text()
