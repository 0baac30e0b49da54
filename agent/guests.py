"""Workers that have joined a job which another launcher began, and launchers that have brought some.

A job does not live by them: it ends with the launcher that began it, and goes on when one that has joined dies.  Between `attach` and
`opened` such a worker is a member without a channel by which its launcher's death would show: the others would wait for it for ever, so
it leaves when its launcher has hung up and not come back for `gone_us`.
"""

from __future__ import annotations

from .house import House
from .router import Job


class Guests:
    def __init__(self, house: House) -> None:
        self.connections: set[int] = set()  # of launchers that have joined
        self._house = house
        self._attached: dict[tuple[int, int], tuple[int, int]] = {}  # (job, worker) without a channel yet -> connection, gen
        self._due_us: dict[tuple[int, int], int] = {}  # of those, whose launcher has hung up: when they leave

    def add(self, connection: int) -> None:
        self.connections.add(connection)

    @staticmethod
    def is_guest(job: Job, worker: int) -> bool:
        return job.running and worker >= job.spec.workers

    def attached(self, connection: int, job: Job, worker: int, gen: int) -> None:
        self._attached[job.number, worker] = connection, gen
        self._due_us.pop((job.number, worker), None)

    def settled(self, job: int, worker: int) -> None:
        """It has a channel, or has ended in order."""
        self._attached.pop((job, worker), None)
        self._due_us.pop((job, worker), None)

    def on_hung(self, connection: int, now_us: int) -> None:
        self.connections.discard(connection)
        for key, (whose, _gen) in self._attached.items():
            if whose == connection:
                self._due_us[key] = now_us + self._house.limits.gone_us
                self._house.wake(self._due_us[key])

    def on_time(self, now_us: int) -> list[tuple[Job, int, int]]:
        """Whose time is over: job, worker, gen."""
        late = []
        for key in [key for key, due_us in self._due_us.items() if now_us >= due_us]:
            _connection, gen = self._attached[key]
            self.settled(*key)
            job = self._house.jobs.get(key[0])
            if job is not None and job.running:
                late.append((job, key[1], gen))
        return late

    def deadline_us(self, latest_us: int) -> int:
        return min([latest_us, *self._due_us.values()])
