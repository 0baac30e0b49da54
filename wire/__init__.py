"""What agents, servers and masters say to each other: one NamedTuple per message, and the codec of its frames."""
