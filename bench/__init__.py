"""Benchmarks: what plugml costs beside the bare mechanism under it, as ratios taken alternately in one run."""
