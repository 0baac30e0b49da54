"""A whole cluster in one process from one seed: real machines, simulated sockets, files, clock and processes."""
