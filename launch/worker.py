"""One worker as the launcher sees it: where it is between `attach` and its end, and what is known of it.  Data only."""

from __future__ import annotations

from dataclasses import dataclass

#: A worker's way.  LEAVING: the program has ended and the agent is told.  HELD: dead, still a member, nobody restarts it.
IDLE, ATTACHING, MAKING, OPENING, STARTING, RUNNING, LEAVING, HELD, ENDED = (
    "idle", "attaching", "making", "opening", "starting", "running", "leaving", "held", "ended",
)  # fmt: skip
#: Phases in which a channel's directory is ours.
WITH_CHANNEL = (OPENING, STARTING, RUNNING, LEAVING)


@dataclass(slots=True)
class Worker:
    """Counts are those of the whole run, over all generations."""

    number: int
    phase: str = IDLE
    gen: int = 0
    pid: int = 0
    start_clock: int = 0  # of this generation
    moved_us: int = 0  # its clock was last seen to grow
    spoke: bool = False  # it has written a request
    state: str = ""  # the kernel's letter for its process
    unplugged: bool = False  # somebody has closed its channel; its program may live on
    dismissed: bool = False  # unplugged, and told by us to end
    clocks: int = 0
    pushes: int = 0
    uncounted: bool = False  # a program of this generation ran, and nobody has told yet how often it pushed
    restarts: int = 0
    status: int | None = None  # of the last program that ended
    outcome: str = ""  # finished | unplugged | lost | failed | stopped, once it is decided
    how: str = ""  # what the agent was told
    tail: tuple[str, ...] = ()
    last_error: str = ""

    def to_document(self) -> dict[str, object]:
        return {
            "worker": self.number, "outcome": self.outcome, "clocks": self.clocks, "pushes": None if self.uncounted else self.pushes,
            "restarts": self.restarts, "generation": self.gen, "status": self.status, "last_error": self.last_error,
        }  # fmt: skip
