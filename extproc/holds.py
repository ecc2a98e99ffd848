"""What one replica holds of a pool: load in use, ghost load, prompts on their way; and the traffic that shows of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from extproc.meters import Traffic
from extproc.model import NOTHING, Demand, End, Latency, Load, Pace, Priority
from extproc.pace import P, Prefills
from extproc.ports import Ask, Want
from extproc.submission import Submission


class Holds:
    """`pace`, where it is asked for: this replica's part of the pool's; None: prompts go as they come."""

    __slots__ = ("_in_use", "_new_ghosts", "_prefills", "traffic")

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._in_use = [NOTHING, NOTHING, NOTHING]
        self._new_ghosts = NOTHING
        """The ledger has not been told of them yet."""
        self._prefills = Prefills()

    @property
    def in_use(self) -> tuple[Load, Load, Load]:
        return self._in_use[0], self._in_use[1], self._in_use[2]

    def lets(self, prompts: Iterable[P], now: float, pace: Pace | None) -> tuple[list[P], float]:
        """Those from the front that the pace lets go now, and when the next could; inf: it holds nobody back."""
        return (list(prompts), math.inf) if pace is None else self._prefills.lets(prompts, now, pace)

    def began(self, submission: Submission, now: float, pace: Pace | None) -> float:
        """It was let in. When its prompt should be through the engines; -inf without a pace."""
        self._in_use[submission.priority] += submission.cost.load
        return -math.inf if pace is None else self._prefills.took(submission.cost.prompt_tokens, now, pace)

    def prompt_over(self, prompt_tokens: int, through_at: float, now: float, pace: Pace) -> None:
        """What had begun has ended, and with it its prompt; `through_at`: as `began` told."""
        self._prefills.over(prompt_tokens, through_at, now, pace)

    def ended(self, priority: Priority, load: Load, how: End, latency: Latency) -> None:
        """What had begun; `latency`: how long it took."""
        self._in_use[priority] = self._in_use[priority] - load
        if how is End.GHOST:
            self.add_ghost(load)
        else:
            self.traffic.ended(load, latency.duration_s)
        if how is End.COMPLETED:
            self.traffic.finished(latency)

    def add_ghost(self, load: Load) -> None:
        """Nobody follows it any more, and it may run upstream."""
        self._new_ghosts += load

    def ask(self, wants: Sequence[Want]) -> Ask:
        """For these, with all that is held. Where it is put to the ledger, `told` is to follow."""
        return Ask(self.in_use, wants, ghosts=self._new_ghosts, hold=self.traffic.hold)

    def told(self) -> None:
        """The ledger has the last `ask`."""
        self._new_ghosts = NOTHING

    def demand(self, now: float, waiting: tuple[Load, Load, Load], *, paced: bool) -> Demand:
        return self.traffic.demand(now, self.in_use, waiting, paced=paced)

    @property
    def drain_tokens_per_s(self) -> float | None:
        """Tokens that end here per second; None while unknown."""
        return self.traffic.drain_tokens_per_s(self._in_use)
