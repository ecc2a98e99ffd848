"""`extproc check` on Envoy files: the shipped ones are right, and each thing that can be broken is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.check import FileKind, check_files, render
from extproc.files import envoy_yaml, shipped

SNIPPETS = ("envoy/ext_proc_filter.yaml", "envoy/istio/envoyfilter.yaml", "envoy/envoy-gateway/patch-policy.yaml")
HCM = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config"
EXT_PROC = f"{HCM}.http_filters[1].typed_config"
ROUTE = f"{HCM}.route_config.virtual_hosts[0].routes[0].route"
EXTPROC_CLUSTER, ENGINES = "static_resources.clusters[0]", "static_resources.clusters[1]"
THRESHOLD = "circuit_breakers.thresholds[0]"
POLICY = """\
queues: [{priority: P2, name: slow, maxQueueSize: 3000, timeout: 60s}]
pools: [{engines: {static: ["engine-1:8000", "engine-2:8000"]}}]
trust: {headers: [x-priority]}
"""

Envoy = dict[str, Any]
SHIPPED: Envoy = yaml.safe_load(envoy_yaml())
Change = Callable[[Envoy], object]


def at(config: Any, path: str) -> Any:
    """The value at a path such as `a.b[0].c`."""
    for step in path.replace("[", ".").replace("]", "").split("."):
        config = config[int(step)] if step.isdigit() else config[step]
    return config


def put(path: str, **values: object) -> Change:
    """Sets keys of the mapping at `path`; None takes a key away."""

    def change(config: Envoy) -> None:
        mapping = at(config, path)
        for key, value in values.items():
            if value is None:
                mapping.pop(key, None)
            else:
                mapping[key] = value

    return change


def unchanged(config: Envoy) -> None:
    """The shipped configuration as it is."""


def checked(folder: Path, change: Change, policy: str | None) -> list[str]:
    """What is said of the shipped configuration after `change`, as `severity: path: message`."""
    config = copy.deepcopy(SHIPPED)
    change(config)
    files = [folder / "envoy.json"]
    files[0].write_text(json.dumps(config))
    if policy is not None:
        files.append(folder / "policy.yaml")
        files[1].write_text(policy)
    report = check_files([str(file) for file in files])[0]
    assert report.kind is FileKind.ENVOY
    errors = [f"error: {problem}" for problem in report.errors]
    return errors + [f"warning: {problem}" for problem in report.warnings]


@pytest.mark.parametrize("policy", [None, "{}", POLICY])
def test_the_shipped_configuration_is_right(tmp_path: Path, policy: str | None) -> None:
    assert checked(tmp_path, unchanged, policy) == []


@pytest.mark.parametrize("name", SNIPPETS)
def test_the_shipped_snippets_are_right(name: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    (report, _) = check_files([str(shipped(name)), str(policy)])
    assert (report.kind, report.errors, report.warnings) == (FileKind.ENVOY, (), ())


BROKEN: list[tuple[Change, str]] = [
    (
        put(f"{EXT_PROC}.grpc_service", envoy_grpc=None),
        f"error: {EXT_PROC}.grpc_service.envoy_grpc.cluster_name: missing; expected the name of extproc's cluster",
    ),
    (
        put(f"{EXT_PROC}.grpc_service.envoy_grpc", cluster_name="exproc"),
        f"error: {EXT_PROC}.grpc_service.envoy_grpc.cluster_name: expected the name of a cluster in this file; "
        "got 'exproc'",
    ),
    (
        put(f"{EXT_PROC}.grpc_service", timeout="30s"),
        f"error: {EXT_PROC}.grpc_service.timeout: expected 0s; got 30s: the stream lives as long as the response",
    ),
    (
        put(f"{EXT_PROC}.processing_mode", request_body_mode="STREAMED"),
        f"error: {EXT_PROC}.processing_mode.request_body_mode: expected NONE or BUFFERED; got STREAMED: "
        "with retries Envoy may send such a body twice",
    ),
    (
        put(f"{EXT_PROC}.processing_mode", response_body_mode="BUFFERED"),
        f"error: {EXT_PROC}.processing_mode.response_body_mode: expected NONE; got BUFFERED: "
        "a streamed answer would arrive all at once",
    ),
    (
        put(f"{EXT_PROC}.processing_mode", response_body_mode="STREAMED"),
        f"warning: {EXT_PROC}.processing_mode.response_body_mode: expected NONE; got STREAMED: "
        "each token would pass through extproc",
    ),
    (
        put(f"{EXT_PROC}.processing_mode", request_header_mode="SKIP"),
        f"error: {EXT_PROC}.processing_mode.request_header_mode: expected SEND; got SKIP: no request would be seen",
    ),
    (
        put(f"{EXT_PROC}.processing_mode", response_header_mode="SKIP"),
        f"warning: {EXT_PROC}.processing_mode.response_header_mode: expected SEND; got SKIP: "
        "which engine answered, and with which status, stays unknown",
    ),
    (
        put(EXT_PROC, allow_mode_override=None),
        f"warning: {EXT_PROC}.allow_mode_override: expected true; without it no request body is read, "
        "and costs are guessed from its length",
    ),
    (
        put(EXT_PROC, message_timeout="0.2s"),
        f"error: {EXT_PROC}.message_timeout: expected 2s, as the policy's envoy.messageTimeout says; got 200ms",
    ),
    (
        put(EXT_PROC, max_message_timeout="500s"),
        f"error: {EXT_PROC}.max_message_timeout: expected 300s, as the policy's envoy.maxMessageTimeout says; got 500s",
    ),
    (
        put(EXT_PROC, observability_mode=True),
        f"error: {EXT_PROC}.observability_mode: expected false; got true: no decision would be enforced",
    ),
    (
        put(EXT_PROC, disable_immediate_response=True),
        f"error: {EXT_PROC}.disable_immediate_response: expected false; got true: no request could be refused",
    ),
    (
        put(f"{EXT_PROC}.mutation_rules", disallow_all=True),
        f"error: {EXT_PROC}.mutation_rules.disallow_all: expected false; got true: "
        "refusals would lose their Retry-After",
    ),
    (
        put(EXT_PROC, failure_mode_allow=False),
        f"warning: {EXT_PROC}.failure_mode_allow: expected true, with a circuit breaker on the engines' cluster; "
        "else requests fail while extproc restarts",
    ),
    (
        put(EXT_PROC, response_attributes=None),
        f"warning: {EXT_PROC}.response_attributes: expected [upstream.address]; without it extproc cannot tell "
        "which engine answered",
    ),
    (
        put(EXTPROC_CLUSTER, typed_extension_protocol_options=None),
        f"error: {EXTPROC_CLUSTER}.typed_extension_protocol_options: expected explicit_http_config with "
        "http2_protocol_options: gRPC needs HTTP/2",
    ),
    (
        put(f"{EXTPROC_CLUSTER}.{THRESHOLD}", max_requests=1024),
        f"error: {EXTPROC_CLUSTER}.{THRESHOLD}.max_requests: expected far above 1024, such as 100000; got 1024: "
        "beyond it Envoy does not ask",
    ),
    (
        put(f"{EXTPROC_CLUSTER}.{THRESHOLD}", max_pending_requests=None),
        f"error: {EXTPROC_CLUSTER}.{THRESHOLD}.max_pending_requests: expected far above 1024, such as 100000; "
        "got nothing (1024): beyond it Envoy does not ask",
    ),
    (
        put(f"{EXTPROC_CLUSTER}.{THRESHOLD}", max_connections=5000),
        f"warning: {EXTPROC_CLUSTER}.{THRESHOLD}.max_connections: expected at least 10240; got 5000",
    ),
    (
        put(EXTPROC_CLUSTER, health_checks=[{"http_health_check": {"path": "/"}}]),
        f"warning: {EXTPROC_CLUSTER}.health_checks: expected an active check of kind grpc_health_check, "
        "or a draining replica is not noticed",
    ),
    (
        put(EXTPROC_CLUSTER, close_connections_on_host_health_failure=True),
        f"error: {EXTPROC_CLUSTER}.close_connections_on_host_health_failure: expected false; got true: "
        "a draining replica would lose the streams of its running requests",
    ),
    (
        put(f"{ENGINES}.{THRESHOLD}", max_requests=None),
        f"error: {ENGINES}.{THRESHOLD}.max_requests: missing; expected a limit: with failure_mode_allow it is all that "
        "protects the engines without extproc",
    ),
    (
        put(HCM, local_reply_config=None),
        f"warning: {HCM}.local_reply_config.mappers: expected a mapper with response_flag_filter flags [UO], "
        "status_code 429 and a retry-after header, for the circuit breaker's overflow",
    ),
    (
        put(f"{HCM}.local_reply_config.mappers[0]", headers_to_add=None),
        f"warning: {HCM}.local_reply_config.mappers: expected a mapper with response_flag_filter flags [UO], "
        "status_code 429 and a retry-after header, for the circuit breaker's overflow",
    ),
    (
        put(HCM, stream_idle_timeout="60s"),
        f"error: {HCM}.stream_idle_timeout: expected longer than the longest wait (60s), or 0s; got 60s: "
        "it counts while a request waits",
    ),
    (
        put(HCM, request_timeout="30s"),
        f"error: {HCM}.request_timeout: expected longer than the longest wait (60s), or 0s; got 30s: "
        "it counts while a request waits",
    ),
    (
        put(HCM, common_http_protocol_options={"max_stream_duration": "600s"}),
        f"warning: {HCM}.common_http_protocol_options.max_stream_duration: expected nothing; got 600s: "
        "answers that take longer are cut",
    ),
    (put(ROUTE, timeout=None), f"error: {ROUTE}.timeout: missing (15s); expected 0s: longer answers would be cut"),
    (put(ROUTE, timeout="60s"), f"warning: {ROUTE}.timeout: expected 0s; got 60s: longer answers are cut"),
    (
        put(ROUTE, idle_timeout="5s"),
        f"error: {ROUTE}.idle_timeout: expected longer than the longest wait (60s), or 0s; got 5s: "
        "it counts while a request waits",
    ),
    (
        put(ROUTE, retry_policy={"retry_on": "5xx"}),
        f"warning: {ROUTE}.retry_policy: expected nothing: under overload each retry adds load, "
        "and Envoy may send a body that it buffered for ext_proc twice",
    ),
    (
        put("static_resources.listeners[0]", per_connection_buffer_limit_bytes=32768),
        "error: static_resources.listeners[0].per_connection_buffer_limit_bytes: expected at least 1048576 "
        "(1MiB, the policy's body.maxBytes); got 32768: larger bodies would be answered 413",
    ),
    (
        lambda config: at(config, f"{HCM}.http_filters").append(
            {
                "name": "limit",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit"},
            }
        ),
        f"warning: {HCM}.http_filters[4].typed_config.timeout: expected 0.1s to 0.25s; got nothing (0.02s): "
        "later answers are ignored and the request passes",
    ),
    (
        lambda config: at(config, f"{HCM}.http_filters[0].typed_config.mutations.request_mutations").append(
            {"remove": "X-Priority"}
        ),
        f"warning: {HCM}.http_filters[0].typed_config.mutations.request_mutations[7]: removes x-priority, "
        "which the policy's trust.headers believes",
    ),
]


@pytest.mark.parametrize(("change", "finding"), BROKEN, ids=[finding.split(":")[1].strip() for _, finding in BROKEN])
def test_a_broken_configuration_gets_exactly_this_finding(tmp_path: Path, change: Change, finding: str) -> None:
    assert checked(tmp_path, change, POLICY) == [finding]


def test_trailers_may_be_left_to_the_override_but_not_without_it(tmp_path: Path) -> None:
    skip = put(f"{EXT_PROC}.processing_mode", response_trailer_mode="SKIP")
    assert checked(tmp_path, skip, POLICY) == []

    def both(config: Envoy) -> None:
        skip(config)
        put(EXT_PROC, allow_mode_override=False)(config)

    assert checked(tmp_path, both, POLICY)[0] == (
        f"error: {EXT_PROC}.processing_mode.response_trailer_mode: expected SEND (or allow_mode_override: true); "
        "got SKIP: the stream would end before the response does, and running requests would not be counted"
    )


def test_without_max_message_timeout_nobody_could_queue(tmp_path: Path) -> None:
    assert checked(tmp_path, put(EXT_PROC, max_message_timeout=None), None) == [
        f"error: {EXT_PROC}.max_message_timeout: expected longer than message_timeout, such as 300s; got nothing (0s): "
        "nobody could queue"
    ]


def test_without_a_policy_a_wait_lasts_as_long_as_the_default_queues_allow(tmp_path: Path) -> None:
    assert checked(tmp_path, put(HCM, stream_idle_timeout=None), None) == []
    assert checked(tmp_path, put(HCM, stream_idle_timeout="60s"), None) == [
        f"error: {HCM}.stream_idle_timeout: expected longer than the longest wait (60s), or 0s; got 60s: "
        "it counts while a request waits"
    ]


@pytest.mark.parametrize(
    "pool",
    [
        "fixed: {limit: {requests: 700}}",
        "fused: {sequencesPerEngine: 350}, engines: {static: ['a:1', 'b:1']}",
        "fixed: {sequencesPerEngine: 350}, engines: {static: ['a:1', 'b:1']}",
        "controllers: [fixed, fused], fixed: {limit: {requests: 900}}, fused: {sequencesPerEngine: 700}, "
        "engines: {static: ['a:1']}",
    ],
)
def test_a_backstop_below_what_the_policy_may_admit(tmp_path: Path, pool: str) -> None:
    policy = f"pools: [{{{pool}}}]"
    [finding] = [f for f in checked(tmp_path, unchanged, policy) if "max_requests" in f]
    assert finding.endswith(
        "expected at least 700, the requests that the policy may admit; got 600: "
        "Envoy would refuse what extproc let through, whatever its priority"
    )


def two_clusters(config: Envoy) -> None:
    """The engines' cluster, and another like it with an engine of its own and a route to it."""
    clusters, routes = (
        at(config, "static_resources.clusters"),
        at(config, f"{HCM}.route_config.virtual_hosts[0].routes"),
    )
    engines = next(cluster for cluster in clusters if cluster["name"] == "engines")
    large = copy.deepcopy(engines)
    large["name"] = "large"
    large["load_assignment"]["endpoints"] = [endpoint("large-1")]
    clusters.append(large)
    match = {"prefix": "/", "headers": [{"name": "x-model-pool", "string_match": {"exact": "large"}}]}
    routes.insert(0, {"match": match, "route": {**routes[-1]["route"], "cluster": "large"}})


