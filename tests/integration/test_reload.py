"""A running `extproc serve` whose policy file changes: what operators see, and what requests feel. Envoy and engines real."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import yaml

from extproc.sim.stack import Stack, StackOptions, render_policy
from tests.support.eventually import eventually
from tests.support.gateway import CHAT, Gateway, gateway_of
from tests.support.mounted import Mounted

LONG = {**CHAT, "max_tokens": 45}
"""About 1.5 s on an engine of half the speed; ends by itself where a test wants it to."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Service(Gateway):
    """A stack whose policy can be changed."""

    def rendered(self, text: str) -> str:
        """With the stack's engines in it."""
        return render_policy(text, self.stack.engine_addresses)

    def swap(self, text: str) -> None:
        """Another file in the old one's place."""
        self.write(self.rendered(text))

    def write(self, raw: str) -> None:
        new = self.stack.policy_file.with_suffix(".new")
        new.write_text(raw, encoding="utf-8")
        os.rename(new, self.stack.policy_file)

    async def until_state(self, holds: Callable[[Any], bool]) -> Any:
        """Waits until `/state` is as wanted, and returns it. Another process has no event to await."""
        async with asyncio.timeout(5):
            while not holds(state := await self.state()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return state

    async def until_policy(self, error: str | None) -> dict[str, object]:
        """Waits until the service says of its file that it is in force (None) or what is wrong with it."""

        def holds(state: Any) -> bool:
            said = state["policy"]["last_error"]
            return said is None if error is None else error in str(said)

        policy: dict[str, object] = (await self.until_state(holds))["policy"]
        return policy

    async def until_size(self, pool: str, size: int) -> None:
        """Waits until that pool's first queue has that size."""
        wanted = (pool, size)
        await self.until_state(
            lambda state: wanted in [(p["name"], p["priorities"]["P0"]["queue_size"]) for p in state["pools"]]
        )

    async def page(self, path: str) -> str:
        async with self.http.get(self.stack.admin_url + path) as response:
            assert response.status == 200, await response.text()
            return await response.text()

    def log(self) -> str:
        return self.stack.children["extproc"].log.read_text(encoding="utf-8")


def names(state: Any) -> list[str]:
    """Of the pools; those that leave in brackets."""
    return [f"({pool['name']})" if pool["leaving"] else pool["name"] for pool in state["pools"]]


def admitted(state: Any) -> dict[str, int]:
    """Requests admitted so far, by priority."""
    return {name: one["requests"].get("admitted", 0) for name, one in state["pools"][0]["priorities"].items()}


def policy(requests: int, *, name: str = "one", size: int = 10) -> str:
    queue = f"{{priority: P0, name: first, maxQueueSize: {size}, timeout: 8s}}"
    return f"queues: [{queue}]\npools: [{{name: {name}, fixed: {{limit: {{requests: {requests}}}}}}}]\n"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def service() -> AsyncIterator[Service]:
    options = StackOptions(policy=policy(1), engines=1, engine_args=("--speed", "0.5"))
    async with Stack(options) as stack, gateway_of(stack) as gateway:
        yield Service(stack, gateway.http)


async def test_a_bad_file_is_told_everywhere_and_the_last_good_policy_stays(service: Service) -> None:
    before = await service.until_policy(None)
    service.write("queues: [{priority: P0, name: a, maxQueueSize: many, timeout: 8s}]")
    refused = await service.until_policy("maxQueueSize")
    assert {**refused, "last_error": None} == before
    ready = json.loads(await service.page("/readyz"))
    assert ready["ready"] is True
    assert ready["components"]["policy"]["ok"] is False
    assert f"{service.stack.policy_file}:1: queues[0].maxQueueSize" in ready["components"]["policy"]["detail"]
    assert "the last good policy is in force" in ready["warnings"][0]
    assert "extproc_policy_last_reload_successful 0.0" in await service.page("/metrics")
    assert (await service.post()).status == 200
    service.stack.policy_file.unlink()
    await service.until_policy("No such file")
    service.swap(policy(1, size=11))
    after = await service.until_policy(None)
    assert after["hash"] != before["hash"]
    assert "extproc_policy_last_reload_successful 1.0" in await service.page("/metrics")
    assert yaml.safe_load(await service.page("/policy"))["queues"][0]["maxQueueSize"] == 11
    assert service.log().count("policy refused") == 2


async def test_the_last_of_a_hundred_swaps_in_a_row_is_in_force(service: Service) -> None:
    """Of a ConfigMap, as the kubelet does it; the flag's own path is one more link above."""
    reloads = service.log().count("policy in force")
    mounted = Mounted(service.stack.folder / "mount", service.rendered(policy(1)))
    service.stack.policy_file.unlink()
    service.stack.policy_file.symlink_to(mounted.file)
    for version in range(100, 200):
        mounted.swap(service.rendered(policy(1, size=version)))
    await service.until_size("one", 199)
    mounted.swap(service.rendered(policy(1, size=200)))
    await service.until_size("one", 200)
    assert service.log().count("policy in force") <= reloads + 3
    assert (await service.state())["policy"]["last_error"] is None


async def test_sighup_reads_the_file_at_once(service: Service) -> None:
    service.stack.children["extproc"].send_signal(signal.SIGHUP)
    await eventually(lambda: "policy file holds the policy in force" in service.log())


async def test_who_waits_goes_when_the_limit_rises_and_who_runs_is_not_touched(service: Service) -> None:
    service.swap(policy(1))
    await service.until_size("one", 10)
    first, second = asyncio.create_task(service.post(LONG)), asyncio.create_task(service.post(LONG))
    await service.until_pool({"in_use": 1, "waiting": 1})
    service.swap(policy(2))
    await service.until_pool({"in_use": 2, "waiting": 0})
    assert not first.done()
    for reply in await asyncio.gather(first, second):
        assert reply.status == 200
        assert reply.body.endswith(b"data: [DONE]\n\n")


async def test_a_request_keeps_the_policy_it_arrived_under(service: Service) -> None:
    """Its headers came under the old policy, its body under the new one."""
    service.swap(policy(1, size=20) + "trust: {headers: [x-priority]}\n")
    await service.until_size("one", 20)
    host, _, port = service.stack.gateway_address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(CHAT).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-priority: P0\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    await service.until_state(lambda state: state["wire"]["streams"] == 1)
    before = admitted(await service.state())
    service.swap(policy(1, size=21))
    await service.until_size("one", 21)
    writer.write(body)
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    assert admitted(await service.state()) == {**before, "P0": before["P0"] + 1}
    assert (await service.post(headers={"x-priority": "P0"})).status == 200
    assert admitted(await service.state()) == {**before, "P0": before["P0"] + 1, "P1": before["P1"] + 1}


async def test_a_removed_pool_ends_with_its_last_request(service: Service) -> None:
    service.swap(policy(1))
    await service.until(lambda pool: pool["limit"]["slots"] == 1)
    running, waiting = asyncio.create_task(service.post(LONG)), asyncio.create_task(service.post(LONG))
    await service.until_pool({"in_use": 1, "waiting": 1})
    service.swap(policy(1, name="two"))
    await service.until_size("two", 10)
    assert names(await service.state()) == ["two", "(one)"]
    assert (await service.post()).status == 200, "the new pool takes requests"
    for reply in await asyncio.gather(running, waiting):
        assert reply.status == 200
    await service.until_state(lambda state: names(state) == ["two"])


async def test_afterwards_nothing_is_held_and_nothing_failed(service: Service) -> None:
    await service.until_pool({"in_use": 0, "waiting": 0})
    metrics = await service.page("/metrics")
    assert 'extproc_wire_events_total{event="handler-error"} 0.0' in metrics
    assert "extproc_snapshot_errors_total 0.0" in metrics
    assert "Traceback" not in service.log()
    assert service.stack.children["extproc"].running
