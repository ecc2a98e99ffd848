"""A scraper whose list of engines changes while it runs: who stays is not disturbed, who is gone is forgotten at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from extproc.clock import LoopClock
from extproc.config import EnginesPolicy
from extproc.config.section import Seconds
from extproc.engines.scraper import Scraper
from tests.support.metrics_server import Manner, MetricsServer, ScrapeLog, metrics_server


def engines(*static: str, path: str = "/metrics", interval_s: float = 0.05) -> EnginesPolicy:
    return EnginesPolicy(static=static, metrics_path=path, scrape_interval_s=Seconds(interval_s))


@asynccontextmanager
async def scraping(policy: EnginesPolicy, **options: object) -> AsyncIterator[tuple[Scraper, ScrapeLog]]:
    log = ScrapeLog()
    clock = LoopClock(asyncio.get_running_loop())
    scraper = Scraper(policy, stale_after_s=1.0, observer=log, clock=clock, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(scraper.run())
    try:
        yield scraper, log
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def asked(server: MetricsServer) -> list[str]:
    return [what for _, what in server.asked]


async def test_engines_come_and_go_and_who_stays_keeps_its_sample() -> None:
    async with metrics_server() as a, metrics_server() as b, scraping(engines(a.engine)) as (scraper, log):
        await log.until(lambda: "ok" in log.of(a.engine))
        known = scraper.fleet().samples[a.engine]
        scraper.use(engines(a.engine, b.engine), stale_after_s=1.0)
        assert scraper.fleet().configured == (a.engine, b.engine), "at once, not after the next scrape"
        assert scraper.fleet().samples == {a.engine: known}
        await log.until(lambda: "ok" in log.of(b.engine), within_s=1.0)
        scraper.use(engines(b.engine), stale_after_s=1.0)
        assert list(scraper.fleet().samples) == [b.engine]
        await log.until(lambda: log.of(b.engine).count("ok") >= 3)
        seen = len(a.asked)
        await log.until(lambda: log.of(b.engine).count("ok") >= 6)
        assert len(a.asked) == seen, "who is gone is not asked any more"
        assert a.in_flight == 0


async def test_a_pool_without_engines_gets_its_first() -> None:
    async with metrics_server() as server, scraping(engines()) as (scraper, log):
        await asyncio.sleep(0)
        scraper.use(engines(server.engine), stale_after_s=1.0)
        await log.until(lambda: "ok" in log.of(server.engine), within_s=1.0)
        assert scraper.fleet().samples[server.engine].kv_usage == 0.5


async def test_an_engine_read_another_way_is_believed_until_it_has_been() -> None:
    async with metrics_server() as server, scraping(engines(server.engine)) as (scraper, log):
        await log.until(lambda: "ok" in log.of(server.engine))
        known = scraper.fleet().samples[server.engine]
        server.behave(Manner.NO_SLASH)
        scraper.use(engines(server.engine, path="/stats"), stale_after_s=1.0)
        assert scraper.fleet().samples == {server.engine: known}
        seen = len(log.results)

        def believed_and_read_anew() -> bool:
            sample = scraper.fleet().samples[server.engine]  # KeyError: not believed
            return len(log.results) > seen and sample is not known and "/stats" in asked(server)

        await log.until(believed_and_read_anew)


async def test_the_same_engines_again_start_nothing_anew() -> None:
    """The filtered page is found out about once per engine: asking for the full page would tell of a new beginning."""
    async with metrics_server(Manner.NO_SLASH) as server, scraping(engines(server.engine)) as (scraper, log):
        await log.until(lambda: "ok" in log.of(server.engine))
        for version in range(10):
            scraper.use(engines(server.engine, interval_s=0.05 + version / 1000), stale_after_s=1.0 + version)
            await asyncio.sleep(0)
        seen = len(log.results)
        await log.until(lambda: len(log.results) >= seen + 2)
    assert asked(server).count("filtered") == 1
    assert server.most_in_flight == 1


async def test_a_name_keeps_its_addresses_when_others_join() -> None:
    async with metrics_server() as server:
        name, held = f"engine.test:{server.port}", asyncio.Event()

        async def resolve(host: str, port: int) -> Sequence[str]:
            if host == "slow.test":
                await held.wait()
            return ["127.0.0.1"]

        async with scraping(engines(name), resolve=resolve) as (scraper, log):
            await log.until(lambda: "ok" in log.of(name))
            scraper.use(engines(name, "slow.test:1"), stale_after_s=1.0)
            seen = log.of(name).count("ok")
            await log.until(lambda: log.of(name).count("ok") >= seen + 2)
            assert log.of(name).count("unresolved") == 1, "before its name was resolved for the first time"
            assert log.of("slow.test:1") == ["unresolved"]
            scraper.use(engines(name), stale_after_s=1.0)
            held.set()
            await log.until(lambda: log.of(name).count("ok") >= seen + 4)
            assert scraper.fleet().configured == (name,)


async def test_a_scraper_that_was_stopped_scrapes_again_when_it_is_run_again() -> None:
    """A replica that took the lead for the second time never looked at an engine, and all of them counted as silent."""
    async with metrics_server() as server:
        log = ScrapeLog()
        clock = LoopClock(asyncio.get_running_loop())
        scraper = Scraper(engines(server.engine), stale_after_s=1.0, observer=log, clock=clock)
        for times in range(1, 4):
            task = asyncio.create_task(scraper.run())
            await log.until(lambda seen=2 * times: log.of(server.engine).count("ok") >= seen, within_s=2.0)  # type: ignore[misc]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert scraper.fleet().samples, "what it knew it shows until it is too old"
