"""The scraper against a real HTTP server that serves recorded pages and misbehaves as engines do."""

from __future__ import annotations

import asyncio
import socket
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from extproc.clock import LoopClock
from extproc.config import ControllerName, EnginesPolicy, FailurePolicy, PoolPolicy
from extproc.config.schema import DEFAULT_QUEUES
from extproc.config.section import Seconds
from extproc.control import ControlLoop
from extproc.controllers.compose import PoolController
from extproc.engines import scraper as scraper_module
from extproc.engines.scraper import EngineStatus, Scraper
from extproc.model import UNLIMITED, Demand, Latency, PoolState
from tests.support.metrics_server import Manner, MetricsServer, ScrapeLog, metrics_server


class _Scraping:
    """A running scraper and what it reported."""

    def __init__(self, scraper: Scraper, log: ScrapeLog) -> None:
        self.scraper = scraper
        self.log = log
        self.until = log.until

    def status(self, engine: str) -> EngineStatus:
        return next(status for status in self.scraper.statuses() if status.engine == engine)


@asynccontextmanager
async def _scraping(*engines: str, interval_s: float = 0.05, **options: object) -> AsyncIterator[_Scraping]:
    log = ScrapeLog()
    scraper = Scraper(
        EnginesPolicy(static=engines, scrape_interval_s=Seconds(interval_s)),
        stale_after_s=1.0,
        observer=log,
        clock=LoopClock(asyncio.get_running_loop()),
        **options,  # type: ignore[arg-type]
    )
    task = asyncio.create_task(scraper.run())
    try:
        yield _Scraping(scraper, log)
        assert not task.done(), "the scraper must outlive whatever engines do"
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_reads_the_filtered_page() -> None:
    async with metrics_server() as server, _scraping(server.engine) as scraping:
        await scraping.until(lambda: scraping.log.of(server.engine).count("ok") >= 3)
        status = scraping.status(server.engine)
        sample = scraping.scraper.fleet().samples[server.engine]
    assert {what for _, what in server.asked} == {"filtered"}
    assert (sample.kv_usage, sample.running, sample.waiting, sample.kv_capacity_tokens) == (0.5, 4, 0, 4096)
    assert (status.filtered, status.result, status.last_error) == (True, "ok", "")
    assert status.age_s is not None
    assert 0 <= status.age_s < 1


@pytest.mark.parametrize("manner", [Manner.EMPTY_FILTERED, Manner.IGNORES_FILTER, Manner.NO_SLASH, Manner.REDIRECTS])
async def test_without_a_usable_filter_the_full_page_is_read(manner: Manner) -> None:
    async with metrics_server(manner) as server, _scraping(server.engine) as scraping:
        await scraping.until(lambda: len(scraping.log.results) >= 3)
        assert not scraping.status(server.engine).filtered
        assert scraping.scraper.fleet().samples[server.engine].kv_usage == 0.5
    assert set(scraping.log.of(server.engine)) == {"ok"}
    assert len([what for _, what in server.asked if what == "filtered"]) == 1


@pytest.mark.parametrize(
    ("manner", "result"),
    [
        (Manner.NONSENSE, "bad-metrics"),
        (Manner.ERROR, "http-error"),
        (Manner.HUGE, "too-large"),
        (Manner.REDIRECTS_AWAY, "http-error"),
        (Manner.LOOPS, "http-error"),
    ],
)
async def test_an_engine_that_misbehaves_is_counted_keeps_its_last_sample_and_returns(
    manner: Manner, result: str
) -> None:
    async with metrics_server() as server, _scraping(server.engine) as scraping:
        log = scraping.log.of
        await scraping.until(lambda: "ok" in log(server.engine))
        server.behave(manner)
        await scraping.until(lambda: log(server.engine).count(result) >= 3)
        status = scraping.status(server.engine)
        assert status.result == result
        assert status.last_error
        assert status.sample is not None
        server.behave(Manner.FILTERS)
        seen = len(log(server.engine))
        await scraping.until(lambda: "ok" in log(server.engine)[seen:], within_s=1.0)
    assert set(log(server.engine)) == {"ok", result}


