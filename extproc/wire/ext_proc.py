"""The ext_proc servicer: a generic gRPC handler over raw bytes, and the list of its live streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from extproc.clock import Clock
from extproc.config import EnvoyPolicy
from extproc.ports import Observer, WireEvent
from extproc.wire.connections import Connections
from extproc.wire.modes import Modes
from extproc.wire.pulse import LoopPulse
from extproc.wire.shared import Context, Gate, Shared
from extproc.wire.stream import Stream

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_log = structlog.get_logger(__name__)


class ExtProcService:
    """`gate` and `envoy` are asked once per request, so a request keeps the policy that it arrived under."""

    def __init__(
        self, gate: Callable[[], Gate], *, observer: Observer, clock: Clock, envoy: Callable[[], EnvoyPolicy]
    ) -> None:
        self._shared = Shared(
            gate=gate,
            envoy=envoy,
            observer=observer,
            clock=clock,
            pulse=LoopPulse(clock),
            connections=Connections(),
            modes=Modes(observer),
        )
        self._live: set[Stream] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def streams(self) -> int:
        """Streams open now."""
        return len(self._live)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What Envoy's mode cannot carry, in sentences for people. Empty: all is well, or nothing has been seen yet."""
        return self._shared.modes.warnings

    def handler(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`. No serializers: messages stay bytes up to `codec`."""
        method = grpc.stream_stream_rpc_method_handler(self._process)
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})

    def start(self) -> None:
        """On the running loop, before the first stream."""
        self._shared.pulse.start()

    async def until_idle(self, timeout_s: float) -> bool:
        """True when no stream is open; False after `timeout_s`."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def stopping(self) -> None:
        """From now on streams are ended by us: Envoy lets their requests go on."""
        self._shared.stopping = True

    def release_all(self) -> None:
        """Gives back whatever streams still hold. After the server has stopped: grpc may leave handlers unfinished."""
        self._shared.pulse.stop()
        for stream in tuple(self._live):
            stream.finish()

    async def _process(self, _requests: Any, context: Context) -> None:
        stream = Stream(self._shared, context)
        self._live.add(stream)
        self._idle.clear()
        try:
            await stream.run()
        except Exception:  # noqa: BLE001 - the servicer boundary: a bug of ours must not stop traffic
            self._shared.observer.wire(WireEvent.HANDLER_ERROR)
            _log.exception("stream_failed")
            await stream.let_pass()
        finally:
            stream.finish()
            self._live.discard(stream)
            if not self._live:
                self._idle.set()
