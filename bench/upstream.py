"""The upstream of the benchmark: an Envoy that answers by itself, so it is never what limits the one that is measured.

It reads the whole request body first, as an engine does, and shows the metrics of an idle vLLM engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from extproc.engines.vllm import Vllm
from extproc.sim.engine_spec import EngineSpec
from extproc.sim.engine_stats import EngineStats, Gauges
from extproc.sim.vllm_metrics import CONTENT_TYPE, VllmMetrics

_FILTERS = "type.googleapis.com/envoy.extensions.filters"
VAST_KV_TOKENS = 1_000_000_000
"""So that neither limit nor pace holds anybody back: what is measured is the way, not the engines."""
_MOST_BODY_BYTES = 1 << 20
_MOST_PAGE_BYTES = 1 << 16
_ANSWER = {
    "id": "chatcmpl-bench",
    "object": "chat.completion",
    "model": "llama-3-8b",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}


def upstream_config(address: str, admin: str, folder: Path) -> str:
    """The configuration's text; the metrics page is written to `folder`. Addresses are `host:port`."""
    page = folder / "metrics.txt"
    spec = EngineSpec(kv_tokens=VAST_KV_TOKENS)
    metrics = VllmMetrics(spec, model_name="llama-3-8b", created=0.0)
    page.write_text(metrics.render(Gauges(), EngineStats(), Vllm().names), encoding="utf-8")
    routes = [
        _route("/metrics", {"filename": str(page)}, CONTENT_TYPE),
        _route("/", {"inline_string": json.dumps(_ANSWER)}, "application/json"),
    ]
    manager = {
        "@type": f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "upstream",
        "route_config": {
            "max_direct_response_body_size_bytes": _MOST_PAGE_BYTES,
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}],
        },
        "http_filters": [
            _http_filter("buffer", "buffer.v3.Buffer", {"max_request_bytes": _MOST_BODY_BYTES}),
            _http_filter("router", "router.v3.Router", {}),
        ],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    listener = {"name": "upstream", "address": _address(address), "filter_chains": [chain]}
    return json.dumps({"admin": {"address": _address(admin)}, "static_resources": {"listeners": [listener]}})


def _route(prefix: str, body: dict[str, str], content_type: str) -> dict[str, Any]:
    header = {"header": {"key": "content-type", "value": content_type}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    return {
        "match": {"prefix": prefix},
        "direct_response": {"status": 200, "body": body},
        "response_headers_to_add": [header],
    }


def _http_filter(name: str, kind: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"envoy.filters.http.{name}", "typed_config": {"@type": f"{_FILTERS}.http.{kind}", **config}}


def _address(where: str) -> dict[str, Any]:
    host, _, port = where.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