def endpoint(host: str) -> dict[str, Any]:
    return {"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": host, "port_value": 8000}}}}]}


def test_each_of_several_pools_has_a_backstop_of_its_own(tmp_path: Path) -> None:
    chat = "{name: chat, engines: {static: ['engine-1:8000', 'engine-2:8000']}}"
    large = "{name: large, engines: {static: ['large-1:8000']}, fused: {sequencesPerEngine: 700}}"
    rule = "classification: [{when: {header: {x-model-pool: large}}, pool: large}]"
    [finding] = [f for f in checked(tmp_path, two_clusters, f"pools: [{chat}, {large}]\n{rule}") if "max_requests" in f]
    assert "expected at least 700, " in finding
    assert finding.startswith("warning: static_resources.clusters[")
    assert checked(tmp_path, two_clusters, f"pools: [{chat}, {large.replace('700', '64')}]\n{rule}") == []


def test_a_cluster_that_mixes_the_engines_of_two_pools(tmp_path: Path) -> None:
    pools = "pools: [{name: a, models: [a], engines: {static: ['engine-1:8000']}}, {name: b, engines: {static: ['engine-2:8000']}}]"
    [finding] = checked(tmp_path, unchanged, pools)
    assert finding.endswith("has engines of the pools a and b: requests of each would go to engines of the others")


