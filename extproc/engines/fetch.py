"""One engine's metrics over HTTP: the filtered page where the engine has one, else the full page. What is read from it
is the adapter's business, when it is asked for the scraper's.
"""

from __future__ import annotations

from enum import StrEnum

import aiohttp
from yarl import URL

from extproc.engines.discovery import Target
from extproc.engines.sampler import Adapter, Reading
from extproc.errors import BadMetrics, ExtprocError

MAX_PAGE_BYTES = 4 << 20
"""A full page is about 50 kB per data-parallel engine; beyond this it is something else."""

RETRY_FILTER_S = 60.0
"""An engine that had no usable filtered page is asked for it again this often: it may have been upgraded."""

_MAX_REDIRECTS = 2


class Result(StrEnum):
    """How a scrape ended; a metric label."""

    OK = "ok"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """No connection, or one that broke."""
    UNRESOLVED = "unresolved"
    """The engine's name has no address."""
    HTTP_ERROR = "http-error"
    BAD_METRICS = "bad-metrics"
    TOO_LARGE = "too-large"


class ScrapeFailed(ExtprocError):
    """A scrape that gave no reading, with the reason as a `Result`."""

    def __init__(self, result: Result, message: str, *, status: int | None = None) -> None:
        self.result = result
        self.status = status
        super().__init__(message)


class MetricsClient:
    """Asks one engine. Knows which of its pages works."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, *, path: str, adapter: Adapter) -> None:
        self._session = session
        self._adapter = adapter
        base = URL.build(scheme="http", host=target.address, port=target.port)
        path = "/" + path.strip("/")
        self._full = base.with_path(path)
        # With the slash: without it vLLM ignores the filter.
        self._filtered = base.with_path(path + "/").with_query([("name[]", name) for name in adapter.names])
        self._full_since: float | None = None

    @property
    def filtered(self) -> bool:
        """Whether the last reading came from the filtered page (also before the first): cheap enough for a short
        interval."""
        return self._full_since is None

    def forget(self) -> None:
        """The engine failed and may come back as another version: the filtered page is tried first again."""
        self._full_since = None

    async def read(self, now: float) -> Reading:
        """One scrape. Raises `ScrapeFailed`; a time-out is the caller's."""
        if self._full_since is not None and now - self._full_since < RETRY_FILTER_S:
            return await self._read(self._full)
        try:
            reading = await self._read(self._filtered)
        except ScrapeFailed as error:
            # Nothing where the filtered page should be, or nothing on it (several processes in one engine).
            missing = error.status is not None and 400 <= error.status < 500
            if not missing and error.result is not Result.BAD_METRICS:
                raise
            reading = await self._read(self._full)
            self._full_since = now
            return reading
        # Other series than asked for: the filter was ignored, and the answer cost as much as the full page.
        self._full_since = now if reading.others else None
        return reading

    async def _read(self, url: URL) -> Reading:
        try:
            text, content_type = await self._get(url)
            return self._adapter.read(text, content_type)
        except BadMetrics as error:
            raise ScrapeFailed(Result.BAD_METRICS, str(error)) from error
        except aiohttp.ClientConnectionError as error:
            raise ScrapeFailed(Result.REFUSED, str(error) or type(error).__name__) from error
        except aiohttp.ClientError as error:
            raise ScrapeFailed(Result.HTTP_ERROR, f"broken answer: {error}") from error

    async def _get(self, url: URL) -> tuple[str, str]:
        """Text and Content-Type of a page. An idle connection that the engine closed (after 5 s) is replaced once."""
        try:
            return await self._follow(url)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._follow(url)

    async def _follow(self, url: URL) -> tuple[str, str]:
        """Follows 307 within the engine only: an engine must not point us at another host."""
        for _ in range(_MAX_REDIRECTS + 1):
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status != 307:
                    return await _page(response)
                url = _redirected(url, response.headers.get("Location", ""))
        raise ScrapeFailed(Result.HTTP_ERROR, "too many redirects")


def _redirected(url: URL, location: str) -> URL:
    try:
        there = url.join(URL(location))
        same = bool(location) and there.origin() == url.origin()
    except ValueError:
        same = False
    if not same:
        raise ScrapeFailed(Result.HTTP_ERROR, f"redirected to {location[:200]!r}, which is not the same host")
    return there


async def _page(response: aiohttp.ClientResponse) -> tuple[str, str]:
    if response.status != 200:
        raise ScrapeFailed(Result.HTTP_ERROR, f"HTTP status {response.status}", status=response.status)
    size = response.content_length or 0
    chunks: list[bytes] = []
    if size <= MAX_PAGE_BYTES:
        size = 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > MAX_PAGE_BYTES:
                break
            chunks.append(chunk)
    if size > MAX_PAGE_BYTES:
        response.close()  # what is left of the page is not read
        raise ScrapeFailed(Result.TOO_LARGE, f"more than {MAX_PAGE_BYTES} bytes of metrics")
    return b"".join(chunks).decode("utf-8", errors="replace"), response.headers.get("Content-Type", "")
