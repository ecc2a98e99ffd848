"""Benchmarks and the soak: `python -m bench.gateway`, `python -m bench.soak`. Development only, not in the wheel."""
