"""The master: who is alive, who owns what.  Decides, stores, and only then tells; never in the way of pushes and pulls.

Puts together membership (beats, in memory), the ledger (the stored state) and the decisions (what changes it).  What
follows from a change is decided with it: before anything is stored, the mender looks over the whole (`_go_on`).
Everything that it sends may be lost: nodes ask again, and each answer may be given twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

from ..core.addresses import is_tcp
from ..core.effects import Disconnect, Log, Send
from ..core.errors import Code, RequestError
from ..core.limits import Limits
from ..core.ring import plural
from ..wire import messages as m
from . import decisions, orders, saves, words
from .catalog import NodeRecord, State, is_drained, node_id, pack
from .decisions import ENDINGS, Outcome
from .effects import Reach, StoreDone, Unreached
from .gone import removed_map
from .ledger import Change, Ledger, Released
from .membership import ALIVE, Membership, trouble_of
from .mending import Avoided, Mender
from .seats import DROP
from .strays import Strays


class MasterMachine:
    """One master of one cluster.

    `name` is its id (masters are addressed by it), `incarnation` tells this process from the one before.  The first job
    waits up to `settle_us` for `servers_expected` servers, so that it is spread over all that were started with the master.
    A job that leaves its number of copies open gets `copies` (0 = 2 where there are two servers).
    One of several masters has a machine for each of its reigns (see `rival`), with the `term` and the process's `numbers`.
    """

    def __init__(
        self, name: str, incarnation: str, cluster: str, limits: Limits = Limits(), servers_expected: int = 1,
        copies: int = 0, term: int = 0, numbers: Iterator[int] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.cluster = cluster
        self.limits = limits
        self.servers_expected = servers_expected
        self.copies = copies
        self.ledger = Ledger(f"{name}.{incarnation}", limits, term, numbers)
        self.members = Membership(limits, 0)
        self.started = False
        self.tick_us = 0  # when on_time is due for liveness
        self.waiting: dict[str, m.JobAsk] = {}  # by asker: jobs that wait for a server
        self.audience: dict[int, dict[str, None]] = {}  # by job: nodes that asked for its map
        self.holders: dict[int, tuple[str, ...]] = {}  # by job: servers of the map that was told last
        self.full = False
        self.mender = Mender(limits)
        self.avoided = Avoided(limits)
        self.strays = Strays(limits.gone_us)
        self.to_mend = True  # something has changed on which copies may depend
        self.stranded = ""  # why nobody is declared dead, "" = there is no reason
        self._handlers: dict[type[Any], Callable[[str, Any, int], list[Any]]] = {
            m.Register: self._on_register, m.Beat: self._on_beat, m.JobAsk: self._on_job_ask,
            m.AttachAsk: self._on_attach_ask, m.MoreAsk: self._on_more_ask, m.MapAsk: self._on_map_ask, m.JobEnd: self._on_job_end,
            m.NodeExit: self._on_node_exit, m.SeatAsk: self._on_seat_ask, m.Admin: self._on_admin, Unreached: self._on_unreached,
            m.Retire: self._on_retire,
            m.SaveEnd: lambda sender, ask, now_us: self._submit(("save", sender, ask), lambda state: saves.note(state, sender, ask)),
        }  # fmt: skip

    # -- events

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        effects = self._awake(now_us)
        if isinstance(message, StoreDone):
            return [*effects, *self._on_store_done(message, now_us)]
        handler = self._handlers.get(type(message))
        if handler is None or self.ledger.state is None:
            return effects  # not for a master, or its state is not read yet: whoever asks will ask again
        return [*effects, *handler(sender, message, now_us), *self._go_on(now_us)]

    def on_time(self, now_us: int) -> list[Any]:
        effects = self._awake(now_us)
        effects += self.ledger.on_time(now_us)
        if now_us >= self.tick_us:
            self.tick_us = now_us + self.limits.beat_us
            self.to_mend = True
            effects += self._look_around(now_us)
        return [*effects, *self._go_on(now_us)]

    def deadline_us(self) -> int | None:
        retry_us = self.ledger.deadline_us()
        return self.tick_us if retry_us is None else min(self.tick_us, retry_us)

    def _awake(self, now_us: int) -> list[Any]:
        """Start, and notice when this process itself has slept: then every silence may be its own."""
        if not self.started:
            self.started = True
            self.members = Membership(self.limits, now_us)
            self.tick_us = now_us + self.limits.beat_us
            return [self.ledger.open(self.limits.ranges)]
        late_us = now_us - self.tick_us
        if late_us <= self.limits.late_us:
            return []
        self.members.forgive(now_us)
        self.tick_us = now_us  # on_time is due, but no longer late
        return [Log("late", {"late_us": late_us, "text": "this master was not run for a while and blames nobody for the silence"})]

    # -- changes and what leaves with them

    def _submit(self, key: tuple[Any, ...], change: Change, must: bool = False) -> list[Any]:
        if self.ledger.submit(key, change, must):
            self.full = False
            return []
        before, self.full = self.full, True
        return [] if before else [Log("changes_full", {"waiting": len(self.ledger.pending), "store": self.ledger.trouble or "ok"})]

    def _go_on(self, now_us: int) -> list[Any]:
        """Store what waits; the mender comes last in it, so that it sees all of it."""
        if self.to_mend and self.ledger.state is not None and self.ledger.flying is None:
            self.to_mend = False
            self.ledger.submit(("mend",), lambda state: self._mend(state, now_us), must=True)
        return self._release(self.ledger.advance())

    def _mend(self, state: State, now_us: int) -> Outcome:
        """Only while this master knows who is there: not before it has heard the servers after its start, nor when it may be cut off."""
        if self.stranded or self.members.awaited(now_us):
            return Outcome(state)
        lives = (life for _, life in sorted(self.members.lives.items()) if life.state == ALIVE and life.record.role == "server")
        return self.mender.mend(state, [life.record for life in lives], self.avoided.at(now_us))

    def _on_store_done(self, done: StoreDone, now_us: int) -> list[Any]:
        opening = self.ledger.state is None
        released = self.ledger.on_done(done, now_us)
        state = self.ledger.state
        if opening and state is not None:
            for record in state.nodes.values():
                self.members.restore(record, now_us)
        if state is not None:
            self.audience = {number: names for number, names in self.audience.items() if number in state.jobs}
            self.holders = {number: names for number, names in self.holders.items() if number in state.jobs}
        return [*self._release(released), *self._go_on(now_us)]

    def _release(self, released: Released) -> list[Any]:
        """Maps go out before the answers that speak of them."""
        effects: list[Any] = []
        for number in dict.fromkeys(released.maps):
            effects += self._tell_map(number)
        return [*effects, *released.effects]

    def _tell_map(self, number: int) -> list[Any]:
        state = self._state()
        job = state.jobs.get(number)
        if job is None:
            return []
        told = m.MapTold(number, state.token, job.map(state.token, state.ring_ranges).to_document())
        alive = {record.name for record in state.nodes.values()}
        agents = dict.fromkeys((*job.agents(), *self.audience.get(number, {})))
        # Whoever held something of it until now is told too, so that it forgets that at once.
        holders = dict.fromkeys((*job.endpoints, *self.holders.get(number, ())))
        self.holders[number] = tuple(job.endpoints)
        names = [name for name in holders if name in alive]
        return [Send(name, told) for name in (*names, *(name for name in agents if name in alive and name not in names))]

    def _state(self) -> State:
        assert self.ledger.state is not None
        return self.ledger.state

    # -- nodes

    def _on_register(self, sender: str, ask: m.Register, now_us: int) -> list[Any]:
        trouble = trouble_of(sender, ask.role, (ask.host, ask.endpoint, ask.build))
        claim = self.members.claim(sender, now_us) if not trouble else None
        if claim is not None and claim.verdict == "wait":
            return []
        if claim is None or claim.verdict == "refuse":
            state = self._state()
            text = trouble if claim is None else claim.text
            told = m.Registered(state.term, state.token, self.cluster, False, text)
            return [Log("refused", {"node": sender, "text": text}), Send(sender, told)]
        record = NodeRecord(sender, ask.role, ask.host, ask.endpoint, ask.pid, ask.build)
        holder = self.members.lives.get(node_id(sender))
        effects = self.members.admit(record, now_us)
        if holder is not None and holder.record.name != sender:
            effects.append(Disconnect(holder.record.name))
        effects += self._submit(("register", sender, ask), lambda state: decisions.admit(state, record, self.cluster))
        if record.role == "server":
            self.to_mend = True
            effects += self._ask_again(now_us)
            effects += [Reach(sender, ask.endpoint)] if is_tcp(ask.endpoint) else []
        return effects

    def _on_unreached(self, sender: str, told: Unreached, now_us: int) -> list[Any]:
        life = self.members.lives.get(node_id(told.node))
        if life is None or life.record.name != told.node:
            return []
        life.unreached = told.text
        return [Log("unreached", {"node": told.node, "why": told.text})]

    def _on_beat(self, sender: str, beat: m.Beat, now_us: int) -> list[Any]:
        known, effects = self.members.beat(sender, beat.token, beat.counters, now_us)
        state = self._state()
        if known and beat.token > state.token:
            effects += self._submit(("token",), lambda stored: decisions.catch_up(stored, beat.token))
        return [*effects, Send(sender, m.BeatAck(state.term, state.token, known))]

    def _on_node_exit(self, sender: str, ask: m.NodeExit, now_us: int) -> list[Any]:
        """Whoever watches the process knows better than any timer."""
        why = f"signal {-ask.status}" if ask.status < 0 else f"exit code {ask.status}"
        candidate = self.members.candidates.get(node_id(ask.node))
        if candidate is not None and candidate.name == ask.node:
            del self.members.candidates[node_id(ask.node)]

        def change(state: State) -> Outcome:
            outcome = decisions.lose(state, ask.node, why)
            return outcome._replace(effects=(*outcome.effects, Send(sender, m.Done(ask.request, Code.OK, words.after(state, ask.node)))))

        buried = self._bury(ask.node, why, now_us, ended=True)
        return [*buried, *self._submit(("exit", sender, ask), change, must=bool(buried))]

    def _look_around(self, now_us: int) -> list[Any]:
        """Who has been silent for too long?"""
        if self.ledger.state is None:
            return []
        dead, effects = self.members.silent(now_us)
        effects += self._strand(now_us)
        for name, why in dead if not self.stranded else ():
            effects += self._give_up(name, why, now_us)
        lost = self.strays.look(self._state(), self.members.lives, now_us) if not self.stranded else ()
        if lost:
            effects += self._submit(("strays", lost), lambda state: decisions.leave_behind(state, lost))
        return [*effects, *self._ask_again(now_us)]

    def _give_up(self, name: str, why: str, now_us: int) -> list[Any]:
        """A silent node is dead; one that may hold what nobody else has is waited for, and all else goes on without it."""
        is_heard = self.members.is_heard
        alone = words.waits_for(self._state(), name, is_heard) if self.members.may_return(name, now_us) else ""
        if not alone:
            buried = self._bury(name, why, now_us)
            return [*buried, *self._submit(("lose", name), lambda state: decisions.lose(state, name, why), must=True)]
        aside = self._submit(("aside", name), lambda state: decisions.set_aside(state, name, is_heard))
        return [*self.members.put_offline(name, alone), *aside]

    def _strand(self, now_us: int) -> list[Any]:
        """Most servers are silent at once: then it is probably this master that is cut off, and it blames nobody."""
        silent, count = self.members.silent_servers(now_us)
        before, self.stranded = self.stranded, words.stranded(silent, count)
        if bool(before) == bool(self.stranded):
            return []
        return [Log("stranded", {"text": self.stranded}) if self.stranded else Log("not_stranded", {"silent": len(silent)})]

    def _bury(self, name: str, why: str, now_us: int, ended: bool = False) -> list[Any]:
        effects = self.members.bury(name, why, now_us, ended)
        if effects:
            effects.append(Disconnect(name))
            self.to_mend = True
        for listeners in self.audience.values():
            listeners.pop(name, None)
        self.waiting.pop(name, None)
        return effects

    def _on_retire(self, sender: str, ask: m.Retire, now_us: int) -> list[Any]:
        self.to_mend = True
        is_heard = self.members.is_heard
        return self._submit(("retire", sender, ask), lambda state: orders.retire(state, sender, ask.request, is_heard))

    def _on_seat_ask(self, sender: str, ask: m.SeatAsk, now_us: int) -> list[Any]:
        if sender in self.members.dead:
            return []

        def change(state: State) -> Outcome:
            outcome = decisions.change_seat(state, sender, ask)
            if outcome.maps:
                self.to_mend = True
                if ask.verb == DROP:
                    self.avoided.add((ask.job, ask.range, ask.node), now_us)
            return outcome

        self.to_mend = True
        return self._submit(("seat", sender, ask), change)

    # -- jobs

    def _on_job_ask(self, sender: str, ask: m.JobAsk, now_us: int) -> list[Any]:
        if sender in self.members.dead:
            return []
        return self._submit(("job", sender, ask.request), lambda state: self._register_job(state, sender, ask, now_us))

    def _register_job(self, state: State, sender: str, ask: m.JobAsk, now_us: int) -> Outcome:
        servers, why = self._placeable(state, now_us)
        sight = decisions.Sight(servers, self._gone, self.ledger.packer.size, self.copies)
        outcome = decisions.register(state, sender, ask, sight, self.limits)
        if not outcome.waits:
            self.waiting.pop(sender, None)
            return outcome
        if sender in self.waiting or len(self.waiting) >= self.limits.nodes_max:
            return outcome
        self.waiting[sender] = ask
        return outcome._replace(effects=(Log("job_waits", {"agent": sender, "text": why}),))

    def _placeable(self, state: State, now_us: int) -> tuple[list[NodeRecord], str]:
        """Servers for a new job, or none, and what it waits for: those that belong to the cluster may be on their way."""
        servers = [record for record in self.members.servers() if not is_drained(record.name, state.drained)]
        awaited = self.members.awaited(now_us)
        if awaited:
            return [], f"{', '.join(awaited[:4])} may still be alive"
        settling = now_us < self.members.start_us + self.limits.settle_us
        if servers and settling and len(servers) < self.servers_expected:
            return [], f"{len(servers)} of {plural(self.servers_expected, 'server')} are there"
        if not servers and self.members.servers():
            return [], "every server is drained: take one back with `plugml drain --cancel SERVER`"
        return servers, "" if servers else "no server is registered: start one with `plugml server`"

    def _ask_again(self, now_us: int) -> list[Any]:
        """Jobs that waited for a server have their turn."""
        if not self.waiting or not self._placeable(self._state(), now_us)[0]:
            return []
        effects: list[Any] = []
        for sender, ask in list(self.waiting.items()):
            effects += self._on_job_ask(sender, ask, now_us)
        return effects

    def _gone(self, agent: str) -> bool:
        return agent in self.members.dead and node_id(agent) not in self.members.lives

    def _on_attach_ask(self, sender: str, ask: m.AttachAsk, now_us: int) -> list[Any]:
        if sender in self.members.dead:
            return []  # a late word of a dead agent would fence its successor
        self._listen(ask.job, sender)
        return self._submit(("attach", sender, ask), lambda state: decisions.attach(state, sender, ask))

    def _on_more_ask(self, sender: str, ask: m.MoreAsk, now_us: int) -> list[Any]:
        if sender in self.members.dead:
            return []
        size, limits = self.ledger.packer.size, self.limits
        return self._submit(("more", sender, ask), lambda state: decisions.more(state, sender, ask, size, limits))

    def _on_map_ask(self, sender: str, ask: m.MapAsk, now_us: int) -> list[Any]:
        state = self._state()
        job = state.jobs.get(ask.job)
        if job is None:
            if not 0 < ask.job <= state.last:
                return []
            name = state.removed.get(ask.job, "removed")
            gone = removed_map(ask.job, name, state.token, state.ring_ranges)
            return [Send(sender, m.MapTold(ask.job, state.token, gone.to_document()))]
        self._listen(ask.job, sender)
        if ask.token > state.token:
            return []  # the map is being stored, and will be told to everybody who listens
        return [Send(sender, m.MapTold(ask.job, state.token, job.map(state.token, state.ring_ranges).to_document()))]

    def _listen(self, number: int, name: str) -> None:
        """The node is told of every change of the job's map from here on."""
        if number in self._state().jobs:
            listeners = self.audience.setdefault(number, {})
            if len(listeners) < self.limits.nodes_max:
                listeners[name] = None

    def _on_job_end(self, sender: str, ask: m.JobEnd, now_us: int) -> list[Any]:
        if ask.state not in ENDINGS:
            text = f"a job ends as {', '.join(ENDINGS)}, not as {ask.state[:40]!r}"
            return [Send(sender, m.Done(ask.request, Code.FORMAT, text))]

        def change(state: State) -> Outcome:
            outcome = decisions.end(state, ask.job, ask.state, ask.reason)
            return outcome._replace(effects=(*outcome.effects, Send(sender, m.Done(ask.request, Code.OK, ""))))

        return self._submit(("end", sender, ask), change)

    # -- people

    def _on_admin(self, sender: str, ask: m.Admin, now_us: int) -> list[Any]:
        state = self._state()
        view = orders.View(self.members, self.cluster, self.name, self.ledger.trouble, self.stranded, now_us, self.limits)
        try:
            if orders.is_question(ask):
                return [Send(sender, m.AdminTold(ask.request, Code.OK, "", orders.question(state, view, ask)))]
            number, name = orders.check(state, view, ask)
        except RequestError as refused:
            return [Send(sender, m.AdminTold(ask.request, refused.code, refused.text, {}))]

        def change(before: State) -> Outcome:
            try:
                outcome = orders.carry_out(before, view, ask, number, name)
                text, document = orders.report(outcome.state, view, ask, number, name)
            except RequestError as refused:  # what it is about has gone while the change waited for the store
                return Outcome(before, (Send(sender, m.AdminTold(ask.request, refused.code, refused.text, {})),))
            self.to_mend = True
            return outcome._replace(effects=(*outcome.effects, Send(sender, m.AdminTold(ask.request, Code.OK, text, document))))

        buried = self._bury(name, orders.GONE_WHY, now_us) if ask.verb == "gone" else []
        return [*buried, *self._submit((ask.verb, sender, ask.request), change, must=bool(buried))]

    # -- invariants

    def check(self) -> None:
        self.ledger.check()
        self.members.check()
        state = self.ledger.state
        if state is None:
            return
        running = [job.spec.name for job in state.jobs.values() if job.running]
        assert len(running) == len(set(running)), "two running jobs of one name"
        for number, job in state.jobs.items():
            assert 0 < number <= state.last and job.number == number
            named = set(job.servers())
            assert named == set(job.endpoints), f"endpoints of job {number}"
            assert not job.running or all(seat.replicas for seat in job.seats.values()), f"job {number} runs with lost ranges"
        for key, record in state.nodes.items():
            assert node_id(record.name) == key

    def digest(self) -> int:
        state = self.ledger.state
        stored = pack(state) if state is not None else b""
        lives = [(life.record.name, life.state, life.last_us) for _, life in sorted(self.members.lives.items())]
        waiting = (sorted(self.waiting), sorted(self.members.dead), self.ledger.version, self.tick_us, lives)
        return crc32(repr(waiting).encode(), crc32(stored))
