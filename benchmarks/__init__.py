"""Measurements of the spine: each module is one command, e.g. `python -m benchmarks.graph`; see docs/benchmarks.md."""
