"""What follows from any change: copies that are missing get a learner, whoever waited for one leaves, leading is spread.

Decides on a whole state, again and again; a state in which nothing is to do stays as it is.  Owns no truth: what it
remembers are answers that it need not work out twice.  Who is alive and who is to be avoided is handed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..core.effects import Log
from ..core.job import JobSpec
from ..core.limits import Limits
from ..core.ring import Load, Ring, level
from .catalog import LEVELLED, Job, Move, NodeRecord, Seat, State, is_drained, node_id
from .decisions import Outcome, map_bytes
from .placement import ring_of, weights_of
from .seats import leaving, released, with_seats

Avoid = Callable[[int, int, str], bool]  # (job, range, node)?
AVOIDED_MAX = 4_096
LOOKS_PER_SERVER = 8  # learners that are looked for in one go: most that are found must wait for their turn anyway
REFILL_FACTOR = 12  # the longest that a server is avoided, times refill_us


class _Note(NamedTuple):
    """What is known of a job as it is: ranges that want a learner, and nodes that learn."""

    job: Job
    circumstances: Any
    short: tuple[int, ...]
    learners: tuple[str, ...]


class Mender:
    """`mend` gives the next state; equal states and servers give equal ones."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._notes: dict[int, _Note] = {}  # of jobs that are tidy
        self._weights: dict[int, tuple[JobSpec, dict[int, int]]] = {}

    def mend(self, state: State, servers: Iterable[NodeRecord], avoid: Avoid) -> Outcome:
        """What is to be done with these servers, which are surely there."""
        present = {
            key: record for key, record in ((node_id(server.name), server) for server in servers)
            if not is_drained(record.name, state.drained) and key in state.nodes and state.nodes[key].name == record.name
        }  # fmt: skip
        circumstances = (tuple(sorted(record.name for record in present.values())), state.drained)
        running = {number: job for number, job in state.jobs.items() if job.running}
        self._weights = {number: known for number, known in self._weights.items() if number in running}
        notes, works = {}, []
        for number, job in running.items():
            note, work = self._notes.get(number), None
            if note is None or note.job is not job or note.circumstances != circumstances:
                work = _Work(state, job, present)
                work.tidy()
                if work.is_whole():
                    work.level(self._weights_of(job, state.ring_ranges))
                note = _Note(job, circumstances, tuple(work.short()), tuple(seat.learner for seat in work.seats.values() if seat.learner))
            notes[number] = note
            if note.short or work is not None and work.changed:
                works.append((work or _Work(state, job, present), note.short))
        if present:
            self._fill(state, works, present, Counter(name for note in notes.values() for name in note.learners), avoid)
        self._notes = notes
        return self._outcome(state, [work for work, _ in works])

    def _fill(
        self, state: State, works: list[tuple[_Work, tuple[int, ...]]], present: dict[str, NodeRecord], filling: Counter[str], avoid: Avoid
    ) -> None:
        """Name learners, the ranges with the fewest copies first, the heavy ones before the light; every server is filled with few at a time."""
        room = sum(max(0, self.limits.learners_max - filling[record.name]) for record in present.values())
        if not room:
            return
        wanted: list[tuple[int, int, int, int, _Work]] = []
        for work, short in works:
            weights = work.weights = self._weights_of(work.job, state.ring_ranges)
            wanted += [(len(work.seats[n].replicas), -weights.get(n, 0), work.job.number, n, work) for n in short]
        ring = ring_of(present.values(), state.ring_ranges, self.limits)
        looks = LOOKS_PER_SERVER * len(present)
        for _, _, _, number, work in sorted(wanted, key=lambda item: item[:4]):
            name = work.named(ring, number, avoid)
            if name and filling[name] < self.limits.learners_max and self._fits(work, name, state):
                filling[name] += 1
                room -= 1
                work.change(number, learner=name)
            looks -= bool(name)
            if not room or not looks:
                return  # the others' turn comes when these are done

    def _fits(self, work: _Work, name: str, state: State) -> bool:
        """Does the map still fit into a message with one more server in it?"""
        if name in work.job.endpoints:
            return True
        return map_bytes(work.result(extra=name), state.ring_ranges) <= self.limits.control_bytes_max

    def _outcome(self, state: State, works: list[_Work]) -> Outcome:
        effects: list[Any] = []
        maps: list[int] = []
        for work in works:
            if work.changed:
                state = state.with_job(work.result())
                maps.append(work.job.number)
                effects.append(Log("copies", {"job": work.job.number, "name": work.job.spec.name, **work.counts()}))
        return Outcome(state, tuple(effects), tuple(maps))

    def _weights_of(self, job: Job, ring_ranges: int) -> dict[int, int]:
        known = self._weights.get(job.number)
        if known is None or known[0] is not job.spec:
            known = self._weights[job.number] = (job.spec, weights_of(job.spec, ring_ranges))
        return known[1]


