"""A cluster of three real servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support import valkey
from tests.support.valkey import Server

SLOTS = 16384


@contextmanager
def joined(folder: Path, *options: str, authority: Path | None = None) -> Iterator[list[Server]]:
    """Ready to serve. `authority`: they speak TLS."""
    own = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", *options)
    with ExitStack() as stack:
        nodes = []
        for i in range(3):
            port = valkey.low_port()
            nodes.append(stack.enter_context(valkey.running(folder / str(i), *own, port=port, authority=authority)))
        for i, node in enumerate(nodes):
            with node.client() as client:
                slots = [str(slot) for slot in range(i * SLOTS // 3, (i + 1) * SLOTS // 3)]
                client.execute_command("CLUSTER", "ADDSLOTS", *slots)
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
        valkey.until(lambda: all(_ready(node) for node in nodes))
        yield nodes


def _ready(node: Server) -> bool:
    with node.client() as client:
        found = client.execute_command("CLUSTER", "INFO")
    text = found.decode() if isinstance(found, bytes) else str(found)
    return "cluster_state:ok" in text and "cluster_known_nodes:3" in text
