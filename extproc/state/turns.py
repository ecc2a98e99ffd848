"""One call after the other: at once while none is in flight, else as soon as that one has ended, and now and then unasked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from extproc.clock import Clock, Timer


class Turns:
    """`begin` begins a call, and returns what gives it up; once it is heard, `ended` is to be called. `pause_s`: how long after the
    last call the next is due, whether there is something to say or not."""

    def __init__(self, clock: Clock, *, begin: Callable[[], Callable[[], None]], pause_s: Callable[[], float]) -> None:
        self._clock = clock
        self._begin = begin
        self._pause_s = pause_s
        self.begun = 0
        """Calls so far."""
        self._give_up: Callable[[], None] | None = None
        """What ends the call in flight."""
        self._due = False
        self._timer: Timer | None = None
        self._running: asyncio.Future[None] | None = None

    def say(self) -> None:
        """There is something to say."""
        if self._running is None or self._give_up is not None:
            self._due = True
            return
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
        self.guarded(self._say)

    def ended(self, take: Callable[[], None]) -> None:
        """The call in flight is over. `take` makes of it what there is to make, and may say something in turn."""
        self._give_up = None
        self.guarded(lambda: self._go_on(take))

    def guarded(self, act: Callable[[], None]) -> None:
        """A bug in it ends `run`, as one in a task would: it is called back by a loop that would go on without a word."""
        try:
            act()
        except Exception as error:
            if self._running is None or self._running.done():
                raise
            self._running.set_exception(error)

    async def run(self) -> None:
        """Until cancelled. Before, what is said waits."""
        self._running = asyncio.get_running_loop().create_future()
        try:
            self._pause()
            await self._running
        finally:
            self._running = None
            if self._timer is not None:
                self._timer.cancel()
            if self._give_up is not None:
                self._give_up()

    def _say(self) -> None:
        self.begun += 1
        self._give_up = self._begin()

    def _go_on(self, take: Callable[[], None]) -> None:
        take()
        if self._give_up is None:
            self._pause()

    def _pause(self) -> None:
        if self._due:
            self.say()
        else:
            self._timer = self._clock.call_at(self._clock.now() + self._pause_s(), self.say)
