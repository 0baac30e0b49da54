"""A stored state with its servers, driven by hand: learners get in sync when the test says so, and every seat is watched."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from plugml.core.effects import Send
from plugml.core.job import JobSpec
from plugml.core.jobmap import LOST, RUNNING
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.master import decisions, orders
from plugml.master.catalog import Job, NodeRecord, Seat, State, fresh, node_id, pack, unpack
from plugml.master.decisions import Outcome, Sight
from plugml.master.mending import Mender
from plugml.master.placement import weights_of
from plugml.wire import messages as m

LIMITS = replace(Limits(), block_bytes_max=1 << 16)
AGENT = "a0.00000001"


class Copies:
    """`copied` counts learners that were added, `silent` servers are registered and not to be used just now."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.state = fresh("m0.1", limits.ranges)
        self.mender = Mender(limits)
        self.servers: dict[str, NodeRecord] = {}
        self.silent: set[str] = set()
        self.avoided: set[tuple[int, int, str]] = set()
        self.copied: Counter[str] = Counter()
        self.copied_bytes = 0
        self.starts = 0
        self.seen: dict[tuple[int, int, int], Seat] = {}

    # -- what happens

    def join(self, key: str, host: str = "") -> str:
        """A new process of that id."""
        self.starts += 1
        record = NodeRecord(f"{key}.{self.starts:08x}", "server", host or f"h{key[1:]}", f"ipc:///x/{key}", 1, "")
        before = self.servers.get(key)
        self.servers[key] = record
        self.silent.discard(key)
        self.done(decisions.admit(self.state, record, "test"), died=before.name if before is not None else "")
        return record.name

    def die(self, key: str) -> None:
        record = self.servers.pop(key)
        self.silent.discard(key)
        self.done(decisions.lose(self.state, record.name, "signal 9"), died=record.name)

    def hush(self, *keys: str) -> None:
        """These servers are silent for a while, and no others."""
        self.silent = set(keys)
        self.done(Outcome(self.state))

    def job(self, name: str, copies: int = 2, mib: int = 4, **more: object) -> Job:
        spec = JobSpec(name, 1, (TableSpec("w", (mib << 18,)),), copies=copies, **more)  # type: ignore[arg-type]
        servers = [record for key, record in sorted(self.servers.items()) if key not in self.state.drained]
        sight = Sight(servers, lambda agent: False, lambda state: len(pack(state)))
        self.done(decisions.register(self.state, AGENT, m.JobAsk(1, spec.to_document()), sight, self.limits))
        found = self.state.job_named(name)
        assert found is not None
        return found

    def drain(self, key: str, cancel: bool = False) -> None:
        self.done(orders.drain(self.state, key, cancel))

    def scale(self, cancel: bool = False) -> None:
        takers = [record for key, record in sorted(self.servers.items()) if key not in self.state.drained]
        self.done(orders.scale(self.state, takers, cancel, self.limits))

    def ask(self, sender: str, ask: m.SeatAsk) -> int:
        outcome = decisions.change_seat(self.state, sender, ask)
        (told,) = [effect.message for effect in outcome.effects if isinstance(effect, Send) and isinstance(effect.message, m.Done)]
        changed = outcome.state is not self.state
        if changed and ask.verb == "add":
            self.copied[ask.node] += 1
            self.copied_bytes += weights_of(self.state.jobs[ask.job].spec, self.state.ring_ranges)[ask.range]
        self.done(outcome, added=ask.node if changed and ask.verb == "add" else "")
        return int(told.code)

    def add(self, number: int, range_number: int) -> int:
        """The learner of the range is in sync, and its primary says so."""
        seat = self.state.jobs[number].seats[range_number]
        return self.ask(seat.replicas[0], m.SeatAsk(1, number, range_number, seat.epoch, "add", seat.learner, ""))

    def drop(self, number: int, range_number: int, node: str, sender: str = "") -> int:
        seat = self.state.jobs[number].seats[range_number]
        return self.ask(sender or seat.replicas[0], m.SeatAsk(1, number, range_number, seat.epoch, "drop", node, "no memory"))

    def learners(self) -> list[tuple[int, int]]:
        return [
            (job.number, number) for job in self.state.jobs.values() if job.running
            for number, seat in job.seats.items() if seat.learner
        ]  # fmt: skip

    def settle(self) -> int:
        """Every learner gets in sync, as long as there are any; gives how many that were."""
        count = 0
        while self.learners():
            for number, range_number in self.learners():
                self.add(number, range_number)
                count += 1
            assert count < 10_000
        return count

    # -- what is always true

    def done(self, outcome: Outcome, died: str = "", added: str = "") -> None:
        """The outcome and what follows from it, until nothing more does; a master that begins anew decides the same."""
        present = [record for key, record in self.servers.items() if key not in self.silent]
        self._step(outcome, died, added)
        for _ in range(5):
            mended = self.mender.mend(self.state, present, self._avoids)
            assert Mender(self.limits).mend(self.state, present, self._avoids) == mended
            if mended.state is self.state:
                return
            self._step(mended, "", "")
        raise AssertionError("it never comes to rest")

    def _avoids(self, *what: Any) -> bool:
        return what in self.avoided

    def _step(self, outcome: Outcome, died: str, added: str) -> None:
        present = [record for key, record in self.servers.items() if key not in self.silent]
        mended = self.mender.mend(outcome.state, present, self._avoids)
        before, self.state = self.state, mended.state
        assert unpack(pack(self.state)) == self.state
        for number, job in self.state.jobs.items():
            if number not in before.jobs or before.jobs[number].seats != job.seats:
                assert number in (*outcome.maps, *mended.maps), "a map has changed and is not told"
        self._look(before, died, added)

    def _look(self, before: State, died: str, added: str) -> None:
        learning: Counter[str] = Counter()
        for job in self.state.jobs.values():
            assert set(job.servers()) == set(job.endpoints)
            old = before.jobs[job.number].seats if job.number in before.jobs else {}
            for number, seat in job.seats.items():
                self._look_at(job, number, seat, old.get(number), died, added)
                learning[seat.learner] += job.running
        for name, count in learning.items():
            assert not name or count <= self.limits.learners_max, f"{name} is filled with {count} ranges at once"

    def _look_at(self, job: Job, number: int, seat: Seat, old: Seat | None, died: str, added: str) -> None:
        names = seat.names()
        assert len(set(names)) == len(names), "a copy is twice on one server"
        assert len(seat.replicas) <= job.spec.copies
        assert self.seen.setdefault((job.number, number, seat.epoch), seat) == seat, "one epoch, two sets of copies"
        assert seat.replicas or job.state == LOST
        assert not job.running or set(names) <= {record.name for record in self.servers.values()}
        assert bool(seat.learner) == bool(seat.born) and seat.born <= seat.epoch
        if old is None or old == seat:
            return
        assert seat.epoch > old.epoch, "an epoch never falls, and rises with each change"
        held = {*old.replicas, added} - {died}
        assert set(seat.replicas) <= held, "only what was in sync, or was asked to be added, is in sync"
        if not seat.replicas:
            assert died in old.replicas, "only death takes the last copy"
        if seat.learner and seat.learner != old.learner:
            assert node_id(seat.learner) not in self.state.drained and node_id(seat.learner) not in self.silent
            assert seat.born == seat.epoch

    # -- what people see

    def held(self) -> Counter[str]:
        """Copies in sync, by server id."""
        jobs = [job for job in self.state.jobs.values() if job.state == RUNNING]
        return Counter(node_id(name) for job in jobs for seat in job.seats.values() for name in seat.replicas)

    def is_even(self, number: int) -> bool:
        """Nobody holds or leads more than a tenth and one range more than the mean of the bytes, nor leads a fifth less."""
        job = self.state.jobs[number]
        weights = weights_of(job.spec, self.state.ring_ranges)
        servers = [record.name for key, record in self.servers.items() if key not in self.state.drained]
        holding, leading = dict.fromkeys(servers, 0), dict.fromkeys(servers, 0)
        for range_number, seat in job.seats.items():
            leading[seat.replicas[0]] += weights[range_number]
            for name in seat.replicas:
                holding[name] += weights[range_number]
        one = max(weights.values())
        return all(max(load.values()) <= 1.1 * sum(load.values()) / len(load) + one for load in (holding, leading)) and (
            min(leading.values()) >= 0.8 * sum(leading.values()) / len(leading) - one
        )
