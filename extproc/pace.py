"""Prompt tokens let go that the engines have not prefilled yet, as told by a pace: a leaky bucket. Pure.

Engines serve first come, first served. A burst let in at once stands in their queues, and the next important request behind
it; held back here, it lets that one pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol, TypeVar

from extproc.model import Pace, Priority

GIVEN_BACK = 0.3
"""Of what is still to come of a prompt whose client left. The engines were faster than the pace, and it is less than that."""
AGAIN_S = 0.001
"""Who is held back looks again this much after there should be room: sums of floats are not exact."""


OWN = (0, 1, 2)
"""Per priority, how often its own prompt must fit beside what is on its way: the less important, the sooner a long one waits
while short ones go."""


def room(priority: Priority, prompt_tokens: int, *, depth: float) -> float:
    """Tokens of the depth that a prompt must find free.

    What P1 and P2 send must fit, or find nothing before it where that is more than the depth: the next P0 stands behind all of
    it. For P0 only what is before it counts.
    """
    return min(OWN[priority] * prompt_tokens, depth)


class Prompt(Protocol):
    """What a pace must know of a request."""

    @property
    def priority(self) -> Priority: ...

    @property
    def prompt_tokens(self) -> int: ...


P = TypeVar("P", bound=Prompt)


class Prefills:
    """One replica's. `now` does not go back."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._at = self._rate = 0.0

    def took(self, prompt_tokens: int, now: float, pace: Pace) -> float:
        """A request of so many was let go. When its prompt should be through."""
        self._tokens = self.left(now, pace) + prompt_tokens
        return now + self._tokens / pace.let_in_per_s

    def over(self, prompt_tokens: int, through_at: float, now: float, pace: Pace) -> None:
        """Such a request has ended, refused by its engine or left by its client: nothing of its prompt is still to come.

        It makes room for a P0, and little for others: where many leave, newcomers in all their places were too many.
        """
        left, to_come = self.left(now, pace), min(prompt_tokens, max(0.0, through_at - now) * pace.let_in_per_s)
        self._tokens = max(left - to_come, min(left - GIVEN_BACK * to_come, pace.depth(Priority.P0)))

    def left(self, now: float, pace: Pace) -> float:
        """Tokens on their way now. `pace` holds from now on; what went until now, went by the one before."""
        self._tokens = max(0.0, self._tokens - (now - self._at) * self._rate)
        self._at, self._rate = now, pace.let_in_per_s
        return self._tokens

    def lets(self, prompts: Iterable[P], now: float, pace: Pace) -> tuple[list[P], float]:
        """Those from the front that may go now; and when the first that may not could, inf where all may. Looks at no more."""
        left = self.left(now, pace)
        going: list[P] = []
        for prompt in prompts:
            depth = pace.depth(prompt.priority)
            if (over := left + room(prompt.priority, prompt.prompt_tokens, depth=depth) - depth) > 0:
                return going, now + over / pace.let_in_per_s + AGAIN_S
            left += prompt.prompt_tokens
            going.append(prompt)
        return going, math.inf
