"""From the policy file on disk to the policy in force, while the service runs: the last good one stays until a better comes.

The file is looked at four times a second, by its path as given. That is all it takes to see every way in which files
change: Kubernetes swaps a symlink above it, editors write a new file and rename it, others truncate it and write. It needs
no watches, of which nodes run out and which some mounts do not deliver; and a file that is being written is left alone
until it has kept still.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from extproc.clock import wall_clock
from extproc.config import Policy, fingerprint, load_policy
from extproc.errors import ConfigError, Problem
from extproc.snapshots import PolicySnapshot

LOOK_EVERY_S = 0.25
"""How often the file is looked at: one `stat` in a thread."""
MOST_RESTLESS_LOOKS = 8
"""A file that has changed at this many looks in a row is read all the same, at every look."""

_log = structlog.get_logger(__name__)

Mark = tuple[int, ...] | None
"""What tells one state of a file from another, without reading it; None: there is no such file."""


def mark(file: str) -> Mark:
    """Follows symlinks, so a swap anywhere above the file shows. The change time shows what keeps size and mtime."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_mode


@dataclass(slots=True)
class Settling:
    """When to read a file: once it is not what was read last, and has kept still from one look to the next. Pure."""

    _seen: Mark = None
    _read: tuple[Mark] | None = None
    """What was read last, if it kept still."""
    _changes: int = 0

    @property
    def restless(self) -> bool:
        """It has been changing for so long that it must be taken as it is."""
        return self._changes >= MOST_RESTLESS_LOOKS

    def due(self, now: Mark, *, forced: bool = False) -> bool:
        """At each look. True: read it now."""
        still = now == self._seen
        self._seen = now
        self._changes = 0 if still else self._changes + 1
        if (now,) == self._read and not forced:
            return False
        due = still or forced or self.restless
        if due:
            self._read = (now,) if still else None
        return due


class Reloader:
    """Publishes each policy that the file comes to hold. `snapshot` says which is in force, and why a newer one is not."""

    def __init__(
        self, file: str, policy: Policy, *, publish: Callable[[Policy], None], look_every_s: float = LOOK_EVERY_S
    ) -> None:
        """`policy`: in force already. `publish` may refuse one by ConfigError, and has then changed nothing."""
        self._file = file
        self._policy = policy
        self._publish = publish
        self._look_every_s = look_every_s
        self._settling = Settling()
        self._asked = asyncio.Event()
        self.snapshot = PolicySnapshot(file, fingerprint(policy), wall_clock())

    def read_now(self) -> None:
        """Without waiting for a change, or for the file to keep still."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled. At once where the policy came through a pipe: it can be read only once."""
        if _is_pipe(self._file):
            _log.info("policy came through a pipe, changes cannot be seen", file=self._file)
            return
        while True:
            await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_every_s):
                    await self._asked.wait()

    async def _look(self) -> None:
        """In a thread, because a file system may hang, and a large file takes long to parse."""
        forced = self._asked.is_set()
        self._asked.clear()
        before = await asyncio.to_thread(mark, self._file)
        if not self._settling.due(before, forced=forced):
            return
        found, after = await asyncio.to_thread(_load, self._file)
        if after != before and not forced and not self._settling.restless:
            return  # half of it may have been read; the next look sees the change
        if isinstance(found, ConfigError):
            self._refused(found)
        elif found == self._policy:
            self._unchanged(forced=forced)
        else:
            self._take(found)

    def _take(self, policy: Policy) -> None:
        try:
            self._publish(policy)
        except ConfigError as error:
            self._refused(error)
            return
        self._policy = policy
        self.snapshot = PolicySnapshot(self._file, fingerprint(policy), wall_clock())
        _log.info("policy in force", file=self._file, hash=self.snapshot.hash)

    def _unchanged(self, *, forced: bool) -> None:
        if forced or self.snapshot.last_error is not None:
            _log.info("policy file holds the policy in force", file=self._file, hash=self.snapshot.hash)
        self.snapshot = replace(self.snapshot, last_error=None)

    def _refused(self, error: ConfigError) -> None:
        text = str(error)
        if text != self.snapshot.last_error:
            _log.error(
                "policy refused, the last good one stays in force", file=self._file, error=text.replace("\n", "; ")
            )
        self.snapshot = replace(self.snapshot, last_error=text)


def _load(file: str) -> tuple[Policy | ConfigError, Mark]:
    """What the file holds, and its mark afterwards. Only regular files are opened: opening others may wait for ever."""
    found: Policy | ConfigError
    try:
        if os.path.exists(file) and not os.path.isfile(file):
            raise ConfigError(file, [Problem("", "cannot be read: not a regular file")])
        found = load_policy(file)
    except ConfigError as error:
        found = error
    return found, mark(file)


def _is_pipe(file: str) -> bool:
    with suppress(OSError):
        return stat.S_ISFIFO(os.stat(file).st_mode)
    return False
