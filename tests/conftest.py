"""Settings for every test. Hypothesis draws the same examples on every run, and no slow machine fails a property."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "extproc", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("extproc")
