"""`docker compose up` really brought up: images built, health checks passed, a request served, a request refused, all taken down.

Needs a Docker engine with compose v2, so it is opt-in: `EXTPROC_DOCKER=1 pytest -m docker`. Images come from the variables
of docker-compose.yml.
"""

from __future__ import annotations

import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from extproc.clock import monotonic

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.environ.get("EXTPROC_DOCKER") != "1", reason="needs a Docker engine; set EXTPROC_DOCKER=1"),
]

ROOT = Path(__file__).parents[2]
ENGINES = ("engine-1", "engine-2")
REQUEST = {"model": "llama-3-8b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
_LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Message
    document: Any


def call(url: str, document: object = None, **headers: str) -> Reply:
    """GET, or POST where there is a document. Any status is an answer."""
    data = None if document is None else json.dumps(document).encode()
    sent = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        answer = _LOOPBACK.open(urllib.request.Request(url, data, sent), timeout=20)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return Reply(answer.status, answer.headers, json.loads(answer.read()))


class Stack:
    """The compose project, on free ports of this machine."""

    def __init__(self, compose: Any, gateway: str, admin: str) -> None:
        self.compose = compose
        self.gateway = gateway
        self.admin = admin

    def ask(self, priority: str = "P1") -> Reply:
        return call(f"{self.gateway}/v1/chat/completions", REQUEST, x_priority=priority, x_request_id=f"r-{priority}")

    def ask_until(self, status: int, priority: str = "P1", within_s: float = 10.0) -> Reply:
        """Requests, one after the other, until one is answered so; the last answer if none was in time."""
        end = monotonic() + within_s
        reply = self.ask(priority)
        while reply.status != status and monotonic() < end:
            reply = self.ask(priority)
        return reply

    def force_kv_usage(self, usage: float | None) -> None:
        """Makes both fake engines report this usage; None: the truth again."""
        script = (
            "import sys, urllib.request as r; "
            "r.build_opener(r.ProxyHandler({})).open(r.Request('http://127.0.0.1:8000/engine/control', "
            "sys.argv[1].encode(), {'content-type': 'application/json'}), timeout=5)"
        )
        for engine in ENGINES:
            self.compose.exec_in_container(["python3", "-c", script, json.dumps({"kv_usage": usage})], engine)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    from testcontainers.compose import DockerCompose

    gateway, admin = free_port(), free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPOSE_PROJECT_NAME", f"extproc-test-{os.getpid()}")
        patch.setenv("GATEWAY_PORT", str(gateway))
        patch.setenv("ADMIN_PORT", str(admin))
        compose = DockerCompose(ROOT, build=True, wait=True)
        try:
            compose.start()
            yield Stack(compose, f"http://127.0.0.1:{gateway}", f"http://127.0.0.1:{admin}")
        finally:
            compose.stop()


def test_a_request_is_served_by_an_engine(stack: Stack) -> None:
    reply = stack.ask("P0")
    assert reply.status == 200
    assert reply.document["choices"][0]["message"]["role"] == "assistant"
    assert reply.document["usage"]["completion_tokens"] > 0


def test_both_replicas_share_the_pool_and_see_both_engines(stack: Stack) -> None:
    for _ in range(4):
        stack.ask("P0")
    ready = call(f"{stack.admin}/readyz")
    assert ready.status == 200
    assert ready.document["components"]["engines"]["llama"]["detail"] in (
        "2 reporting to the leader",
        "2 of 2 reporting",
    )
    (pool,) = call(f"{stack.admin}/state").document["pools"]
    assert (pool["share"]["replicas"], pool["share"]["cut_off"]) == (2, False)
    assert pool["priorities"]["P0"]["requests"]["admitted"] >= 1


def test_an_overloaded_pool_refuses_with_429_and_says_when_to_come_back(stack: Stack) -> None:
    stack.force_kv_usage(0.95)
    try:
        reply = stack.ask_until(429, "P2")
        assert reply.status == 429
        assert reply.headers["x-extproc-reason"] == "overload"
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert reply.headers["content-type"] == "application/json"
        assert reply.document["error"]["type"] == "rate_limit_error"
        assert reply.document["error"]["code"] == "rate_limit_exceeded"
    finally:
        stack.force_kv_usage(None)
    assert stack.ask_until(200).status == 200, "it recovers by itself"


def test_only_the_gateway_and_the_admin_port_are_published_and_on_loopback(stack: Stack) -> None:
    published = {
        (container.Service, publisher.URL, publisher.TargetPort)
        for container in stack.compose.get_containers()
        for publisher in container.Publishers
        if publisher.PublishedPort
    }
    assert published == {("envoy", "127.0.0.1", 10000), ("extproc", "127.0.0.1", 8080)}


@pytest.mark.parametrize("service", ["extproc", "extproc-2", "scraper", *ENGINES])
def test_our_containers_do_not_run_as_root(stack: Stack, service: str) -> None:
    uid, _, _ = stack.compose.exec_in_container(["python3", "-c", "import os; print(os.getuid())"], service)
    assert int(uid) == 10001
