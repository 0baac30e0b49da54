"""What all copies of all ranges must be to each other, looked at as it happens: from outside, over every server at once.

    one primary per (range, epoch) · what is applied at a position is the same everywhere, and so are the bits ·
    nothing is applied, and nothing acked, that not every copy in sync holds

A copy is met when a map has brought it; from there on its `apply`, `dump` and `load` are looked at.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from plugml.server.effects import RangeRead, Warm
from plugml.wire import messages as m

from .process import Process
from .truth import Truth
from .world import Violation, World

DIGEST_EVERY = 8  # positions at which whole copies are compared, bit for bit
SLACK_BYTES = 1 << 20  # of one message beyond a limit


class History:
    """One range of one job: by position, the checksum of all entries up to it, and that of the values behind some of them."""

    def __init__(self) -> None:
        self.chain: dict[int, int] = {0: 0}
        self.digests: dict[int, tuple[str, int]] = {}
        self.applied = 0  # the highest position that anybody has applied


class Copies:
    def __init__(self, world: World, truth: Truth, find: Any) -> None:
        """`find(name)`: the living server of that name, or None."""
        self.world = world
        self.truth = truth
        self._find = find
        self._histories: dict[tuple[int, int], History] = {}
        self._primaries: dict[tuple[int, int, int], str] = {}
        self._phase = world.seed % DIGEST_EVERY

    def digest_at(self, job: int, number: int, version: int) -> int | None:
        """Of all values of a range at a position, None if nobody has looked."""
        found = self._histories[(job, number)].digests.get(version)
        return found[1] if found is not None else None

    # -- events

    def after(self, process: Process, sender: str, message: Any) -> None:
        kind = type(message)
        if kind in (m.MapTold, RangeRead, Warm):
            self._meet(process)
        elif kind is m.Push or kind is m.Replicate:
            self._check_log(process, message)
        elif kind is m.Sync:
            self._check_holds(process, message.job, message.range)

    def sends(self, process: Process, message: Any) -> None:
        """An ack leaves: its push is applied here, and so every copy has it."""
        if type(message) is not m.PushAck:
            return
        leader = self._primaries.get((message.job, message.range, message.epoch))
        if leader != process.name:
            raise Violation(f"{process.name} acks a push in epoch {message.epoch} of range {message.range}, which {leader} leads")
        replica = replica_of(process, message.job, message.range)
        if replica is None or replica.seat.epoch < message.epoch:
            raise Violation(f"{process.name} acks a push of range {message.range} of job {message.job}, which it does not hold")
        gen, last = replica.range.streams.rows.get(message.worker, (0, 0))
        if (gen, last) < (message.gen, message.seq):
            raise Violation(f"{process.name} acks push {message.seq} of ({message.worker}, {message.gen}), applied are {last} of gen {gen}")

    def _meet(self, process: Process) -> None:
        for number, hosted in process.machine.jobs.items():
            for at, replica in hosted.replicas.items():
                if replica.leads:
                    key = (number, at, replica.seat.epoch)
                    first = self._primaries.setdefault(key, process.name)
                    if first != process.name:
                        raise Violation(f"{first} and {process.name} both lead range {at} of job {number} in epoch {key[2]}")
                if "apply" not in vars(replica.range):
                    self._wrap(process, replica, self._histories.setdefault((number, at), History()))

    def _wrap(self, process: Process, replica: Any, history: History) -> None:
        held = replica.range
        apply, dump, load, restore = held.apply, held.dump, held.load, held.restore
        known = [0]  # the checksum of the entries that made this copy

        def applied(entry: Any, *rest: Any) -> Any:
            self._check_held(process, replica, entry.version, entry.version > history.applied)
            effects = yield from apply(entry, *rest)
            known[0] = crc32(_essence(entry), known[0])
            history.applied = max(history.applied, held.version)
            self._agree(process, held, history.chain, known[0], "other entries")
            if entry.version % DIGEST_EVERY == self._phase:
                self._compare(process, held, history)
            return effects

        def dumped() -> Any:
            self._compare(process, held, history)
            return dump()

        def loaded(copy: Any) -> None:
            load(copy)
            if reading:
                return
            if held.version not in history.chain:
                raise Violation(f"{process.name} was filled with a copy of position {held.version}, which nobody has applied")
            known[0] = history.chain[held.version]
            self.world.reached("a copy was filled")
            self._compare(process, held, history)

        reading: list[None] = []  # from a checkpoint: all copies begin there, and nobody has applied what led to it

        def restored(copy: Any) -> None:
            reading.append(None)
            restore(copy)
            reading.clear()
            known[0] = history.chain.setdefault(held.version, 0)
            self._compare(process, held, history)

        held.apply, held.dump, held.load, held.restore = applied, dumped, loaded, restored

    # -- what must hold

    def stored(self) -> None:
        """The store names other copies: each of them that lives holds whatever anybody has applied."""
        state = self.truth.state
        for number, job in state.jobs.items() if state is not None else ():
            for at, seat in job.seats.items() if job.running else ():
                for name in seat.replicas:
                    process = self._find(name)
                    if process is not None:
                        self._check_holds(process, number, at)

    def _check_holds(self, process: Process, number: int, at: int) -> None:
        """If this copy is in sync, as the store has it, it holds whatever anybody has applied."""
        job, history = self.truth.job(number), self._histories.get((number, at))
        if job is None or history is None or not history.applied or process.name not in job.seats[at].replicas:
            return
        copy = replica_of(process, number, at)
        if copy is None or copy.log.last < history.applied:
            has = copy.log.last if copy is not None else "nothing"
            raise Violation(f"{process.name} is in sync in range {at} of job {number} and holds {has}; {history.applied} entries were applied")

    def _agree(self, process: Process, held: Any, known: dict[int, int], seen: int, what: str) -> None:
        first = known.setdefault(held.version, seen)
        if first != seen:
            raise Violation(f"{process.name} has {what} up to position {held.version} of range {held.number} of job {held.job} than was applied before")

    def _compare(self, process: Process, held: Any, history: History) -> None:
        digest = held.digest()
        first = history.digests.setdefault(held.version, (process.name, digest))
        if first[1] != digest:
            text = f"{process.name} and {first[0]} differ at position {held.version} of range {held.number} of job {held.job}"
            raise Violation(text)
        if first[0] != process.name:
            self.world.reached("copies compared")

    def _check_held(self, process: Process, replica: Any, version: int, first: bool) -> None:
        """Each copy that the store names as in sync, and whose process lives, has it in its log.  `first`: nobody has applied it yet."""
        seat = replica.seat
        job = self.truth.job(seat.job)
        if job is None:
            return
        stored = job.seats[seat.range]
        living = 0
        for name in stored.replicas:
            other = self._find(name)
            if other is None:
                continue
            living += 1
            if name == seat.name:
                continue  # a lone copy may apply before it writes down
            copy = replica_of(other, seat.job, seat.range)
            if copy is None or copy.log.last < version or (version > copy.log.applied and not self._has(copy, replica, version)):
                has = "nothing" if copy is None else f"{copy.log.last} entries, {copy.log.applied} applied, of epoch {copy.seat.epoch}"
                raise Violation(
                    f"{process.name} applies entry {version} of range {seat.range} of job {seat.job} in epoch {seat.epoch}, "
                    f"and {name}, which is in sync in epoch {stored.epoch}, has {has}"
                )
        if first and replica.leads and job.spec.min_insync > max(1, len(stored.replicas)) and stored.epoch == seat.epoch:
            raise Violation(f"{process.name} applies entry {version} with {living} copies, {job.spec.min_insync} are to hold it")

    @staticmethod
    def _has(copy: Any, replica: Any, version: int) -> bool:
        """The same entry, not only one of that number."""
        mine = next(iter(replica.log.after(version - 1)), None)
        theirs = next(iter(copy.log.after(version - 1)), None)
        return mine is not None and theirs is not None and _essence(mine) == _essence(theirs)

    def _check_log(self, process: Process, message: Any) -> None:
        replica = replica_of(process, message.job, message.range)
        if replica is None:
            return
        log, limits = replica.log, process.machine_limits
        waiting = log.bytes_after(log.applied) if log.last > log.applied else 0
        if waiting > 2 * limits.behind_bytes_max + SLACK_BYTES:
            raise Violation(f"{process.name} keeps {waiting} bytes of entries that are not applied, of range {message.range}")

    # -- at rest

    def apart(self, number: int) -> list[str]:
        """Copies of a job that do not stand where their primary stands; those that do have its bits."""
        job = self.truth.job(number)
        found = []
        for at, seat in job.seats.items() if job is not None else ():
            first: Any = None
            for name in seat.replicas:
                process = self._find(name)
                copy = replica_of(process, number, at) if process is not None else None
                if copy is None or copy.seat.epoch != seat.epoch:
                    found.append(f"{name} does not hold range {at} in epoch {seat.epoch}")
                elif first is None:
                    first = copy
                elif copy.range.version != first.range.version:
                    found.append(f"range {at}: {name} stands at {copy.range.version}, {first.seat.name} at {first.range.version}")
                elif copy.range.digest() != first.range.digest():
                    raise Violation(f"at rest {name} and {first.seat.name} differ in range {at} of job {number}")
        return found


def replica_of(process: Process, job: int, number: int) -> Any:
    hosted = process.machine.jobs.get(job) if process.machine is not None else None
    return hosted.replicas.get(number) if hosted is not None else None


def _essence(entry: Any) -> bytes:
    """What an entry means; its epoch and token may differ from copy to copy."""
    message = entry.message
    skipped = ("job", "range", "epoch", "token", "payload")
    fields = [getattr(message, name) for name in message._fields if name not in skipped] if hasattr(message, "_fields") else [message]
    total = 0
    for part in getattr(message, "payload", ()):
        total = crc32(part, total)
    return f"{entry.version} {type(message).__name__} {fields} {total}".encode()