async def test_an_engine_that_hangs_is_given_up_in_time_and_never_asked_twice_at_once() -> None:
    async with metrics_server() as server, _scraping(server.engine) as scraping:
        await scraping.until(lambda: "ok" in scraping.log.of(server.engine))
        server.behave(Manner.SILENT)
        await scraping.until(lambda: scraping.log.of(server.engine).count("timeout") >= 2)
        age_s = scraping.status(server.engine).age_s
        assert age_s is not None
        assert age_s > 0.5
        server.behave(Manner.FILTERS)
        await scraping.until(lambda: scraping.log.of(server.engine)[-1] == "ok", within_s=1.0)
    assert server.most_in_flight == 1


async def test_an_engine_that_hangs_does_not_delay_the_others() -> None:
    async with (
        metrics_server(Manner.SILENT) as hung,
        metrics_server() as well,
        _scraping(hung.engine, well.engine) as scraping,
    ):
        await scraping.until(lambda: "timeout" in scraping.log.of(hung.engine))
        assert scraping.log.of(well.engine).count("ok") >= 5
        assert scraping.scraper.fleet().configured == (hung.engine, well.engine)
        assert set(scraping.scraper.fleet().samples) == {well.engine}
        assert scraping.status(hung.engine).age_s is None


async def test_an_engine_that_is_down_is_back_within_a_second() -> None:
    async with metrics_server() as server, _scraping(server.engine) as scraping:
        await scraping.until(lambda: "ok" in scraping.log.of(server.engine))
        await server.stop()
        await scraping.until(lambda: scraping.log.of(server.engine).count("refused") >= 4)
        await server.start()
        await scraping.until(lambda: scraping.log.of(server.engine)[-1] == "ok", within_s=1.0)


async def test_an_engine_that_never_answered_is_listed_all_the_same() -> None:
    async with metrics_server() as server:
        pass
    async with _scraping(server.engine) as scraping:
        assert scraping.scraper.fleet().configured == (server.engine,)
        assert scraping.status(server.engine).result is None
        await scraping.until(lambda: "refused" in scraping.log.of(server.engine))
        assert scraping.scraper.fleet().samples == {}
        assert scraping.status(server.engine).result == "refused"


async def test_a_restarted_engine_begins_new_rates() -> None:
    async with metrics_server() as server, _scraping(server.engine) as scraping:
        fleet = scraping.scraper.fleet

        def rate() -> float | None:
            sample = fleet().samples.get(server.engine)
            return sample.generation_tokens_per_s if sample else None

        await scraping.until(lambda: (rate() or 0) > 0)
        server.tokens = 0
        await scraping.until(lambda: rate() is None)
        await scraping.until(lambda: (rate() or 0) > 0)


