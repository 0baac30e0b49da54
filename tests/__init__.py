"""Every test of plugml; see docs/simulation.md for the simulated ones."""