class Avoided:
    """Servers that were dropped from a range: they are not filled with it again before a while, which doubles each time."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._until: dict[tuple[int, int, str], tuple[int, int]] = {}  # when it ends, and how long it was

    def add(self, what: tuple[int, int, str], now_us: int) -> None:
        _, before_us = self._until.pop(what, (0, 0))
        wait_us = min(max(self.limits.refill_us, 2 * before_us), REFILL_FACTOR * self.limits.refill_us)
        old = [key for key, (until_us, last_us) in self._until.items() if now_us > until_us + last_us]
        for key in old or list(self._until)[: max(0, len(self._until) - AVOIDED_MAX + 1)]:
            del self._until[key]
        self._until[what] = (now_us + wait_us, wait_us)

    def at(self, now_us: int) -> Avoid:
        return lambda job, number, node: now_us < self._until.get((job, number, node), (0, 0))[0]


class _Work:
    """One job on the bench."""

    def __init__(self, state: State, job: Job, present: dict[str, NodeRecord]) -> None:
        self.state = state
        self.job = job
        self.present = present
        self.seats = job.seats  # copied before the first change
        self.moves = job.moves
        self.weights: dict[int, int] = {}
        self.load: Load | None = None  # worked out when a learner is to be named
        self.changed = False

    def change(self, number: int, **changes: Any) -> None:
        if self.seats is self.job.seats:
            self.seats = dict(self.seats)
        self.seats[number] = self.seats[number].next(**changes)
        self.changed = True

    def gone(self, number: int) -> set[str]:
        """Servers that are to give up their copy of the range."""
        if not (self.moves or self.state.drained):
            return set()  # the common case
        return leaving(self.seats[number], self.moves.get(number, ()), self.state.drained)

    # -- what is no longer wanted

    def tidy(self) -> None:
        """Forget moves that are done or cannot be, learners that nobody needs, and copies that have been replaced."""
        for number, items in self.job.moves.items():
            self._tidy_moves(number, items)
        for number, seat in self.job.seats.items():
            gone = self.gone(number)
            after = released(seat, self.job.spec.copies, gone, self.state.drained) if gone else {"replicas": seat.replicas}
            if seat.learner and (not self._lacks(seat, gone) or is_drained(seat.learner, self.state.drained)):
                self.change(number, **(after | {"learner": ""}))
            elif after["replicas"] != seat.replicas:
                self.change(number, **after)

    def _tidy_moves(self, number: int, items: tuple[Move, ...]) -> None:
        left = items
        while left and (left[0].source not in self.job.seats[number].replicas or not self._may_come(left[0].target)):
            left = left[1:]
        if left != items:
            self.changed = True
            self.moves = {n: kept for n, kept in {**self.moves, number: left}.items() if kept}

    def _may_come(self, name: str) -> bool:
        record = self.state.nodes.get(node_id(name))
        return record is not None and record.name == name and not is_drained(name, self.state.drained)

    def _lacks(self, seat: Seat, gone: set[str]) -> bool:
        return sum(name not in gone for name in seat.replicas) < self.job.spec.copies

    # -- what is missing

    def short(self) -> list[int]:
        """Ranges that want a learner, have none, and may get one."""
        there = {record.name for record in self.present.values()}
        return [
            number for number, seat in self.seats.items()
            if not seat.learner and self._lacks(seat, self.gone(number)) and not there.issubset(seat.replicas)
        ]  # fmt: skip

    def named(self, ring: Ring, number: int, avoid: Avoid) -> str:
        """The server that the range's next copy belongs on, "" = there is none; its bytes are booked."""
        held = {node_id(name) for name in self.seats[number].replicas}
        walk = [server for server in ring.walk(number) if server not in held]
        free = [server for server in walk if not avoid(self.job.number, number, self.present[server].name)]
        if not free:
            return ""
        if self.load is None:
            self.load = self._weighed()
        gone = self.gone(number)
        weight = max(1, self.weights.get(number, 0))
        there = [node_id(name) for name in self.seats[number].replicas if name not in gone]
        moves = self.moves.get(number, ())
        chosen = node_id(moves[0].target) if moves and node_id(moves[0].target) in free else self.load.roomy(ring.apart(free, there), weight)[0]
        self.load.book(chosen, weight)
        return self.present[chosen].name

    def _weighed(self) -> Load:
        """Who holds how much: copies that stay, and those on their way."""
        copies = min(self.job.spec.copies, len(self.present))
        load = Load(self.present, sum(max(1, self.weights.get(number, 0)) for number in self.seats), copies)
        for number, seat in self.seats.items():
            gone = self.gone(number)
            for name in seat.names():
                if name not in gone and self._is_present(name):
                    load.book(node_id(name), max(1, self.weights.get(number, 0)))
        return load

    def _is_present(self, name: str) -> bool:
        record = self.present.get(node_id(name))
        return record is not None and record.name == name

    # -- who leads

    def is_whole(self) -> bool:
        """Every copy is there that there can be, nobody leaves, and there is a choice."""
        copies = min(self.job.spec.copies, len(self.present))
        return copies > 1 and not self.moves and all(
            not seat.learner and len(seat.replicas) >= copies and all(map(self._is_present, seat.replicas)) for seat in self.seats.values()
        )

    def level(self, weights: dict[int, int]) -> None:
        places = {number: [node_id(name) for name in seat.replicas] for number, seat in self.seats.items()}
        for number, leader in level(self.present, weights, places).items():
            name = self.present[leader].name
            others = (other for other in self.seats[number].replicas if other != name)
            self.change(number, replicas=(name, *others), cause=LEVELLED)

    # -- what came of it

    def counts(self) -> dict[str, int]:
        return {
            "learners": sum(bool(seat.learner) for seat in self.seats.values()),
            "missing": sum(len(seat.replicas) < self.job.spec.copies for seat in self.seats.values()),
        }  # fmt: skip

    def result(self, extra: str = "") -> Job:
        """The job with all that was changed; `extra` is a server that would come into it."""
        known = {record.name: record.endpoint for record in self.state.nodes.values()}
        job = with_seats(self.job, self.seats, known, self.moves)
        return job._replace(endpoints={**job.endpoints, extra: known[extra]}) if extra else job
