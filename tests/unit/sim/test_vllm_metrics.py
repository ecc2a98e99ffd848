"""The fake engine's metrics text, line by line as vLLM 0.32 wrote it."""

from __future__ import annotations

import pytest

from extproc.sim.engine_spec import EngineSpec
from extproc.sim.engine_stats import EngineStats, Finish, Gauges
from extproc.sim.vllm_metrics import VllmMetrics

SPEC = EngineSpec(kv_tokens=4096, block_size=32)


@pytest.fixture
def metrics() -> VllmMetrics:
    return VllmMetrics(SPEC, model_name="tiny", created=1795949606.8)


@pytest.mark.parametrize(
    "line",
    [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_preemptions_total counter",
        'vllm:num_requests_running{engine="0",model_name="tiny"} 11.0',
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 20.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.9763779527559056',
        'vllm:num_preemptions_total{engine="0",model_name="tiny"} 16.0',
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 36.0',
        'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 0.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="tiny"} 0.0',
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="2560.0",model_name="tiny"} 3.0',
        'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 3.0',
        'vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} 7.5',
        'vllm:iteration_tokens_total_bucket{engine="0",le="16384.0",model_name="tiny"} 0.0',
        'vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 0.0',
    ],
)
def test_lines_are_those_of_a_real_engine(metrics: VllmMetrics, line: str) -> None:
    stats = EngineStats(preemptions=16)
    stats.finished[Finish.LENGTH] = 36
    stats.first_token_s.observe(2.5, 3)
    text = metrics.render(Gauges(running=11, waiting=20, kv_usage=124 / 127), stats)
    assert f"{line}\n" in text


def test_buckets_are_cumulative_and_include_their_bound(metrics: VllmMetrics) -> None:
    stats = EngineStats()
    for tokens in (1, 2, 8, 9, 100_000):
        stats.iteration_tokens.observe(tokens)
    text = metrics.render(Gauges(), stats, {"vllm:iteration_tokens_total_bucket"})
    values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if not line.startswith("#")]
    assert values == ["1.0", "3.0", *["4.0"] * 11, "5.0"]


def test_names_nobody_has_give_an_empty_text(metrics: VllmMetrics) -> None:
    assert metrics.render(Gauges(), EngineStats(), {"vllm:num_preemptions", "up"}) == ""


def test_a_models_name_is_escaped() -> None:
    metrics = VllmMetrics(SPEC, model_name='a"b\\c\nd', created=0.0)
    text = metrics.render(Gauges(), EngineStats(), {"vllm:num_requests_running"})
    assert r'model_name="a\"b\\c\nd"} 0.0' in text