def test_queues_longer_than_the_extproc_cluster_takes(tmp_path: Path) -> None:
    found = checked(tmp_path, put(f"{EXTPROC_CLUSTER}.{THRESHOLD}", max_requests=3000), POLICY)
    assert found[0] == (
        f"error: {EXTPROC_CLUSTER}.{THRESHOLD}.max_requests: expected more than the 3700 requests that the policy's "
        "queues hold; got 3000"
    )


def test_queue_timeouts_longer_than_envoys_patience_are_a_warning_on_both_sides(tmp_path: Path) -> None:
    envoy, policy = tmp_path / "envoy.yaml", tmp_path / "policy.yaml"
    config = yaml.safe_load(envoy_yaml())
    at(config, EXT_PROC)["max_message_timeout"] = "30s"
    envoy.write_text(yaml.safe_dump(config))
    policy.write_text(POLICY + "envoy: {maxMessageTimeout: 30s}\n")
    of_envoy, of_policy = check_files([str(envoy), str(policy)])
    assert [str(problem) for problem in of_envoy.warnings] == [
        f"{EXT_PROC}.max_message_timeout: expected at least 61s, the longest queue timeout and 1s; got 30s: "
        "waits end early"
    ]
    assert [str(problem) for problem in of_policy.warnings] == [
        "queues[P2].timeout: 60s is longer than envoy.maxMessageTimeout - 1s: waits end after 29s"
    ]
    assert of_envoy.ok
    assert of_policy.ok


