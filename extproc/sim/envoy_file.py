"""The shipped Envoy file, bent to this machine: other addresses, or without the protection. All else is what users run."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

EXT_PROC = "envoy.filters.http.ext_proc"
GATEWAY = "gateway"


def render_envoy(
    yaml_text: str, *, listen: str, admin: str, extproc: Sequence[str] | None, engines: Sequence[str]
) -> str:
    """The same configuration at other addresses (`host:port`; those of `extproc`, one per replica, may be `unix:PATH`).

    `extproc` None takes out what protects: the ext_proc filter, its cluster (whose health checks would find nobody) and
    the backstop, the low circuit breaker of the engines that stands in for an absent extproc; Envoy's own default of
    1024 requests remains. Raises ValueError where the file lacks what must be changed: silence there would mean a run
    against something else.
    """
    config = yaml.safe_load(yaml_text)
    resources = config["static_resources"]
    config["admin"]["address"] = _address(admin)
    _named(resources["listeners"], GATEWAY)["address"] = _address(listen)
    _set_endpoints(_named(resources["clusters"], "engines"), engines)
    if extproc is None:
        _remove_filter(config)
        _named(resources["clusters"], "engines").pop("circuit_breakers", None)
        resources["clusters"] = [c for c in resources["clusters"] if c["name"] != "extproc"]
    else:
        _set_endpoints(_named(resources["clusters"], "extproc"), extproc)
    return yaml.safe_dump(config, sort_keys=False)


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for item in items:
        if item.get("name") == name:
            return item
    raise ValueError(f"the Envoy file has no listener or cluster named {name}")


def _address(where: str) -> dict[str, Any]:
    if where.startswith("unix:"):
        return {"pipe": {"path": where.removeprefix("unix:")}}
    host, _, port = where.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _set_endpoints(cluster: dict[str, Any], addresses: Sequence[str]) -> None:
    """One endpoint per address, each with whatever else the file's first endpoint says."""
    localities = cluster["load_assignment"]["endpoints"]
    model = localities[0]["lb_endpoints"][0]
    endpoints = [copy.deepcopy(model) for _ in addresses]
    for endpoint, address in zip(endpoints, addresses, strict=True):
        endpoint["endpoint"]["address"] = _address(address)
    cluster["load_assignment"]["endpoints"] = [{**localities[0], "lb_endpoints": endpoints}]
    if any(address.startswith("unix:") for address in addresses):
        cluster["type"] = "STATIC"  # a socket's path is no name to resolve


def _remove_filter(config: dict[str, Any]) -> None:
    found = False
    for mapping in _mappings(config):
        filters = mapping.get("http_filters")
        if isinstance(filters, list):
            kept = [f for f in filters if f.get("name") != EXT_PROC]
            found = found or len(kept) < len(filters)
            mapping["http_filters"] = kept
        per_route = mapping.get("typed_per_filter_config")
        if isinstance(per_route, dict):
            per_route.pop(EXT_PROC, None)
    if not found:
        raise ValueError(f"the Envoy file has no filter named {EXT_PROC}")


def _mappings(node: object) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _mappings(value)
    elif isinstance(node, list):
        for value in node:
            yield from _mappings(value)
