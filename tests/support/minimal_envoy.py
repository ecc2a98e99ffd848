"""A real Envoy process on free ports, with the smallest configuration that puts ext_proc before one upstream."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from extproc.sim.stack import envoy_binary
from tests.support.eventually import eventually

_FILTERS = "type.googleapis.com/envoy.extensions.filters"


@dataclass(frozen=True, slots=True)
class EnvoyOptions:
    """`extproc`: `host:port` or `unix:PATH`. `graceful`: Envoy half-closes its streams and waits for us to close them."""

    extproc: str
    upstream_port: int
    graceful: bool = False
    allow_override: bool = True
    response_trailers: str = "SEND"
    message_timeout: str = "0.25s"
    max_message_timeout: str = "300s"
    connection_buffer_bytes: int = 1 << 20


def envoy_version() -> tuple[int, int]:
    """Of the binary under test: major and minor."""
    said = subprocess.run([envoy_binary(), "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    found = re.search(r"/(\d+)\.(\d+)\.\d+", said)
    assert found, said
    return int(found[1]), int(found[2])


@asynccontextmanager
async def run_envoy(options: EnvoyOptions, directory: Path) -> AsyncIterator[str]:
    """Yields the listener's base URL. `directory` then holds `access.log`: outcome, priority, pool, status per request."""
    config, admin = directory / "envoy.json", directory / "admin"
    config.write_text(json.dumps(_bootstrap(options, directory / "access.log")))
    process = await asyncio.create_subprocess_exec(
        envoy_binary(),
        *("-c", str(config), "--admin-address-path", str(admin), "--concurrency", "1", "--disable-hot-restart"),
        *("--log-level", "error", "--file-flush-interval-msec", "20"),
    )
    try:
        async with asyncio.timeout(20):
            url = await _listener_url(admin, process)
        yield url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _listener_url(admin: Path, process: asyncio.subprocess.Process) -> str:
    def started() -> str:
        assert process.returncode is None, "envoy did not start"
        return admin.read_text() if admin.exists() else ""

    await eventually(started, within_s=20)
    listeners: list[Any] = []
    async with aiohttp.ClientSession() as session:
        while not listeners:
            async with session.get(f"http://{started()}/listeners?format=json") as response:
                listeners = (await response.json()).get("listener_statuses", [])
            await asyncio.sleep(0.005)
    return f"http://127.0.0.1:{listeners[0]['local_address']['socket_address']['port_value']}"


def _bootstrap(options: EnvoyOptions, access_log: Path) -> dict[str, Any]:
    upstream = _cluster("upstream", _tcp("127.0.0.1", options.upstream_port))
    extproc = _cluster("extproc", _address(options.extproc))
    http2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    extproc["typed_extension_protocol_options"] = {
        http2: {"@type": f"type.googleapis.com/{http2}", "explicit_http_config": {"http2_protocol_options": {}}}
    }
    limits = {"max_connections": 10000, "max_pending_requests": 10000, "max_requests": 10000}
    for cluster in (upstream, extproc):
        cluster["circuit_breakers"] = {"thresholds": [limits]}
    listener = {
        "name": "main",
        "address": _tcp("127.0.0.1", 0),
        "per_connection_buffer_limit_bytes": options.connection_buffer_bytes,
        "filter_chains": [{"filters": [_connection_manager(options, access_log)]}],
    }
    guard = {"envoy.reloadable_features.ext_proc_graceful_grpc_close": options.graceful}
    return {
        "admin": {"address": _tcp("127.0.0.1", 0)},
        "static_resources": {"listeners": [listener], "clusters": [upstream, extproc]},
        "layered_runtime": {"layers": [{"name": "test", "static_layer": guard}]},
    }


def _connection_manager(options: EnvoyOptions, access_log: Path) -> dict[str, Any]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}
    fields = [f"%DYNAMIC_METADATA(extproc:{name})%" for name in ("outcome", "priority", "pool", "waited_ms")]
    log_format = {"text_format_source": {"inline_string": " ".join([*fields, "%RESPONSE_CODE%"]) + "\n"}}
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "main",
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
            "http_filters": [
                _http_filter("fault", "fault.v3.HTTPFault", {"abort": _ABORT}),
                _http_filter("ext_proc", "ext_proc.v3.ExternalProcessor", _ext_proc(options)),
                _http_filter("router", "router.v3.Router", {}),
            ],
            "access_log": [
                {
                    "name": "envoy.access_loggers.file",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                        "path": str(access_log),
                        "log_format": log_format,
                    },
                }
            ],
        },
    }


_ABORT = {"header_abort": {}, "percentage": {"numerator": 100}}
"""A request with `x-envoy-fault-abort-request: 418` is answered by this filter, before ext_proc sees its headers."""


def _ext_proc(options: EnvoyOptions) -> dict[str, Any]:
    return {
        "grpc_service": {"envoy_grpc": {"cluster_name": "extproc"}, "timeout": "0s"},
        "failure_mode_allow": True,
        "allow_mode_override": options.allow_override,
        "message_timeout": options.message_timeout,
        "max_message_timeout": options.max_message_timeout,
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "response_trailer_mode": options.response_trailers,
        },
        "response_attributes": ["upstream.address"],
        "metadata_options": {"receiving_namespaces": {"untyped": ["extproc"]}},
    }


def _http_filter(name: str, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"envoy.filters.http.{name}", "typed_config": {"@type": f"{_FILTERS}.http.{kind}", **config}}


def _cluster(name: str, address: dict[str, Any]) -> dict[str, Any]:
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    return {
        "name": name,
        "connect_timeout": "1s",
        "type": "STATIC",
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
    }


def _address(address: str) -> dict[str, Any]:
    if address.startswith("unix:"):
        return {"pipe": {"path": address.removeprefix("unix:")}}
    host, _, port = address.rpartition(":")
    return _tcp(host, int(port))


def _tcp(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