def test_headers_must_be_stripped_before_ext_proc(tmp_path: Path) -> None:
    wanted = [
        f"warning: {HCM}.http_filters[{{i}}]: expected a header_mutation filter before this one that removes {name}"
        for name in ("x-vllm-priority", "x-extproc-*")
    ]

    def swap(config: Envoy) -> None:
        filters = at(config, f"{HCM}.http_filters")
        filters[0], filters[1] = filters[1], filters[0]

    assert checked(tmp_path, swap, POLICY) == [line.format(i=0) for line in wanted]
    assert checked(tmp_path, lambda config: at(config, f"{HCM}.http_filters").pop(0), POLICY) == [
        line.format(i=0) for line in wanted
    ]


def test_engines_of_policy_and_envoy_are_compared(tmp_path: Path) -> None:
    place = f"warning: {ENGINES}.load_assignment"
    assert checked(tmp_path, unchanged, POLICY.replace("engine-2", "engine-3")) == [
        f"{place}: 'engine-2:8000' is not among the policy's engines: it gets requests, but its metrics are not read",
        f"{place}: 'engine-3:8000' is among the policy's engines, but gets no requests here",
    ]


def test_routes_that_switch_extproc_off_are_left_alone(tmp_path: Path) -> None:
    def change(config: Envoy) -> None:
        per_route = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
        at(config, f"{HCM}.route_config.virtual_hosts[0].routes").insert(
            0,
            {
                "match": {"prefix": "/static"},
                "route": {"cluster": "files", "timeout": "5s"},
                "typed_per_filter_config": {"envoy.filters.http.ext_proc": {"@type": per_route, "disabled": True}},
            },
        )

    assert checked(tmp_path, change, POLICY) == []


