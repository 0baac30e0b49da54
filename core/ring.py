"""The ring: which servers hold which key range, and which of them leads it.

A server has `points` positions on the 64-bit circle, hashed from its *id* (a restarted server has the old places).  The
copies of a range lie on the first servers clockwise of it whose hosts differ and that have room: no server is given
more than 1.1 x the mean of the bytes, be it of all copies or of those that lead, and heavy ranges choose first
("consistent hashing with bounded loads", Mirrokni, Thorup and Zadimoghaddam, SODA 2018).  Pure arithmetic: the same
arguments give the same placement on every computer.  Who is alive, and what is really stored where, is known to the
master only; what moves when servers come and go is in `spread`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from .keys import mix, name_hash

#: A server may hold so much of the mean, in percent.
LOAD_PERCENT = 110


class Member(NamedTuple):
    """A server as the ring sees it: its id gives its points, its host keeps copies apart."""

    id: str
    host: str


class Share(NamedTuple):
    """The servers (ids) that hold a range, the leading one first.  `passed` servers stood before that one, but had a full share."""

    servers: tuple[str, ...]
    passed: int = 0


Placement = dict[int, Share]


def points_of(member_id: str, points: int) -> list[int]:
    """Positions of a server on the ring.

    >>> points_of("s0", 2) == points_of("s0", 3)[:2]
    True
    """
    start = name_hash(member_id)
    return [mix(start ^ mix(number)) for number in range(points)]


class Ring:
    """The circle with its members on it."""

    def __init__(self, members: Sequence[Member], ranges: int, points: int) -> None:
        assert ranges > 0 and ranges & (ranges - 1) == 0, "ranges are a power of two"
        self.members = {member.id: member for member in sorted(members)}
        assert len(self.members) == len(members), "ids are unique"
        self.ranges = ranges
        spots = sorted((point, member) for member in self.members for point in points_of(member, points))
        self._places = [point for point, _ in spots]
        self._owners = [owner for _, owner in spots]
        self._walks: dict[int, tuple[str, ...]] = {}  # worked out once: all jobs ask for the same ones

    def walk(self, range_number: int) -> tuple[str, ...]:
        """Every member, in the order in which they are met clockwise of the start of a range."""
        known = self._walks.get(range_number)
        if known is None:
            start = bisect_left(self._places, range_number * ((1 << 64) // self.ranges))
            met: dict[str, None] = {}
            for spot in range(start, start + len(self._owners)):
                met[self._owners[spot % len(self._owners)]] = None
                if len(met) == len(self.members):
                    break
            known = self._walks[range_number] = tuple(met)
        return known

    def place(self, weights: Mapping[int, int], copies: int = 1) -> tuple[Placement, str]:
        """Servers for every range in `weights` (bytes; each range counts at least 1), and why it is so.

        With fewer hosts than copies, copies share a host; with fewer servers than copies, there are fewer copies.
        """
        assert self.members and copies >= 1
        kept = min(copies, len(self.members))
        load = Load(self.members, sum(max(1, weight) for weight in weights.values()), kept)
        places: dict[int, tuple[str, ...]] = {}
        for number in sorted(weights, key=lambda item: (-weights[item], item)):
            places[number] = self._choose(self.walk(number), max(1, weights[number]), kept, load)
        for number, leader in level(self.members, weights, places).items():
            places[number] = (leader, *(server for server in places[number] if server != leader))
        placement = {n: Share(servers, self.walk(n).index(servers[0])) for n, servers in sorted(places.items())}
        return placement, self._reason(placement, load, copies)

    def _choose(self, walk: Sequence[str], weight: int, copies: int, load: Load) -> tuple[str, ...]:
        """The servers of one range, the first of `walk` that may have it; books its bytes."""
        chosen: list[str] = []
        for _ in range(copies):
            roomy = load.roomy(self.apart(walk, chosen), weight)
            chosen.append(roomy[0] if chosen else load.leader(roomy, weight))
            load.book(chosen[-1], weight, leads=len(chosen) == 1)
        return tuple(chosen)

    def apart(self, walk: Iterable[str], chosen: Collection[str]) -> list[str]:
        """Of `walk`, who may have one more copy beside `chosen`: servers on other hosts, where there are any."""
        others = [server for server in walk if server not in chosen]
        hosts = {self.members[server].host for server in chosen if server in self.members}
        return [server for server in others if self.members[server].host not in hosts] or others

    def _reason(self, placement: Placement, load: Load, copies: int) -> str:
        count = len(self.members)
        hosts = len({member.host for member in self.members.values()})
        mean = max(1, sum(load.held.values()) // count)
        displaced = sum(share.passed > 0 for share in placement.values())
        fullest = max(load.held.values()) / mean
        text = f"{plural(len(placement), 'range')} on {plural(count, 'server')}: the fullest has {fullest:.2f} x the mean"
        if displaced:
            text += f", {displaced} moved on clockwise because the server before had a full share"
        if count < copies:
            text += f"; only {count} of {copies} copies: start more servers"
        elif hosts < copies:
            text += f"; COPIES SHARE A HOST: {plural(hosts, 'host')} for {copies} copies, start servers on others"
        return text


class Load:
    """Bytes by server: of all copies (`held`) and of those that lead (`led`), and how many of each a server may have."""

    def __init__(self, members: Iterable[str], total: int, copies: int) -> None:
        self.held = dict.fromkeys(members, 0)
        self.led = dict.fromkeys(self.held, 0)
        self.held_bound = -(-total * copies * LOAD_PERCENT // (100 * len(self.held)))
        self.led_bound = -(-total * LOAD_PERCENT // (100 * len(self.held)))

    def book(self, server: str, weight: int, leads: bool = False) -> None:
        self.held[server] += weight
        if leads:
            self.led[server] += weight

    def roomy(self, servers: list[str], weight: int) -> list[str]:
        """Those with room for it.  Where nobody has any (a range heavier than the mean), the emptiest: never worse than mean + weight."""
        limit = max(self.held_bound, min(self.held[server] for server in servers) + weight)
        return [server for server in servers if self.held[server] + weight <= limit]

    def leader(self, servers: list[str], weight: int) -> str:
        """The first of them that may lead so much more."""
        limit = max(self.led_bound, min(self.led[server] for server in servers) + weight)
        return next(server for server in servers if self.led[server] + weight <= limit)


def level(members: Iterable[str], weights: Mapping[int, int], places: Mapping[int, Sequence[str]]) -> dict[int, str]:
    """Ranges that another one of their servers should lead, so that nobody leads much more or less than its share.

    Each change brings two servers nearer to each other, so this ends, and what has been levelled stays as it is.
    """
    led = dict.fromkeys(members, 0)
    leaders = {number: servers[0] for number, servers in sorted(places.items()) if servers and servers[0] in led}
    for number, leader in leaders.items():
        led[leader] += max(1, weights.get(number, 0))
    fair = sum(led.values()) / max(1, len(led))
    choices = [number for number in leaders if len(places[number]) > 1]
    changed = bool(choices)
    while changed:
        changed = False
        for number in choices:
            weight, leader = max(1, weights.get(number, 0)), leaders[number]
            least = min((server for server in places[number] if server in led), key=led.__getitem__)
            unfair = 100 * led[leader] > LOAD_PERCENT * fair or LOAD_PERCENT * led[least] < 100 * fair
            if unfair and led[leader] - weight > led[least]:
                led[leader] -= weight
                led[least] += weight
                leaders[number], changed = least, True
    return {number: leader for number, leader in leaders.items() if leader != places[number][0]}


def plural(count: int, word: str) -> str:
    """`1 range`, `2 ranges`, `2 copies`: for sentences that people read."""
    many = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{count} {word if count == 1 else many}"
