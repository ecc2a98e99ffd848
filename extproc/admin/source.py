"""Reading the service's state so that a bug in it costs a page, never the admin server that must show the bug."""

from __future__ import annotations

import structlog

from extproc.snapshots import ServiceSnapshot, StateSource

_log = structlog.get_logger(__name__)


class SafeSource:
    """A StateSource that answers None instead of raising.

    `errors`: how often, since the start. `last_error`: of the last reading, None when it went well.
    """

    def __init__(self, source: StateSource) -> None:
        self._source = source
        self.errors = 0
        self.last_error: str | None = None

    def take(self) -> ServiceSnapshot | None:
        try:
            snapshot = self._source.snapshot()
        except Exception as error:  # noqa: BLE001 - the boundary of the admin edge: every page goes through here
            self.errors += 1
            text = f"{type(error).__name__}: {error}"
            if text != self.last_error:  # pages poll; the same failure is worth one traceback, not one a second
                _log.error("the service's state cannot be read", error=text, exc_info=error)
            self.last_error = text
            return None
        self.last_error = None
        return snapshot