def test_json_with_camel_case_keys_is_the_same_configuration(tmp_path: Path) -> None:
    def camel(value: Any) -> Any:
        if isinstance(value, dict):
            return {_camel(key): camel(item) for key, item in value.items()}
        return [camel(item) for item in value] if isinstance(value, list) else value

    config = yaml.safe_load(envoy_yaml())
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(camel(config), indent="\t"))
    (report,) = check_files([str(file)])
    assert (report.kind, report.errors, report.warnings) == (FileKind.ENVOY, (), ())
    del at(config, EXT_PROC)["response_attributes"]
    file.write_text(json.dumps(camel(config)))
    (report,) = check_files([str(file)])
    assert [problem.path.rpartition(".")[2] for problem in report.warnings] == ["response_attributes"]


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(part.capitalize() for part in rest) if key.islower() and "." not in key else key


def test_what_is_printed(tmp_path: Path) -> None:
    good, bad, odd, empty = (tmp_path / name for name in ("envoy.yaml", "policy.yaml", "odd.yaml", "empty.yaml"))
    good.write_text(
        envoy_yaml().replace("timeout: 0s\n                            # No retry", "timeout: 9s\n# No retry")
    )
    bad.write_text("queues:\n  - {priority: 0, name: a, maxQueueSize: 1, timeout: fast}\n")
    odd.write_text("hello: world\n")
    empty.write_text("")
    line = good.read_text().splitlines().index("                            timeout: 9s") + 1
    reports = check_files([str(good), str(bad), str(odd), str(empty), str(tmp_path / "none.yaml")])
    assert render(reports).splitlines() == [
        f"{good}:{line}: warning: {ROUTE}.timeout: expected 0s; got 9s: longer answers are cut",
        f"{good}: envoy ok",
        f"{bad}:2: error: queues[0].timeout: expected a duration such as 250ms, 8s, 1.5m; got 'fast'",
        f"{odd}: error: neither a policy (queues, pools, ...) nor an Envoy configuration "
        "(static_resources, http_filters, ...)",
        f"{empty}: error: empty file",
        f"{tmp_path}/none.yaml: error: cannot be read: No such file or directory",
    ]
    assert [report.ok for report in reports] == [True, False, False, False, False]


def test_a_configuration_without_extproc_is_an_error(tmp_path: Path) -> None:
    assert checked(tmp_path, lambda config: at(config, f"{HCM}.http_filters").pop(1), None) == [
        "error: no ext_proc filter: extproc would not be asked"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "static_resources: 3",
        "static_resources: {listeners: [3, null, {filter_chains: 1}], clusters: [null, 7, {name: 3}]}",
        "http_filters: {a: b}",
        "static_resources: {clusters: [{name: x, connect_timeout: [], load_assignment: {endpoints: 5}}]}",
    ],
)
def test_nonsense_is_answered_not_crashed_on(text: str, tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    file.write_text(text)
    (report,) = check_files([str(file)])
    assert [str(problem) for problem in report.errors] == ["no ext_proc filter: extproc would not be asked"]
