"""Who bears a rejection rate: a level for each request, refused where it lies below its priority's cut. Pure.

A level is a keyed hash of whose request it is (`identity.py`), evenly spread over [0, 1). So of many keys the share refused
is the rate; a retry meets the verdict of its first attempt; a higher rate refuses whom a lower one does, and more; and
replicas with the same policy agree without a word between them.

Levels turn every `EPOCH_S`, each key at a moment of its own, so that never everybody is dealt anew at once. They turn by
the golden ratio: over some epochs every key is refused its share of the time, and none has bad luck for long.

A key that comes more often than a client tries again is many clients that look alike (unless it is a trusted session): it
turns after every `ATTEMPTS`, so that requests that are all the same are refused at the rate too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from hashlib import blake2b
from struct import Struct

from extproc.identity import Sender
from extproc.model import PRIORITIES, Priority

EPOCH_S = 60.0
ATTEMPTS = 8
"""Of one client in one epoch, at most: the SDKs try three times, those who set it higher seldom more than this."""
MOST_KEYS = 65_536
"""Whose attempts are counted, at about 150 bytes each; beyond it counting starts anew."""
STEP_S = 1.0
"""The cut moves no more often, so that verdicts hold for a while also where it has to move."""
HORIZON_S = 5.0
"""Over about so long the share refused is watched."""
CHANCE = 2 * math.sqrt(ATTEMPTS)
"""Standard deviations by which the share may differ from the rate by chance: two, of keys of which each comes so often."""
GAIN = 3.0
"""What lies beyond is made good within `HORIZON_S` / GAIN."""

_TURN = (math.sqrt(5) - 1) / 2
_HALVES = Struct(">II")
_WHOLE = 2.0**32


def digest(key: bytes, secret: bytes) -> bytes:
    """What a key's levels come from. `secret`: what clients do not know, so that none can tell its levels."""
    return blake2b(secret + key, digest_size=8).digest()


def level(digest: bytes, wall_s: float, turned: int = 0) -> float:
    """In [0, 1). `wall_s`: since the epoch, on which replicas agree as well as their clocks do; `turned`: so often more."""
    start, phase = _HALVES.unpack(digest)
    turns = (wall_s / EPOCH_S + phase / _WHOLE) // 1 + turned
    at: float = (start / _WHOLE + turns * _TURN) % 1.0
    return at


class Cut:
    """Where one priority's levels are cut: at the rate, unless the traffic of few keys makes another share of it.

    One session that sends half of all requests is refused with half of them, or with none. Then the cut is moved until
    the share refused is the rate again: by error diffusion, but of the cut, second by second, never of a verdict.
    """

    __slots__ = ("_debt", "_due", "_refused", "_requests", "_stepped_at", "_trim", "_watched")

    def __init__(self) -> None:
        self._trim = 0.0
        self._stepped_at = -math.inf
        self._requests = 0
        self._refused = 0
        self._due = 0.0
        """Sum of the rates since the last step: so many should have been refused."""
        self._debt = 0.0
        """Refusals missing so far, negative where there were too many."""
        self._watched = 0.0
        """Requests in about the last `HORIZON_S`."""

    def refuses(self, at: float, rate: float, now: float) -> bool:
        """Whether a request of that level bears the `rate`; counts it."""
        if now - self._stepped_at >= STEP_S:
            self._step(now)
        refused = at < rate + self._trim
        self._requests += 1
        self._refused += refused
        self._due += rate
        return refused

    def _step(self, now: float) -> None:
        self._watched = (self._watched + self._requests) * math.exp((self._stepped_at - now) / HORIZON_S)
        self._stepped_at = now
        rate = self._due / self._requests if self._requests else 0.0
        chance = 1 + CHANCE * math.sqrt(rate * (1 - rate) * self._watched)
        per_trim = max(1.0, self._watched) / GAIN
        # From there on all or none are refused: more would only have to be undone. After a pause little is left of it.
        most = chance + self._watched / GAIN
        self._debt = max(-most, min(self._debt + self._due - self._refused, most))
        trim = math.copysign(max(0.0, abs(self._debt) - chance) / per_trim, self._debt)
        self._trim = max(-rate, min(trim, 1 - rate))
        self._requests, self._refused, self._due = 0, 0, 0.0


class Levels:
    """One pool's. Costs nothing while nobody is to be refused."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: as for `level`, the same on every replica."""
        self.secret = secret
        self._cuts = tuple(Cut() for _ in PRIORITIES)
        self._attempts: dict[bytes, int] = {}
        """By digest, in this epoch. Of keys that may be many clients."""
        self._counted_from = -math.inf

    def refuses(self, priority: Priority, rate: float, *, who: Callable[[], Sender], now: float, wall_s: float) -> bool:
        """Whether a request bears the `rate` of its priority. `who`: asked only where it matters."""
        if rate <= 0:
            return False
        if rate >= 1:
            return True
        sender = who()
        one = digest(sender.key, self.secret)
        turned = 0 if sender.one_client else self._earlier(one, now) // ATTEMPTS
        return self._cuts[priority].refuses(level(one, wall_s, turned), rate, now)

    def _earlier(self, one: bytes, now: float) -> int:
        """How often it came before in this epoch; counts it."""
        if now - self._counted_from >= EPOCH_S or len(self._attempts) >= MOST_KEYS:
            self._attempts.clear()
            self._counted_from = now
        before = self._attempts.get(one, 0)
        self._attempts[one] = before + 1
        return before
