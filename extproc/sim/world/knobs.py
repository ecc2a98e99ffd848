"""What about each baseline is tuned, and which values are tried. The first of each list is the default.

Sequence slots fill before the KV cache does under the default traffic (256 answers hold a third of 400,000 tokens): so
laws that go by KV usage are offered watermarks that low, without which they would never act.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from extproc.sim.world.tuned import Settings

Knobs = Sequence[Sequence[Settings]]


def _values(name: str, *values: float) -> list[Settings]:
    return [{name: value} for value in values]


def _watermarks(*pairs: tuple[float, float]) -> list[Settings]:
    return [{"watermark.high": high, "watermark.panic": panic} for high, panic in pairs]


def _setpoints(*points: float) -> list[Settings]:
    """Between watermarks that move along: the policy wants it there, and drop policies begin to act at the lower."""
    return [
        {"pid.setpoint": point, "watermark.high": round(point - 0.06, 2), "watermark.panic": round(point + 0.06, 2)}
        for point in points
    ]


KNOBS: Mapping[str, Knobs] = {
    "fixed": (
        _values("fixed.theta", 0.8, 0.2, 0.3, 0.4, 0.5, 0.6),
        _values("fixed.sequencesPerEngine", 256, 200, 230, 245),
    ),
    "pid": (
        _setpoints(0.86, 0.22, 0.30, 0.36, 0.5),
        [{"pid.kp": kp, "pid.ki": ki} for kp, ki in ((1.0, 0.3), (0.3, 0.02), (0.1, 0.005), (0.03, 0.001))],
        _values("pid.maxShare", 2.0, 0.3, 0.4, 4.0),
    ),
    "watermark": (
        _watermarks((0.8, 0.92), (0.30, 0.42), (0.34, 0.46), (0.38, 0.50), (0.5, 0.62)),
        _values("watermark.maxWaitingPerEngine", 20, 10, 5),
        [{"watermark.shed": "lowest-first"}, {"watermark.shed": "uniform"}],
    ),
    "vegas": (
        [
            {"vegas.minLimit": least, "vegas.maxLimit": most}
            for least, most in ((10, 1000), (100, 500), (160, 500), (220, 500), (300, 480))
        ],
        [{"vegas.signals": ["ttft", "tpot"]}, {"vegas.signals": ["tpot"]}, {"vegas.signals": ["ttft"]}],
        _values("vegas.alpha", 0.1, 0.5, 1.0, 2.0, 4.0),
    ),
    "gate": (
        _values("gate.waiting", 5, 0, 2, 10),
        _values("gate.kv_usage", 0.8, 0.2, 0.3, 0.4),
    ),
}
