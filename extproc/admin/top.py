"""`extproc top`: asks a running service for its state once a second, and shows it in the terminal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import aiohttp
import msgspec
from rich.console import Console, RenderableType
from rich.live import Live

from extproc.admin.top_view import State, view
from extproc.errors import ExtprocError

REFRESH_S = 1.0
TIMEOUT_S = 5.0
"""A busy service is slow to answer; a hung one is to be told from it."""
PLAIN_WIDTH = 160
"""Columns where nobody says how many there are: a file or a pipe."""


class NoAnswer(ExtprocError):
    """The admin port does not say what it should. The message names the address and what to look at."""


async def top(admin: str, *, once: bool, console: Console, refresh_s: float = REFRESH_S) -> None:
    """Until cancelled, or once. Without a terminal one plain page follows the other.

    Raises `NoAnswer` when the first question fails; later failures are shown, for the service may come back.
    """
    url = (admin if "://" in admin else f"http://{admin}").rstrip("/") + "/state"
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as http:
        state = await _ask(http, url)
        page = _page(url, state)
        if once or not console.is_terminal:
            console.print(page)
        if not once and console.is_terminal:
            with Live(page, console=console, auto_refresh=False, screen=True) as live:
                async for newer in _pages(http, url, state, every_s=refresh_s):
                    live.update(newer, refresh=True)
        elif not once:
            async for newer in _pages(http, url, state, every_s=refresh_s):
                console.print(newer)


async def _pages(
    http: aiohttp.ClientSession, url: str, state: State, *, every_s: float
) -> AsyncIterator[RenderableType]:
    """Without end. A service that does not answer is shown as it last was, with why."""
    while True:
        await asyncio.sleep(every_s)
        try:
            newer = await _ask(http, url)
            page = _page(url, newer, state)
            state = newer
        except NoAnswer as error:
            page = view(state, trouble=str(error))
        yield page


def _page(url: str, state: State, before: State | None = None) -> RenderableType:
    try:
        return view(state, before)
    except KeyError as missing:
        raise NoAnswer(f"{url}: has no {missing}; that is another version of extproc") from None


async def _ask(http: aiohttp.ClientSession, url: str) -> State:
    hint = "is extproc serve running, with this --admin-listen?"
    try:
        async with http.get(url) as response:
            body = await response.read()
    except TimeoutError:
        raise NoAnswer(f"{url}: no answer within {TIMEOUT_S:g} s; {hint}") from None
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise NoAnswer(
            f"--admin: expected a URL such as http://127.0.0.1:8080, or host:port; got {url[:-6]!r}"
        ) from None
    except aiohttp.ClientConnectorError as error:
        code = error.os_error.errno or 0  # of a name that does not resolve it is negative
        reason = os.strerror(code) if code > 0 else error.os_error.strerror
        raise NoAnswer(f"{url}: {reason}; {hint}") from None
    except aiohttp.ClientError as error:
        raise NoAnswer(f"{url}: {error or type(error).__name__}; {hint}") from None
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        document = None
    if isinstance(document, dict) and "pools" in document:
        return document
    if isinstance(document, dict) and "error" in document:
        raise NoAnswer(f"{url}: {document['error']}")
    raise NoAnswer(f"{url}: status {response.status}, not the state of an extproc; {hint}")