async def test_a_connection_closed_while_idle_is_replaced_at_once() -> None:
    """An engine that closes a kept connection when the next request arrives on it: no failure is seen."""
    answered = 0
    page = MetricsServer().page().encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        await reader.readuntil(b"\r\n\r\n")
        answered += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page)
        await writer.drain()
        await reader.read(1)  # the next request's first byte
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        engine = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with _scraping(engine) as scraping:
            await scraping.until(lambda: len(scraping.log.results) >= 3)
    assert set(scraping.log.of(engine)) == {"ok"}
    assert answered >= 3


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "http-error"),
        (b"", "refused"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nvllm:num", "http-error"),
        (b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://[::bad\r\nContent-Length: 0\r\n\r\n", "http-error"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", "bad-metrics"),
    ],
)
async def test_what_is_no_engine_at_all_is_counted(reply: bytes, result: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        engine = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with _scraping(engine) as scraping:
            await scraping.until(lambda: len(scraping.log.results) >= 2)
    assert set(scraping.log.of(engine)) == {result}


async def test_one_log_line_per_change_and_minute() -> None:
    with capture_logs() as lines:
        async with metrics_server() as server, _scraping(server.engine) as scraping:
            log = scraping.log.of
            for manner in (Manner.ERROR, Manner.NONSENSE, Manner.FILTERS):
                server.behave(manner)
                seen = len(log(server.engine))
                await scraping.until(lambda seen=seen: len(log(server.engine)) >= seen + 3)  # type: ignore[misc]
    assert [(line["log_level"], line["engine"], line["result"]) for line in lines] == [
        ("warning", server.engine, "http-error")
    ]


async def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        async with metrics_server(host="::1") as server, _scraping(f"[::1]:{server.port}") as scraping:
            await scraping.until(lambda: "ok" in scraping.log.of(f"[::1]:{server.port}"))
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")


async def test_engines_of_a_name_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraper_module, "REFRESH_S", 0.05)
    known: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        assert host == "engines.test"
        if not known:
            raise socket.gaierror("unknown")
        return known

    async with metrics_server(host="0.0.0.0") as server:
        port = server.port
        name, first, second = (f"{host}:{port}" for host in ("engines.test", "127.0.0.1", "127.0.0.2"))
        async with _scraping(name, resolve=resolve) as scraping:
            fleet = scraping.scraper.fleet
            await scraping.until(lambda: scraping.status(name).result == "unresolved")
            assert fleet().configured == (name,)
            known[:] = ["127.0.0.1"]
            await scraping.until(lambda: set(fleet().samples) == {name})
            known[:] = ["127.0.0.1", "127.0.0.2"]
            await scraping.until(lambda: set(fleet().samples) == {first, second})
            assert fleet().configured == (first, second)
            known[:] = []
            seen = len(scraping.log.results)
            await scraping.until(lambda: len(scraping.log.results) > seen + 6)
            assert fleet().configured == (first, second), "a name that stops resolving keeps its addresses"
            known[:] = ["127.0.0.2"]
            await scraping.until(lambda: set(fleet().samples) == {name})
            assert fleet().configured == (name,)


class _Published:
    """A `Publisher` and `DemandSource` that let a test wait for a state."""

    def __init__(self) -> None:
        self.state = PoolState(limits=(UNLIMITED, UNLIMITED, UNLIMITED))
        self._more = asyncio.Event()

    def publish(self, state: PoolState) -> None:
        self.state = state
        self._more.set()

    def demand(self, now: float) -> Demand:
        return Demand()

    def take_latencies(self) -> tuple[Latency, ...]:
        return ()

    async def rejecting(self, expected: bool) -> float:
        """Waits for it and returns the loop's time of it."""
        async with asyncio.timeout(5):
            while (self.state.rejection[2] > 0) is not expected:
                self._more.clear()
                await self._more.wait()
        return asyncio.get_running_loop().time()


async def test_a_gauge_over_the_watermark_changes_the_state_within_100_ms() -> None:
    """At a 50 ms scrape, from the gauge to the published state, 20 times. Each crossing comes right after a scrape, so
    this is the longest way, not the mean."""
    took: list[float] = []
    async with metrics_server() as server, _scraping(server.engine) as scraping:
        published = _Published()
        watermark = PoolPolicy(controllers=(ControllerName.WATERMARK,))
        controller = PoolController(watermark, queues=DEFAULT_QUEUES, failure=FailurePolicy())
        loop = ControlLoop(
            controller,
            published,
            fleet=scraping.scraper,
            demand=published,
            clock=LoopClock(asyncio.get_running_loop()),
            initial=published.state,
        )
        task = asyncio.create_task(loop.run())
        await scraping.until(lambda: "ok" in scraping.log.of(server.engine))
        for _ in range(20):
            await published.rejecting(False)
            server.kv_usage = 0.81
            crossed = asyncio.get_running_loop().time()
            took.append(await published.rejecting(True) - crossed)
            server.kv_usage = 0.5
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert statistics.median(took) < 0.1, took
