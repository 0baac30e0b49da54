"""What stands in the store, and whether it may become what it becomes: terms, seats, epochs, deaths, lost jobs.

Knows the store's values and the masters' words.  Refuses to know what servers hold: that is `copies`.
"""

from __future__ import annotations

from typing import Any

from plugml.core.effects import Log
from plugml.core.jobmap import LOST
from plugml.master import catalog, leadership
from plugml.master.catalog import Job, Seat, State, is_drained
from plugml.master.effects import LEADER_KEY, STATE_KEY
from plugml.master.membership import RETURN_FACTOR
from plugml.master.seats import DROP, held_alone
from plugml.wire.messages import Beat, Register, Retire, SeatAsk

from .machines import reign_of
from .process import Process
from .world import Violation, World


class Truth:
    """`state` is what stands there now."""

    def __init__(self, world: World, dead_us: int) -> None:
        self.world = world
        self.state: State | None = None
        self.false_exits: dict[str, None] = {}  # processes that were said to have ended, and had not
        self.ended: dict[str, None] = {}  # processes that did
        self._dead_us = dead_us
        self._writers: dict[str, dict[int, str]] = {LEADER_KEY: {}, STATE_KEY: {}}  # who has written under which term
        self._buried: dict[str, None] = {}  # nodes that a master declared dead, and might
        self._offline: dict[str, None] = {}  # nodes that a master waited for, or that are about to end
        self._term = 0  # highest in which anybody has decided
        self._reigns: dict[str, tuple[Any, int]] = {}  # by master: what decides there, and since when
        self._heard: dict[tuple[str, str], int] = {}  # (master, node): when a beat of it last came there
        self._drops: dict[tuple[int, int, str], None] = {}  # (job, range, node) that a server has asked to drop

    # -- writes

    def stored(self, key: str, value: bytes) -> None:
        if key == LEADER_KEY:
            word = leadership.unpack(value)
            assert word is not None
            self._check_term(key, word.term, word.writer)
            return
        state = catalog.unpack(value)
        self._check_term(key, state.term, state.writer)
        led_by = self._writers[LEADER_KEY]
        if led_by and led_by.get(state.term) != state.writer:
            raise Violation(f"{state.writer} writes the state in term {state.term}, in which it never led")
        if self.state is not None:
            self._compare(self.state, state)
        self.state = state

    def _check_term(self, key: str, term: int, writer: str) -> None:
        known = self._writers[key]
        if known and term < max(known):
            raise Violation(f"{key}: the term falls from {max(known)} to {term}")
        if known.setdefault(term, writer) != writer:
            raise Violation(f"{key}: {writer} and {known[term]} both write in term {term}")

    def _compare(self, before: State, after: State) -> None:
        if (after.token, after.last) < (before.token, before.last) or after.last < before.last:
            raise Violation(f"token and last job fall from {before.token, before.last} to {after.token, after.last}")
        for number, job in after.jobs.items():
            old = before.jobs.get(number)
            if old is not None and old.running and old.seats is not job.seats:
                self._compare_jobs(old, job, after)
            if job.state == LOST and (old is None or old.state != LOST):
                self._check_lost(job)

    def _compare_jobs(self, old: Job, new: Job, after: State) -> None:
        if old.seats.keys() != new.seats.keys():
            raise Violation(f"job {new.number} has other ranges than before")
        names = {record.name for record in after.nodes.values()}
        for number, seat in new.seats.items():
            before = old.seats[number]
            if (before.replicas, before.learner, before.born) != (seat.replicas, seat.learner, seat.born):
                self._compare_seats(f"job {new.number}, range {number}", before, seat, names)
                dropped = [name for name in before.replicas if (new.number, number, name) in self._drops]
                self._check_replaced(f"job {new.number}, range {number}", before, seat, names, dropped, new.spec.copies)
            elif before.epoch != seat.epoch:
                self.world.reached("an epoch without a change")

    def _compare_seats(self, what: str, before: Seat, seat: Seat, names: set[str]) -> None:
        """Only a copy that was in sync, or was being filled, can be in sync; nobody goes who is not dead, dropped or replaced."""
        if seat.epoch <= before.epoch:
            raise Violation(f"{what}: {before} becomes {seat} without a new epoch")
        if not set(seat.replicas) <= set(before.names()):
            raise Violation(f"{what}: {seat.replicas} are to be in sync, {before.names()} had it")
        if len(set(seat.names())) != len(seat.names()):
            raise Violation(f"{what}: two copies on one server: {seat}")
        for name in before.replicas:
            if name not in seat.replicas and name in names and name in self._offline and seat.replicas:
                self.world.reached("a copy that others have is set aside")
            elif name not in seat.replicas and name not in names and name not in self._buried:
                raise Violation(f"{what}: {name} is dropped as dead, and nobody has declared it dead")
        if not seat.replicas and any(name in names for name in before.replicas):
            raise Violation(f"{what}: no copy is left, although {before.replicas} are not all dead")

    def _check_replaced(self, what: str, before: Seat, seat: Seat, names: set[str], dropped: list[str], copies: int) -> None:
        """A copy that nobody has asked to drop leaves only when enough others are there."""
        if len(seat.replicas) > max(copies, len(before.replicas)):
            raise Violation(f"{what}: {len(seat.replicas)} copies where {copies} are wanted: {seat.replicas}")
        excused = [name for name in before.replicas if name not in names or name in dropped or name in self._offline]
        excused += [before.learner] * (before.learner in self._offline)  # it may have come and gone in one change
        left = [name for name in before.replicas if name not in seat.replicas and name not in excused]
        if left and len(seat.replicas) < min(copies, len(before.replicas)) - len(excused):
            raise Violation(f"{what}: {left} leave, and only {seat.replicas} are there ({copies} copies are wanted)")

    def _check_lost(self, job: Job) -> None:
        """A range without any copy is the only reason; whose copies these were was checked as they went."""
        if all(seat.replicas for seat in job.seats.values()):
            raise Violation(f"job {job.number} is lost, and every range has a copy: {job.reason}")
        self.world.reached("all copies of a range are gone")

    # -- masters

    def arrives(self, process: Process, sender: str, message: Any) -> None:
        """A beat has come to a master's door, whether or not it looks."""
        if type(message) is Retire:
            self._offline[sender] = None
        if type(message) in (Beat, Register):
            self._heard[process.node_id, sender] = self.world.now_us

    def sends(self, message: Any) -> None:
        if type(message) is SeatAsk and message.verb == DROP:
            self._drops[message.job, message.range, message.node] = None

    def after(self, process: Process, sender: str, message: Any) -> None:
        """A master has handled an event: nobody decides who has been followed."""
        reign = reign_of(process.machine)
        now_us = self.world.now_us
        if reign is None:
            self._reigns.pop(process.node_id, None)
            return
        if self._reigns.get(process.node_id, (None, 0))[0] is not reign:
            self._reigns[process.node_id] = (reign, now_us)
        term = reign.ledger.state.term
        if term < self._term:
            raise Violation(f"{process.name} decides in term {term}, while {self._term} is led")
        self._term = term

    def ends(self, name: str) -> None:
        """This server ends in order: nobody may rely on it any more."""
        for job in self.state.jobs.values() if self.state is not None else ():
            held = [number for number, seat in job.seats.items() if name in seat.names()] if job.running else []
            if held:
                raise Violation(f"{name} ends in order, and holds ranges {held} of job {job.number}")

    def logged(self, process: Process, log: Log) -> None:
        """A node is declared dead, or given up for now: there must be a reason."""
        if log.event not in ("dead", "offline"):
            return
        name, why = log.fields["node"], log.fields["why"]
        waits = log.event == "offline"
        (self._offline if waits else self._buried)[name] = None
        since_us = self._reigns.get(process.node_id, (None, self.world.now_us))[1]
        now_us = self.world.now_us
        if waits or why.startswith("no beat"):
            heard_us = max(since_us, self._heard.get((process.node_id, name), 0))
            if now_us - heard_us < self._dead_us * 9 // 10:
                raise Violation(f"{process.name} declares {name} dead, which it heard {now_us - heard_us} us ago")
            reign = reign_of(process.machine)
            begun_us = reign.members.start_us if reign is not None else 0
            if now_us - begun_us < 2 * self._dead_us:
                raise Violation(f"{process.name} blames {name} for a silence, {now_us - begun_us} us after it began")
            self._check_not_cut_off(process, name)
            if not waits and now_us - heard_us < RETURN_FACTOR * self._dead_us * 9 // 10:
                self._check_not_alone(process, name)
        elif name not in self.ended and name not in self.false_exits:
            raise Violation(f"{process.name} declares {name} dead ({why}), which lives")

    def _check_not_alone(self, process: Process, name: str) -> None:
        """Not so soon when nobody else that is heard has a copy of what it holds."""
        reign = reign_of(process.machine)
        assert reign is not None
        for job in reign.ledger.state.jobs.values():
            alone = held_alone(job, name, reign.members.is_heard) if job.running else []
            if alone:
                raise Violation(f"{process.name} declares {name} dead, which may be the last to hold ranges {alone} of job {job.number}")

    def _check_not_cut_off(self, process: Process, name: str) -> None:
        """Not when most servers are silent at once."""
        reign = reign_of(process.machine)
        if reign is None or name[0] != "s":
            return
        silent, count = reign.members.silent_servers(self.world.now_us)
        if silent and 2 * (len(silent) + 1) > count + 1:
            raise Violation(f"{process.name} declares {name} dead while {silent} are silent too, of {count + 1} servers")

    def job(self, number: int) -> Job | None:
        """The job, while it runs."""
        job = self.state.jobs.get(number) if self.state is not None else None
        return job if job is not None and job.running else None

    def missing(self, number: int, servers: int) -> list[str]:
        """What the job still lacks of the copies that it should have on so many servers."""
        job = self.job(number)
        if job is None or self.state is None:
            return []
        drained = self.state.drained
        wanted = min(job.spec.copies, servers)
        return [
            f"range {at}: {seat}" for at, seat in job.seats.items()
            if seat.learner or len(seat.replicas) < wanted or (any(is_drained(name, drained) for name in seat.replicas) and servers >= job.spec.copies)
        ]  # fmt: skip
