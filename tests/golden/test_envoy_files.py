"""The shipped Envoy files: accepted by the real binary, and the snippets the same as the whole."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.files import envoy_yaml, shipped
from extproc.sim.stack import envoy_binary

WHOLE: dict[str, Any] = yaml.safe_load(envoy_yaml())
MANAGER: dict[str, Any] = WHOLE["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
FILTERS = MANAGER["http_filters"][:2]


def validate(config: dict[str, Any], folder: Path) -> str:
    """What `envoy --mode validate` says, "OK" where it accepts."""
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [envoy_binary(), "--mode", "validate", "-c", str(file), "--log-level", "error"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return "OK" if done.returncode == 0 else done.stderr


def cluster(name: str, config: dict[str, Any] = WHOLE) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in config["static_resources"]["clusters"] if c["name"] == name)
    return found


def without_address(extproc: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in extproc.items() if key != "load_assignment"}


def with_cluster(extproc: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(WHOLE)
    config["static_resources"]["clusters"][0] = extproc
    return config


def test_envoy_accepts_the_whole(tmp_path: Path) -> None:
    assert validate(WHOLE, tmp_path) == "OK"


def test_envoy_would_not_accept_anything(tmp_path: Path) -> None:
    config = copy.deepcopy(WHOLE)
    cluster("engines", config)["circuit_breakers"]["thresholds"][0]["max_request"] = 1
    assert "max_request" in validate(config, tmp_path)


def test_the_names_that_other_code_relies_on() -> None:
    resources = WHOLE["static_resources"]
    assert [listener["name"] for listener in resources["listeners"]] == ["gateway"]
    assert [c["name"] for c in resources["clusters"]] == ["extproc", "engines"]
    assert MANAGER["stat_prefix"] == "gateway"
    assert WHOLE["admin"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 9901}


def test_the_snippet_is_the_whole_ones_filters_and_cluster(tmp_path: Path) -> None:
    snippet = yaml.safe_load(shipped("envoy/ext_proc_filter.yaml").read_text())
    assert snippet == {"http_filters": FILTERS, "clusters": [cluster("extproc")]}
    assert validate(with_cluster(snippet["clusters"][0]), tmp_path) == "OK"


def test_the_istio_patches_are_the_whole_ones_parts(tmp_path: Path) -> None:
    patches, rule = yaml.safe_load_all(shipped("envoy/istio/envoyfilter.yaml").read_text())
    by_place: dict[str, list[Any]] = {}
    for patch in patches["spec"]["configPatches"]:
        by_place.setdefault(patch["applyTo"], []).append(patch["patch"]["value"])
    assert by_place["HTTP_FILTER"] == FILTERS
    (manager,) = (value["typed_config"] for value in by_place["NETWORK_FILTER"])
    assert manager == {key: MANAGER[key] for key in manager}
    assert {"local_reply_config", "stream_idle_timeout"} <= manager.keys()
    (listener,) = by_place["LISTENER"]
    assert listener == {key: WHOLE["static_resources"]["listeners"][0][key] for key in listener}
    (extproc,) = by_place["CLUSTER"]
    assert without_address(extproc) == without_address(cluster("extproc"))
    assert validate(with_cluster(extproc), tmp_path) == "OK"
    assert rule["kind"] == "DestinationRule"
    limit = cluster("engines")["circuit_breakers"]["thresholds"][0]["max_requests"]
    assert rule["spec"]["trafficPolicy"]["connectionPool"]["http"]["http2MaxRequests"] == limit


def test_the_envoy_gateway_patches_make_the_whole_ones_parts(tmp_path: Path) -> None:
    patches = yaml.safe_load(shipped("envoy/envoy-gateway/patch-policy.yaml").read_text())["spec"]["jsonPatches"]
    listener: dict[str, Any] = {
        "default_filter_chain": {"filters": [{"typed_config": {"http_filters": [{"name": "router"}]}}]}
    }
    for patch in patches[:-1]:
        assert (patch["type"].rpartition(".")[2], patch["operation"]["op"]) == ("Listener", "add")
        add(listener, patch["operation"]["path"], patch["operation"]["value"])
    manager = listener["default_filter_chain"]["filters"][0]["typed_config"]
    assert manager.pop("http_filters") == [*FILTERS, {"name": "router"}]
    assert manager == {key: MANAGER[key] for key in manager}
    assert {"local_reply_config", "stream_idle_timeout"} <= manager.keys()
    assert listener["per_connection_buffer_limit_bytes"] == 4194304
    last = patches[-1]
    assert (last["type"].rpartition(".")[2], last["operation"]["path"]) == ("Cluster", "")
    extproc = last["operation"]["value"]
    assert without_address(extproc) == without_address(cluster("extproc"))
    assert validate(with_cluster(extproc), tmp_path) == "OK"


def add(document: Any, pointer: str, value: Any) -> None:
    """RFC 6902 `add`: into a list before the index, into a mapping under the key."""
    *steps, last = pointer.lstrip("/").split("/")
    for step in steps:
        document = document[int(step)] if isinstance(document, list) else document[step]
    if isinstance(document, list):
        document.insert(int(last), value)
    else:
        document[last] = value


@pytest.mark.parametrize("name", ["envoy/istio/envoyfilter.yaml", "envoy/envoy-gateway/patch-policy.yaml"])
def test_a_mesh_file_says_what_it_was_not_tried_with(name: str) -> None:
    assert "Not validated" in shipped(name).read_text()
