"""The real Envoy, for tests: the shipped configuration with other addresses, and a running process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc.files import envoy_yaml
from extproc.sim.stack import envoy_binary


def shipped_config(*, extproc_port: int, engine_ports: list[int], engine_max_requests: int) -> dict[str, Any]:
    """`envoy/envoy.yaml` on loopback and ephemeral ports, everything else as shipped."""
    config: dict[str, Any] = yaml.safe_load(envoy_yaml())
    resources = config["static_resources"]
    config["admin"]["address"] = _address(0)
    resources["listeners"][0]["address"] = _address(0)
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    for name, ports in (("extproc", [extproc_port]), ("engines", engine_ports)):
        endpoints = [{"endpoint": {"address": _address(port)}} for port in ports]
        clusters[name]["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    clusters["engines"]["circuit_breakers"]["thresholds"][0]["max_requests"] = engine_max_requests
    return config


@contextlib.asynccontextmanager
async def running_envoy(config: dict[str, Any], folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Runs Envoy in `folder` until the block ends. Gives the URLs of its first listener and its admin, once live."""
    file, admin_file = folder / "envoy.yaml", folder / "admin.txt"
    file.write_text(yaml.safe_dump(config))
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
    command = [envoy_binary(), "-c", str(file), "--admin-address-path", str(admin_file), *options]
    with (folder / "envoy.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=asyncio.subprocess.STDOUT)
        try:
            async with asyncio.timeout(15), aiohttp.ClientSession() as session:
                admin = await _live(session, process, admin_file)
                listeners = await (await session.get(f"{admin}/listeners?format=json")).json(content_type=None)
            address = listeners["listener_statuses"][0]["local_address"]["socket_address"]
            yield f"http://127.0.0.1:{address['port_value']}", admin
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _live(session: aiohttp.ClientSession, process: asyncio.subprocess.Process, admin_file: Path) -> str:
    while True:
        assert process.returncode is None, f"Envoy ended: see {admin_file.with_name('envoy.log')}"
        if address := _text(admin_file):
            with contextlib.suppress(aiohttp.ClientError):
                answer = await session.get(f"http://{address}/ready")
                if answer.status == 200:
                    return f"http://{address}"
        await asyncio.sleep(0.02)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
