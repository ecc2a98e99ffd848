"""The gRPC server: listens, tells its health, and stops without losing sight of anything that is held."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.errors import CannotListen
from extproc.listen import somebody_listens, split_address
from extproc.wire.ext_proc import SERVICE, ExtProcService

_LEAST_RECEIVE_BYTES = 64 << 20
_RELEASE_S = 2.0
"""How long handlers have to run to their end after the server has stopped."""


class WireServer:
    """One process's gRPC side. Call `start` once; then `drain` and `stop`, in this order."""

    def __init__(
        self,
        service: ExtProcService,
        *,
        listen: str,
        max_body_bytes: int,
        handlers: tuple[grpc.GenericRpcHandler, ...] = (),
    ) -> None:
        """`listen`: `host:port` (port 0: any free one) or `unix:PATH`. `handlers`: further services to serve."""
        self._service = service
        self._listen = listen
        self._handlers = (service.handler(), *handlers)
        self._options = server_options(max_body_bytes)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self.address = listen
        """After `start`: where it really listens."""
        self.serving = False

    @property
    def streams(self) -> int:
        return self._service.streams

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._service.warnings

    async def start(self) -> None:
        """Raises `CannotListen` when the address is malformed, taken or not ours."""
        address = self._address()
        server = grpc.aio.server(options=self._options)
        server.add_generic_rpc_handlers(self._handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise CannotListen(
                f"--listen: cannot listen on {self._listen}: taken, or not an address of ours"
            ) from error
        if not self._listen.startswith("unix:"):
            self.address = f"{self._listen.rpartition(':')[0]}:{port}"
        self._server = server
        self._service.start()
        await server.start()
        await self._tell(health_pb2.HealthCheckResponse.SERVING)
        self.serving = True

    def _address(self) -> str:
        """The address for grpc. Refuses what grpc would take in its own way: a port modulo 65536, another's socket."""
        if not self._listen.startswith("unix:"):
            host, port = split_address("--listen", self._listen, also=", or unix:PATH")
            return self._listen if host else f"[::]:{port}"
        if not (path := self._listen.removeprefix("unix:")):
            raise CannotListen("--listen: expected a path after unix:")
        if somebody_listens(path):
            raise CannotListen(f"--listen: cannot listen on {self._listen}: somebody else does")
        return self._listen

    async def drain(self) -> None:
        """NOT_SERVING from now on, to checks and to watchers. Streams are still taken and served."""
        self.serving = False
        await self._tell(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Follows running streams up to `grace_s`, then ends them. Afterwards nothing is held any more."""
        if self._server is None:
            return
        await self._service.until_idle(grace_s)
        self._service.stopping()
        # No grace here: health watchers never end by themselves, and the streams have had theirs.
        await self._server.stop(None)
        await self._service.until_idle(_RELEASE_S)  # stop may return before the handlers have run to their end
        self._service.release_all()
        self._server = None

    async def _tell(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, status)


def server_options(max_body_bytes: int) -> list[tuple[str, int]]:
    """Milliseconds and bytes, as grpc wants them."""
    return [
        # A body comes in one message. The policy may raise its bound while we run, hence the floor.
        ("grpc.max_receive_message_length", max(_LEAST_RECEIVE_BYTES, 2 * max_body_bytes)),
        ("grpc.max_concurrent_streams", 1 << 20),  # a queued or streaming request holds one
        # By default grpc turns streams away at random while more than 1000 have not yet reached a handler: Envoy takes that
        # for a failure and lets the request pass. A burst must reach admission, which refuses by priority.
        ("grpc.server.max_pending_requests", 100_000),
        ("grpc.server.max_pending_requests_hard_limit", 100_000),
        ("grpc.so_reuseport", 0),  # a second process on the port is an error, not half of the traffic
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        # Finds an Envoy whose machine is gone: nothing else ends its streams.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
