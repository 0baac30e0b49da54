"""The only place that waits: event loop, sockets, clock, child processes.  It drives any machine and knows none by name."""
