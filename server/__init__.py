"""The server: keeps ranges of the ring, takes each push once, steps the tables, and keeps the clocks of some jobs."""
