"""An ext_proc server that decides nothing: our codec, the same messages per request, constant replies. The floor in Python.

python -m bench.bare LISTEN
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from extproc.request import HeaderChanges
from extproc.wire import codec
from extproc.wire.events import KINDS, Kind, RequestHeaders
from extproc.wire.ext_proc import SERVICE
from extproc.wire.server import server_options

_GO_ON = codec.admitted(Kind.REQUEST_HEADERS, HeaderChanges())


async def process(_requests: Any, context: Any) -> None:
    while isinstance(data := await context.read(), bytes):
        event = codec.decode(data).event
        if isinstance(event, RequestHeaders):
            await context.write(_GO_ON if event.end_of_stream else codec.ASK_BODY)
        else:
            await context.write(codec.CONTINUE[KINDS[type(event)]])


async def main(listen: str) -> None:
    server = grpc.aio.server(options=server_options(1 << 20))
    method = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": method}),))
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    server.add_insecure_port(listen)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
