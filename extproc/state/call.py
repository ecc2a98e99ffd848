"""One call to the store, from its first word to what is heard of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis

from extproc.state.nodes import Nodes
from extproc.state.pipe import Pipe
from extproc.state.scripts import Script
from extproc.state.trouble import kind_of, unavailable

Argument = str | bytes | int | float
Heard = Callable[[Any], None]
"""Gets a script's answer, or StateUnavailable."""


class Call:
    """One call, until it is heard or given up."""

    __slots__ = (
        "_arguments",
        "_heard",
        "_keys",
        "_node",
        "_nodes",
        "_opening",
        "_pipe",
        "_script",
        "_timer",
        "_within_s",
    )

    def __init__(
        self,
        nodes: Nodes,
        script: Script,
        keys: Sequence[str],
        arguments: Sequence[Argument],
        *,
        within_s: float,
        heard: Heard,
    ) -> None:
        self._nodes = nodes
        self._script = script
        self._keys = keys
        self._arguments = arguments
        self._within_s = within_s
        self._heard: Heard | None = heard
        self._pipe: Pipe | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._node = nodes.of(keys[0])
        if self._node is not None and (pipe := self._node.idle()) is not None:
            self._arm()
            self._send(pipe)
        else:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    def give_up(self) -> None:
        """`heard` is not called any more."""
        self._heard = None
        if self._timer is not None:
            self._timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._pipe is not None:
            self._pipe.close()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(
            self._within_s, self._fail, TimeoutError("no answer in time")
        )

    async def _open(self) -> None:
        try:
            self._node = node = await self._nodes.find(self._keys[0])
            self._arm()
            async with self._nodes.opening:
                pipe = node.idle() or await node.open()
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear of it
            self._opening = None
            self._fail(error)
        else:
            self._opening = None
            self._send(pipe)

    def _send(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._write(pipe, "EVALSHA", self._script.sha)

    def _write(self, pipe: Pipe, command: str, script: str) -> None:
        words = (command, script, len(self._keys), *self._keys, *self._arguments)
        pipe.send(*words, heard=partial(self._on_reply, pipe))

    def _on_reply(self, pipe: Pipe, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError) and kind_of(reply) == "noscript":
            # It ran nothing: the only error after which a call is repeated.
            self._write(pipe, "EVAL", self._script.text)
        elif isinstance(reply, Exception):
            self._fail(reply)
        else:
            heard, self._pipe = self._heard, None
            self.give_up()
            if self._node is not None:
                self._node.give_back(pipe)
            if heard is not None:
                heard(reply)

    def _fail(self, error: Exception) -> None:
        heard = self._heard
        self.give_up()
        if self._node is not None:
            self._node.forget()
        if heard is not None:
            heard(unavailable(error))
