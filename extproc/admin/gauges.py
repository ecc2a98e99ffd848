"""Gauges read from a snapshot when somebody scrapes: nothing is kept up to date in between, so nothing can be stale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc import __version__
from extproc.admin import names
from extproc.admin.names import Name
from extproc.admin.source import SafeSource
from extproc.fleet import EngineSample
from extproc.model import PRIORITIES, Load, PoolState
from extproc.snapshots import EngineSnapshot, PoolSnapshot, QueueSnapshot, ServiceSnapshot

Row = tuple[tuple[str, ...], float | None]
"""Label values and value; None leaves the series out."""


def _family(name: Name, rows: Iterable[Row]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name.name, name.help, labels=name.labels)
    for labels, value in rows:
        if value is not None:
            family.add_metric(labels, value)
    return family


_SERVICE: tuple[tuple[Name, Callable[[ServiceSnapshot], float | None]], ...] = (
    (names.POLICY_LOADED, lambda s: s.policy.loaded_at),
    (names.POLICY_CURRENT, lambda s: s.policy.last_error is None),
    (names.DRAINING, lambda s: s.draining),
    (names.STREAMS, lambda s: s.wire.streams),
    (names.LOOP_LAG, lambda s: s.loop_lag_s),
)

_POOL: tuple[tuple[Name, Callable[[PoolSnapshot], float | None]], ...] = (
    (names.HELD_TOKENS, lambda p: p.held.tokens),
    (names.HELD_SLOTS, lambda p: p.held.slots),
    (names.GHOST_TOKENS, lambda p: p.ghosts.tokens),
    (names.GHOST_SLOTS, lambda p: p.ghosts.slots),
    (names.DRAIN_TOKENS, lambda p: None if p.drain_per_s is None else p.drain_per_s.tokens),
    (names.DRAIN_SLOTS, lambda p: None if p.drain_per_s is None else p.drain_per_s.slots),
    (names.SATURATION, lambda p: p.state.saturation),
    (names.ENGINES, lambda p: len(p.engines)),
    (names.ENGINES_REPORTING, lambda p: p.engines_reporting),
    (names.REPLICAS, lambda p: p.share.replicas if p.share else None),
    (names.LEADING, lambda p: p.share.leading if p.share else None),
    (names.CUT_OFF, lambda p: p.share.cut_off if p.share else None),
    (names.POLICY_DISAGREEMENT, lambda p: p.share.differing if p.share else None),
)

_LOADS: tuple[tuple[Name, Name, Callable[[PoolState, PoolSnapshot], tuple[Load, Load, Load]]], ...] = (
    (names.LIMIT_TOKENS, names.LIMIT_SLOTS, lambda state, _: state.limits),
    (names.RESERVED_TOKENS, names.RESERVED_SLOTS, lambda state, _: state.reserved),
    (names.IN_USE_TOKENS, names.IN_USE_SLOTS, lambda _, pool: pool.in_use),
)

_QUEUE: tuple[tuple[Name, Callable[[QueueSnapshot], float]], ...] = (
    (names.WAITING, lambda q: q.waiting),
    (names.WAITING_TOKENS, lambda q: q.waiting_load.tokens),
    (names.QUEUE_SIZE, lambda q: q.max_size),
    (names.OLDEST_WAIT, lambda q: q.oldest_wait_s or 0.0),
)

_SAMPLE: tuple[tuple[Name, Callable[[EngineSample], float | None]], ...] = (
    (names.ENGINE_KV_USAGE, lambda s: s.kv_usage),
    (names.ENGINE_KV_CAPACITY, lambda s: s.kv_capacity_tokens),
    (names.ENGINE_RUNNING, lambda s: s.running),
    (names.ENGINE_WAITING, lambda s: s.waiting),
    (names.ENGINE_PREEMPTIONS, lambda s: s.preemptions_per_s),
)


class SnapshotCollector(Collector):
    """Yields all gauges of one snapshot; without a snapshot only what needs none."""

    def __init__(self, source: SafeSource) -> None:
        self._source = source

    def describe(self) -> Iterator[Metric]:
        """Asked once when registered: the names, without reading the state."""
        yield from (_family(name, ()) for name in names.ALL if name.kind is names.Kind.GAUGE)

    def collect(self) -> Iterator[Metric]:
        snapshot = self._source.take()
        yield _family(names.BUILD, [((__version__,), 1.0)])
        yield CounterMetricFamily(names.SNAPSHOT_ERRORS.name, names.SNAPSHOT_ERRORS.help, value=self._source.errors)
        if snapshot is not None:
            yield from _service(snapshot)
            yield from _pools(snapshot)
            yield from _engines([(pool.name, engine) for pool in snapshot.pools for engine in pool.engines])


def _service(snapshot: ServiceSnapshot) -> Iterator[Metric]:
    yield _family(names.POLICY, [((snapshot.policy.hash,), 1.0)])
    for name, read in _SERVICE:
        yield _family(name, [((), read(snapshot))])


def _pools(snapshot: ServiceSnapshot) -> Iterator[Metric]:
    pools = snapshot.pools
    for name, read in _POOL:
        yield _family(name, [((pool.name,), read(pool)) for pool in pools])
    yield _family(names.STATE_AGE, [((pool.name,), snapshot.at - pool.state.at) for pool in pools])
    classes = [(pool, priority, (pool.name, str(priority))) for pool in pools for priority in PRIORITIES]
    for tokens, slots, loads in _LOADS:
        rows = [(labels, loads(pool.state, pool)[priority]) for pool, priority, labels in classes]
        yield _family(tokens, [(labels, load.tokens) for labels, load in rows])
        yield _family(slots, [(labels, load.slots) for labels, load in rows])
    yield _family(names.REJECTION, [(labels, pool.state.rejection[priority]) for pool, priority, labels in classes])
    for name, of_queue in _QUEUE:
        yield _family(name, [(labels, of_queue(pool.queues[priority])) for pool, priority, labels in classes])


def _engines(engines: list[tuple[str, EngineSnapshot]]) -> Iterator[Metric]:
    yield _family(names.ENGINE_REPORTING, [((pool, e.engine), e.reporting) for pool, e in engines])
    yield _family(names.ENGINE_AGE, [((pool, e.engine), e.age_s) for pool, e in engines])
    for name, read in _SAMPLE:
        rows = [((pool, e.engine), read(e.sample)) for pool, e in engines if e.sample is not None]
        yield _family(name, [(labels, value) for labels, value in rows if value is not None and math.isfinite(value)])
