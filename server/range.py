"""One range of one job: takes each push once, steps its blocks, answers pulls when they may be answered.

    push -> known stream? repeat? gap? -> prepare -> append to the log -> commit -> apply -> acknowledge

    BSP        a push is staged under (worker, clock); Close(clock) sums the members' and steps once
    ASP, SSP   a push steps as it commits; a mean scales the step by w / sum of w over the members of its clock

Nothing that is not a finite number is ever visible: results are prepared beside the values and swapped in.
Owns the streams' table, staged pushes and parked pulls of its range.  Refuses to know who else has ranges, the clock's
members beyond the roster it was sent, and whether its messages arrive.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any
from zlib import crc32

from ..core.effects import Effects, Send
from ..core.errors import Code, PeerError, RequestError
from ..core.job import JobSpec
from ..core.jobmap import Bucket, Piece
from ..core.limits import Limits
from ..wire import messages as m
from .blocks import Blocks, Scalars, Slices
from .contents import NOTHING, Contents, Holder, Load, Prepared
from .effects import JobFailed
from .log import Entry, Log
from .memory import Memory
from .parking import Parked, Parking
from .pool import Pool
from .shares import Shares, check_sum
from .staging import Staged, Staging
from .streams import ASTRAY, FENCED, NEXT, SEEN, Streams

WEIGHT_MAX = 2.0**53
_NO_CHANGE = Prepared([], [], NOTHING)


class RangeMachine:
    """A machine without deadlines: everything happens because a message came."""

    def __init__(
        self, job: int, number: int, spec: JobSpec, pieces: Sequence[Piece], buckets: Sequence[Bucket], memory: Memory, pool: Pool,
        limits: Limits, epoch: int, token: int,
    ) -> None:  # fmt: skip
        self.job, self.number = job, number
        self.epoch, self.token = epoch, token
        self.contents = Contents(spec, number, pieces, buckets, memory, pool)
        self.log = Log()
        self.version = 0  # log position of what is visible
        self.closed = 0  # clocks below this one are closed here
        self.claim = 0  # of the first values that were taken
        self.streams = Streams()
        self.shares = Shares(spec.workers)
        self.failure: RequestError | None = None  # why nothing can go on
        self._work: Slices[Effects] | None = None  # what was begun by the last message and is not over
        self._limits = limits
        self._staging = Staging()
        self._parking = Parking(limits.parked_max)

    @property
    def blocks(self) -> Blocks:
        return self.contents.blocks

    @property
    def rows(self) -> dict[int, tuple[int, int]]:
        """By worker: its incarnation, and the seq of its last push taken."""
        return self.streams.rows

    def closing_bytes(self, clock: int) -> int:
        """About how much a close of this clock reads and writes."""
        return self.blocks.nbytes + self._staging.row_bytes(clock)

    # -- surface of a machine

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        """Pushes, pulls, scans, first values of agents; Close and Roster of the clock (their acks are the node's to give).

        Large work is done in slices: while it is `suspended` nothing but `go_on` may be called.
        """
        outcome = _HANDLERS[type(message)](self, sender, message)
        if not isinstance(outcome, Generator):
            return list(outcome)
        self._work = outcome
        return self.go_on()

    @property
    def suspended(self) -> bool:
        return self._work is not None

    def go_on(self) -> list[Any]:
        """One slice more of what was begun; its effects once it is over."""
        work, self._work = self._work, None  # for good, if it is over or raises
        assert work is not None
        done = 0
        try:
            while done < self._limits.turn_bytes:
                done += next(work)
        except StopIteration as end:
            return list(end.value)
        self._work = work
        return []

    def on_time(self, now_us: int) -> list[Any]:
        return []

    def deadline_us(self) -> int | None:
        return None

    # -- streams

    def _on_push(self, sender: str, push: m.Push) -> Slices[Effects]:
        """Take a push once, however often it arrives.  A sum of several workers' pushes is taken as one, or not at all."""
        components = push.components
        if len(components) != 1 and (not components or len({component.worker for component in components}) != len(components)):
            raise PeerError(f"a push of {len(components)} components, which are not one worker's each")
        looks = [self.streams.look(component) for component in components]
        if looks.count(NEXT) != len(looks):
            return self._not_next(sender, components, looks)

        try:
            load = self.contents.read(push.segments, push.payload)
            holders = load.holders()
            staged = any([holder.staged for holder in holders])
            if staged and components[0].clock > self.closed + 1:
                return []  # too early to keep: the agent sends it again, when the clocks before it may have closed
            self._check(components, staged)
            if len(components) > 1:
                check_sum(components, holders)
            scalars = self._scalars(components, holders)
            prepared = yield from self.contents.prepare(load, scalars)
        except RequestError as refusal:
            return [Send(sender, self._refuse(refusal, *component[:3])) for component in components]

        self.log.append(push, tuple(scalars.items()))
        self.streams.measure(components, push.base, bool(scalars))
        newer = self.streams.take(components)
        yield from self._commit(prepared)
        effects: list[Any] = [Send(sender, self._ack(*component[:3])) for component in components]
        if newer:
            effects += self._fence_parked()
        if self._parking.count:
            for component in components:
                effects += self._answer(self._parking.take_for_push(component.worker))
        return effects

    def _not_next(self, sender: str, components: Sequence[m.Component], looks: Sequence[int]) -> Effects:
        """What a push is told that is not the next one of each of its streams."""
        streams = self.streams
        alive = [component for component, look in zip(components, looks) if look != FENCED]
        effects = [
            Send(sender, self._refuse(_fenced(worker, gen, streams.gen(worker)), worker, gen, seq))
            for (worker, gen, seq, *_), look in zip(components, looks)
            if look == FENCED
        ]
        lasts = tuple([(worker, gen, streams.last(worker, gen)) for worker, gen, *_ in alive])
        if all(look == SEEN for look in looks):
            return [Send(sender, self._ack(*last)) for last in lasts]
        if lasts and (effects or SEEN in looks):  # the sum is of no use any more: each comes alone
            return [*effects, Send(sender, m.Partial(self.job, self.number, self.epoch, self.token, lasts))]
        # A gap alone: an earlier push is still on its way, the agent sends both again.  But if one that the agent had
        # given up has come after all, it has to know before this one is in order.
        effects += [Send(sender, self._last_told(*last)) for last, look in zip(lasts, looks) if look == ASTRAY]
        return effects

    def _on_last_ask(self, sender: str, ask: m.LastAsk) -> Effects:
        row_gen, last = self.rows.get(ask.worker, (0, 0))
        if ask.gen < row_gen:
            return [Send(sender, self._refuse(_fenced(ask.worker, ask.gen, row_gen), ask.worker, ask.gen, 0))]
        return [Send(sender, self._last_told(ask.worker, ask.gen, last if ask.gen == row_gen else 0))]

    def holds(self, worker: int, gen: int, seq: int) -> bool:
        """Whether this push of the stream is its last one here, and every copy has it."""
        return self.rows.get(worker) == (gen, seq) and self.log.committed == self.log.last

    def _check(self, components: Sequence[m.Component], staged: bool) -> None:
        """Whether the push may be taken at all, its numbers aside.  Raises `RequestError`."""
        if self.failure is not None:
            raise RequestError(self.failure.code, self.failure.text)
        for component in components:
            self._check_component(component, staged)

    def _check_component(self, component: m.Component, staged: bool) -> None:
        if component.worker >= self._limits.workers_max:
            raise RequestError(Code.RANGE, f"worker {component.worker}; from 0 to {self._limits.workers_max - 1}")
        if not 0.0 <= component.weight <= WEIGHT_MAX:  # NaN fails too
            raise RequestError(Code.RANGE, f"weight {component.weight} of the push; use a number from 0 to 2^53")
        if component.clock < 0:
            raise RequestError(Code.RANGE, f"clock {component.clock} of the push is below 0")
        if not staged:
            return
        if component.clock < self.closed:
            raise RequestError(Code.SEQ, f"clock {component.clock} is closed already; {self.closed} is the next one to close")
        most = self._limits.staged_max
        if self._staging.count(component) >= most:
            text = f"worker {component.worker} pushed more than {most} times in clock {component.clock}"
            raise RequestError(Code.RANGE, f"{text}; end the clock more often, or add the pushes up before sending them")

    def _scalars(self, components: Sequence[m.Component], holders: Sequence[Holder]) -> Scalars:
        """Scalars of the steps that this push makes at once, by table."""
        first, *others = components
        found: Scalars = {}
        for holder in holders:
            if holder.staged or holder.table in found:
                continue
            share = self.shares.share(holder.table, first, others) if holder.mean else 1.0
            found[holder.table] = holder.scalars(first.clock, share)
        return found

    # -- the log

    def _commit(self, prepared: Prepared) -> Slices[None]:
        """Apply what is committed, in order of the log.  With one copy that is the entry just appended."""
        for entry in self.log.commit():
            yield from self._apply(entry, prepared)

    def _apply(self, entry: Entry, prepared: Prepared) -> Slices[None]:
        """Make an entry visible: only committed ones come here."""
        assert entry.version == self.version + 1
        self.version = entry.version
        yield from self.contents.apply(prepared)
        message = entry.message
        if isinstance(message, m.Push):
            yield from self._take_push(message.components, entry, prepared.staged)
        elif isinstance(message, m.Close):
            self._staging.drop(message.clock)
            self.closed = message.clock + 1
            self.contents.closed(self.closed)
        elif isinstance(message, m.Init):
            self.claim = message.claim
        else:
            self._take_roster(message)

    def _take_push(self, components: tuple[m.Component, ...], entry: Entry, staged: Load) -> Slices[None]:
        for table, _ in entry.scalars:
            for component in components:
                self.shares.note(table, component)
        if entry.scalars:
            self.streams.stepped(components, entry.version)
        if staged.items or staged.groups:
            pushed = yield from self.contents.hold(staged)
            self._staging.add(Staged(components, staged.items, pushed))

    def _take_roster(self, roster: m.Roster) -> None:
        """Members of clocks, and the newest gen of each worker: lower ones are fenced."""
        self.shares.take(roster)
        for worker, gen, _, _ in roster.members:
            self.streams.fence(worker, gen)

    # -- the clock

    def _on_close(self, sender: str, close: m.Close) -> Slices[Effects]:
        """Close exactly the next clock: an earlier one is a repeat, a later one comes again."""
        if close.clock != self.closed:
            return []
        if self.failure is not None:
            return [self._failed(self.failure)]  # it was not heard yet

        plan = self._staging.plan(close.clock, close.members)
        scalars = {holder.table: holder.scalars(close.clock) for holder in plan.holders()}
        try:
            prepared = yield from self.contents.close(plan, dict(close.totals), scalars)
        except RequestError as refusal:
            return self._fail(RequestError(refusal.code, f"clock {close.clock} cannot be closed: {refusal.text}"))
        stepped = {place.table for place, _ in prepared.news} | {step.rows.table for step in prepared.steps}
        self.log.append(close, tuple(item for item in scalars.items() if item[0] in stepped))
        yield from self._commit(prepared)
        return self._answer(self._parking.take_for_close()) if self._parking.count else []

    def _on_roster(self, sender: str, roster: m.Roster) -> Slices[Effects]:
        if roster.number <= self.shares.number:
            return []
        self.log.append(roster, ())
        yield from self._commit(_NO_CHANGE)
        return self._fence_parked()

    def _fail(self, failure: RequestError) -> Effects:
        """The values stay as they were, for exports to read; whoever waits is told, and the job ends with the reason."""
        self.failure = failure
        waiting = self._parking.take_if(lambda pull: True)
        return [self._failed(failure), *(Send(sender, self._refuse_pull(failure, pull)) for sender, pull in waiting)]

    def _failed(self, failure: RequestError) -> JobFailed:
        return JobFailed(self.job, self.number, int(failure.code), failure.text)

    # -- pulls

    def _on_pull(self, sender: str, pull: m.Pull) -> Effects:
        return self._answer((Parked(sender, pull),))

    def _answer(self, asked: Sequence[Parked]) -> list[Any]:
        """Values to those who may see them, refusals to those who never will; the others wait (again)."""
        effects: list[Any] = []
        for sender, pull in asked:
            row_gen, last = self.rows.get(pull.worker, (0, 0))
            if pull.gen < row_gen:
                effects.append(Send(sender, self._refuse_pull(_fenced(pull.worker, pull.gen, row_gen), pull)))
            elif self.failure is not None and (pull.worker != m.NOBODY or pull.closed > self.closed):
                effects.append(Send(sender, self._refuse_pull(self.failure, pull)))
            elif pull.after > (last if pull.gen == row_gen else 0):
                self._parking.park(sender, pull, for_push=True)
            elif pull.closed > self.closed:
                self._parking.park(sender, pull, for_push=False)
            else:
                effects.append(Send(sender, self._values(pull)))
        return effects

    def _values(self, pull: m.Pull) -> m.Values | m.Refuse:
        try:
            segments, payload = self.contents.show(pull.segments, pull.payload)
        except RequestError as refusal:
            return self._refuse_pull(refusal, pull)
        return m.Values(
            self.job, self.number, self.epoch, self.token, pull.request, self.version, self.closed, segments, payload
        )  # fmt: skip

    def _on_pull_at(self, sender: str, pull: m.PullAt) -> Effects:
        try:
            segments, payload = self.contents.show_kept(pull.at, self.closed, pull.segments)
        except RequestError as refusal:
            return [Send(sender, self._refuse(refusal, m.NOBODY, 0, 0, pull.request))]
        answer = m.Values(self.job, self.number, self.epoch, self.token, pull.request, self.version, pull.at, segments, payload)
        return [Send(sender, answer)]

    def _on_scan(self, sender: str, scan: m.Scan) -> Effects:
        try:
            segments, payload, follow = self.contents.scan(scan.at, self.closed, scan.cursor, scan.table, scan.bucket)
        except RequestError as refusal:
            return [Send(sender, self._refuse(refusal, m.NOBODY, 0, 0, scan.request))]
        answer = m.Scanned(
            self.job, self.number, self.epoch, self.token, scan.request, self.version, follow, scan.at or self.closed, segments, payload
        )  # fmt: skip
        return [Send(sender, answer)]

    def _fence_parked(self) -> list[Any]:
        """Refuse waiting pulls of incarnations that have a successor."""
        if not self._parking.count:
            return []
        return self._answer(self._parking.take_if(lambda pull: pull.gen < self.streams.gen(pull.worker)))

    # -- first values

    def _on_init(self, sender: str, init: m.Init) -> Slices[Effects]:
        """Take the values of the highest claim; the same claim again is a repeat."""
        ack = Send(sender, m.InitAck(self.job, self.number, self.epoch, self.token, init.claim))
        if init.claim == self.claim:
            return [ack]
        try:
            if init.claim < self.claim:
                raise RequestError(Code.FENCED, f"claim {self.claim} on the first values has taken the place of {init.claim}")
            prepared = self.contents.offer(self.contents.read(init.segments, init.payload))
        except RequestError as refusal:
            return [Send(sender, self._refuse(refusal, m.NOBODY, 0, init.claim))]

        self.log.append(init, ())
        yield from self._commit(prepared)
        return [ack]

    # -- answers

    def _ack(self, worker: int, gen: int, seq: int) -> m.PushAck:
        behind = self.streams.behind(worker)
        return m.PushAck(self.job, self.number, self.epoch, self.token, worker, gen, seq, behind)

    def _last_told(self, worker: int, gen: int, seq: int) -> m.LastTold:
        return m.LastTold(self.job, self.number, self.epoch, self.token, worker, gen, seq)

    def _refuse(self, why: RequestError, worker: int, gen: int, seq: int, request: int = 0) -> m.Refuse:
        return m.Refuse(
            self.job, self.number, self.epoch, self.token, request, worker, gen, seq, int(why.code), why.text
        )  # fmt: skip

    def _refuse_pull(self, why: RequestError, pull: m.Pull) -> m.Refuse:
        return self._refuse(why, pull.worker, pull.gen, 0, pull.request)

    # -- what must always hold

    def check(self) -> None:
        if self.suspended:
            return
        assert self.version == self.log.committed == self.log.last
        assert self._parking.count == len(list(self._parking)) <= self._limits.parked_max
        newest: dict[tuple[int, int, int], int] = {}
        for clock, worker, gen, seq in self._staging.pushes():
            assert self.closed <= clock <= self.closed + 1, f"a push of clock {clock} waits, {self.closed} are closed"
            assert seq > newest.get((clock, worker, gen), 0), "staged pushes of a stream are out of order"
            assert (gen, seq) <= self.rows[worker], "a staged push that the streams' table does not know"
            newest[clock, worker, gen] = seq
        for _, pull in self._parking:
            gen, last = self.rows.get(pull.worker, (0, 0))
            visible = pull.after <= (last if gen == pull.gen else 0)
            assert pull.closed > self.closed or not visible, "a pull waits for nothing"

    def digest(self) -> int:
        """Equal on all copies at an equal log position."""
        state = (self.version, self.closed, self.claim, sorted(self.rows.items()), self._staging.pushes())
        return crc32(repr(state).encode(), self.contents.digest())


def _fenced(worker: int, gen: int, newest: int) -> RequestError:
    return RequestError(Code.FENCED, f"generation {newest} of worker {worker} has taken the place of {gen}")


_HANDLERS: dict[type[Any], Any] = {
    m.Push: RangeMachine._on_push,
    m.Pull: RangeMachine._on_pull,
    m.Close: RangeMachine._on_close,
    m.LastAsk: RangeMachine._on_last_ask,
    m.Init: RangeMachine._on_init,
    m.Roster: RangeMachine._on_roster,
    m.PullAt: RangeMachine._on_pull_at,
    m.Scan: RangeMachine._on_scan,
}
