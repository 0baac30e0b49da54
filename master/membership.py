"""Who is alive: beats against the monotonic clock, kept in memory only.

Owns the moment of each node's last sign of life and what it told with it.  Refuses to know jobs, and to store anything:
whoever is declared dead here is taken out of the stored state elsewhere.

    unheard --beat--> alive --suspect_us of silence--> suspect --dead_us--> dead (or at once: its process was seen to end)
                                                               --dead_us--> offline --RETURN_FACTOR x dead_us--> dead
    offline: it may hold what nobody else has

Nobody is declared dead for 2 x dead_us after the master's own start, and a loop that was late forgives everybody.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ..core.effects import Log
from ..core.limits import SECOND, Limits
from .catalog import NodeRecord, node_id

UNHEARD, ALIVE, SUSPECT, OFFLINE, DEAD = "unheard", "alive", "suspect", "offline", "dead"
RETURN_FACTOR = 10  # who may hold what nobody else has is waited for, so many times `dead_us` in all
COUNTERS_MAX = 64  # of a node's beat that are kept for `status`
COUNTER_NAME_MAX = 64
BEATS_OF_A_HOLDER = 3  # so many beats of the holder, and the newcomer is a second process

ROLES = ("server", "agent")
TEXT_MAX = 255  # of a node's host, endpoint and build
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}\.[A-Za-z0-9]{1,20}\Z")


def trouble_of(sender: str, role: str, texts: tuple[str, str, str]) -> str:
    """Why a registration with this host, endpoint and build cannot be taken, "" if it can."""
    if not _NAME.match(sender):
        return f"{sender[:80]!r} is no node name: it must be <id>.<incarnation>"
    if role not in ROLES:
        return f"role {role[:40]!r} is none of {', '.join(ROLES)}"
    if role == "server" and not texts[1]:
        return "a server must say where others reach it"
    if max(map(len, texts)) > TEXT_MAX:
        return f"host, endpoint and build have at most {TEXT_MAX} characters"
    return ""


class Life:
    """One incarnation as seen from here."""

    __slots__ = ("record", "state", "why", "ended", "last_us", "since_us", "token", "counters", "unreached")

    def __init__(self, record: NodeRecord, state: str, now_us: int) -> None:
        self.record = record
        self.state = state
        self.why = ""
        self.ended = False  # its process was seen to end: whatever comes from it now is late
        self.last_us = now_us
        self.since_us = now_us
        self.token = 0
        self.counters: dict[str, int] = {}
        self.unreached = ""  # why others cannot call it, as far as that was tried


class Candidate:
    """A process that asks for the id of another one that may be alive."""

    __slots__ = ("name", "first_us", "last_us", "beats")

    def __init__(self, name: str, now_us: int) -> None:
        self.name = name
        self.first_us = self.last_us = now_us
        self.beats = 0  # of the holder, once it should have been silent


class Claim(NamedTuple):
    """What becomes of a registration: admit | wait | refuse, with the sentence for a refused one."""

    verdict: str
    text: str = ""


class Membership:
    """Every node by id, and the dead ones that `status` still shows."""

    def __init__(self, limits: Limits, now_us: int) -> None:
        self.limits = limits
        self.start_us = now_us
        self.lives: dict[str, Life] = {}  # by id
        self.dead: dict[str, Life] = {}  # by name, oldest first
        self.candidates: dict[str, Candidate] = {}  # by id

    # -- who comes

    def restore(self, record: NodeRecord, now_us: int) -> None:
        """A node that the store names: it may live, but this master has not heard it yet."""
        self.lives[node_id(record.name)] = Life(record, UNHEARD, now_us)

    def admit(self, record: NodeRecord, now_us: int) -> list[Any]:
        """The node is registered and stored.  An older incarnation of its id is dead from here on."""
        holder = self.lives.get(node_id(record.name))
        self.dead.pop(record.name, None)
        self.candidates.pop(node_id(record.name), None)
        if holder is not None and holder.record.name == record.name:
            holder.record = record
            return self._heard(holder, now_us)
        effects = self.bury(holder.record.name, f"{record.name} took its place", now_us) if holder is not None else []
        self.lives[node_id(record.name)] = Life(record, ALIVE, now_us)
        fields = {"node": record.name, "role": record.role, "host": record.host, "pid": record.pid}
        return [*effects, Log("registered", fields)]

    def claim(self, name: str, now_us: int) -> Claim:
        """May `name` have its id?  At once if nobody has it; else when the holder falls silent; never while it beats.

        A restarted process comes while its predecessor is not yet known to be dead, and a second process by mistake
        comes while the first is at work: only silence tells them apart.
        """
        holder = self.lives.get(node_id(name))
        if name in self.dead and self.dead[name].ended:
            return Claim("wait")
        if holder is None or holder.record.name == name:
            if holder is None and len(self.lives) >= self.limits.nodes_max:
                return Claim("refuse", f"the cluster has {self.limits.nodes_max} nodes, and takes no more")
            return Claim("admit")
        candidate = self.candidates.get(node_id(name))
        if candidate is None or now_us - candidate.last_us > self.limits.dead_us:
            if len(self.candidates) < self.limits.nodes_max:
                self.candidates[node_id(name)] = Candidate(name, now_us)
            return Claim("wait")
        if candidate.name != name:
            return Claim("wait")
        candidate.last_us = now_us
        if now_us - holder.last_us >= self.limits.suspect_us:
            return Claim("admit")
        if candidate.beats < BEATS_OF_A_HOLDER or now_us - candidate.first_us < self.limits.dead_us:
            return Claim("wait")
        del self.candidates[node_id(name)]
        record = holder.record
        where = f"process {record.pid} on {record.host} ({record.name})"
        return Claim("refuse", f"{node_id(name)} is {where}, which is alive: stop it, or start this one under another --id")

    # -- signs of life

    def beat(self, name: str, token: int, counters: dict[str, int], now_us: int) -> tuple[bool, list[Any]]:
        """Is the node known?"""
        life = self.lives.get(node_id(name))
        if life is None or life.record.name != name:
            return False, []
        life.token = token
        kept = [(key, value) for key, value in counters.items() if len(key) <= COUNTER_NAME_MAX]
        life.counters = dict(kept[:COUNTERS_MAX])
        candidate = self.candidates.get(node_id(name))
        if candidate is not None and now_us - candidate.first_us >= self.limits.suspect_us:
            candidate.beats += 1
        return True, self._heard(life, now_us)

    def _heard(self, life: Life, now_us: int) -> list[Any]:
        before, silence_us = life.state, now_us - life.last_us
        life.last_us, life.state, life.why = now_us, ALIVE, ""
        if before not in (SUSPECT, OFFLINE):
            return []
        return [Log("heard_again", {"node": life.record.name, "silent_us": silence_us})]

    def bury(self, name: str, why: str, now_us: int, ended: bool = False) -> list[Any]:
        """The node is dead, and why.  `ended`: surely, because its process was seen to end."""
        if name in self.dead:
            self.dead[name].ended |= ended
        life = self.lives.get(node_id(name))
        if life is None or life.record.name != name:
            return []
        life.ended = ended
        del self.lives[node_id(name)]
        life.state, life.why = DEAD, why
        self.dead[name] = life
        while len(self.dead) > self.limits.dead_kept:
            del self.dead[next(iter(self.dead))]
        return [Log("dead", {"node": name, "role": life.record.role, "why": why})]

    # -- time

    def forgive(self, now_us: int) -> None:
        """Our own loop was late: every silence may be our own."""
        for life in self.lives.values():
            life.last_us = now_us
        for candidate in self.candidates.values():
            candidate.first_us = candidate.last_us = now_us

    def silent(self, now_us: int) -> tuple[list[tuple[str, str]], list[Any]]:
        """Nodes to be declared dead, with the reason; and lines about those that have just become suspect."""
        limits = self.limits
        dead: list[tuple[str, str]] = []
        effects: list[Any] = []
        for life in self.lives.values():
            silence_us = now_us - life.last_us
            if silence_us >= limits.suspect_us and life.state == ALIVE:
                life.state = SUSPECT
                effects.append(Log("suspect", {"node": life.record.name, "silent_us": silence_us}))
            if silence_us >= limits.dead_us and now_us >= self.start_us + 2 * limits.dead_us:
                dead.append((life.record.name, f"no beat for {silence_us / SECOND:.1f} s"))
        for held, candidate in list(self.candidates.items()):
            if now_us - candidate.last_us > limits.dead_us:
                del self.candidates[held]
        return dead, effects

    def is_heard(self, name: str) -> bool:
        life = self.lives.get(node_id(name))
        return life is not None and life.record.name == name and life.state == ALIVE

    def may_return(self, name: str, now_us: int) -> bool:
        """It is silent, but not yet for so long that nobody waits for it any more."""
        life = self.lives.get(node_id(name))
        return life is not None and life.record.name == name and now_us - life.last_us < RETURN_FACTOR * self.limits.dead_us

    def put_offline(self, name: str, why: str) -> list[Any]:
        """The node is waited for, and why."""
        life = self.lives[node_id(name)]
        if life.state == OFFLINE:
            return []
        life.state, life.why = OFFLINE, why
        return [Log("offline", {"node": name, "why": why})]

    def offline(self) -> list[str]:
        """What is to be said of those that are waited for."""
        return [f"server {held} is silent: {life.why}" for held, life in sorted(self.lives.items()) if life.state == OFFLINE]

    def silent_servers(self, now_us: int) -> tuple[list[str], int]:
        """Servers that have not been heard for `suspect_us`, and how many there are in all, less those that are offline."""
        servers = [life for _, life in sorted(self.lives.items()) if life.record.role == "server" and life.state != OFFLINE]
        return [life.record.name for life in servers if now_us - life.last_us >= self.limits.suspect_us], len(servers)

    # -- for placement

    def servers(self) -> list[NodeRecord]:
        """Servers that a job may be given to: heard by this master, by id."""
        return [life.record for _, life in sorted(self.lives.items()) if life.record.role == "server" and life.state not in (UNHEARD, OFFLINE)]

    def awaited(self, now_us: int) -> list[str]:
        """Servers that the store names and that may still come back after this master's start."""
        if now_us >= self.start_us + self.limits.suspect_us:
            return []
        return [life.record.name for _, life in sorted(self.lives.items()) if life.record.role == "server" and life.state == UNHEARD]

    def check(self) -> None:
        for held, life in self.lives.items():
            assert node_id(life.record.name) == held and life.state != DEAD, life.record
        for name, life in self.dead.items():
            assert life.record.name == name and life.state == DEAD, life.record
        assert len(self.dead) <= self.limits.dead_kept
