"""The demo's Envoy runs the users' file: only addresses change, or the ext_proc filter goes, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from extproc.files import envoy_yaml
from extproc.sim.envoy_file import render_envoy
from extproc.sim.stack import render_policy

EXT_PROC = "envoy.filters.http.ext_proc"


@pytest.fixture(scope="module")
def shipped() -> str:
    return envoy_yaml()


def rendered(text: str, **changes: Any) -> dict[str, Any]:
    places: dict[str, Any] = {
        "listen": "127.0.0.1:1000",
        "admin": "127.0.0.1:1001",
        "extproc": ("127.0.0.1:1002",),
        "engines": ["127.0.0.1:1003", "127.0.0.1:1004", "127.0.0.1:1005"],
    }
    config: dict[str, Any] = yaml.safe_load(render_envoy(text, **(places | changes)))
    return config


def cluster(config: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in config["static_resources"]["clusters"] if c["name"] == name)
    return found


def endpoints(config: dict[str, Any], name: str) -> list[Any]:
    [locality] = cluster(config, name)["load_assignment"]["endpoints"]
    return [e["endpoint"]["address"] for e in locality["lb_endpoints"]]


def without_addresses(config: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(config)
    config["admin"].pop("address")
    for listener in config["static_resources"]["listeners"]:
        listener.pop("address")
    for one in config["static_resources"]["clusters"]:
        one["load_assignment"]["endpoints"] = []
    return config


def test_only_addresses_change(shipped: str) -> None:
    assert without_addresses(rendered(shipped)) == without_addresses(yaml.safe_load(shipped))


def test_every_address_is_the_one_asked_for(shipped: str) -> None:
    config = rendered(shipped)
    assert endpoints(config, "extproc") == [{"socket_address": {"address": "127.0.0.1", "port_value": 1002}}]
    assert [e["socket_address"]["port_value"] for e in endpoints(config, "engines")] == [1003, 1004, 1005]
    assert config["admin"]["address"]["socket_address"]["port_value"] == 1001
    [gateway] = [one for one in config["static_resources"]["listeners"] if one["name"] == "gateway"]
    assert gateway["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 1000}


def test_a_socket_file_needs_no_name_resolution(shipped: str) -> None:
    config = rendered(shipped, extproc=("unix:/run/extproc.sock",))
    assert endpoints(config, "extproc") == [{"pipe": {"path": "/run/extproc.sock"}}]
    assert cluster(config, "extproc")["type"] == "STATIC"


def test_unprotected_is_the_same_but_for_the_filter_and_the_backstop(shipped: str) -> None:
    bare, full = rendered(shipped, extproc=None), rendered(shipped)
    assert EXT_PROC not in yaml.safe_dump(bare)
    manager = full["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["http_filters"] = [f for f in manager["http_filters"] if f["name"] != EXT_PROC]
    full["static_resources"]["clusters"].remove(cluster(full, "extproc"))
    del cluster(full, "engines")["circuit_breakers"]
    assert bare == full


@pytest.mark.parametrize(("lost", "message"), [("gateway", "named gateway"), ("engines", "named engines")])
def test_a_file_without_what_must_change_is_refused(shipped: str, lost: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rendered(shipped.replace(f"name: {lost}", "name: other"))


def test_a_file_without_the_filter_cannot_be_unprotected(shipped: str) -> None:
    with pytest.raises(ValueError, match="no filter named"):
        rendered(shipped.replace(EXT_PROC, "envoy.filters.http.other"), extproc=None)


def test_a_policy_gets_the_engines_only_where_it_names_none() -> None:
    assert yaml.safe_load(render_policy("", ("a:1",)))["pools"] == [{"name": "default", "engines": {"static": ["a:1"]}}]
    text = "pools: [{name: x, engines: {static: ['b:2']}}, {name: y, engines: {scrapeInterval: 50ms}}]"
    x, y = yaml.safe_load(render_policy(text, ("a:1",)))["pools"]
    assert x["engines"]["static"] == ["b:2"]
    assert y["engines"] == {"scrapeInterval": "50ms", "static": ["a:1"]}
