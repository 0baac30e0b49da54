"""The ring: which server leads which key range, and what moves when the servers change.

A server has `points` positions on the 64-bit circle, hashed from its *id* (a restarted server has the old places).  The
copies of a range lie on the first servers clockwise of it whose hosts differ and that have room: no server is given
more than 1.1 x the mean of the bytes, heavy ranges choose first ("consistent hashing with bounded loads", Mirrokni,
Thorup and Zadimoghaddam, SODA 2018).  Pure arithmetic: the same arguments give the same placement on every computer.
Who is alive, and what is really stored where, is known to the master only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
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


class Move(NamedTuple):
    """One copy of a range that `target` gets (from `source`, one of those that have it; "" = nobody has)."""

    range: int
    source: str
    target: str


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

    def walk(self, range_number: int) -> Iterator[str]:
        """Every member, in the order in which they are met clockwise of the start of a range."""
        start = bisect_left(self._places, range_number * ((1 << 64) // self.ranges))
        met: set[str] = set()
        for spot in range(start, start + len(self._owners)):
            owner = self._owners[spot % len(self._owners)]
            if owner not in met:
                met.add(owner)
                yield owner

    def place(self, weights: Mapping[int, int], copies: int = 1, before: Mapping[int, Share] | None = None) -> tuple[Placement, str]:
        """Servers for every range in `weights` (bytes; each range counts at least 1), and why it is so.

        With fewer hosts than copies, copies share a host; with fewer servers than copies, there are fewer copies.
        With the placement `before`, a copy stays where it is as long as that server has room, unless a newcomer stands
        before it on the ring: without it, each range that moves takes another one's room, and so on round the ring.
        """
        assert self.members and copies >= 1
        kept = min(copies, len(self.members))
        hosts = len({member.host for member in self.members.values()})
        total = kept * sum(max(1, weight) for weight in weights.values())
        bound = -(-total * LOAD_PERCENT // (100 * len(self.members)))
        loads = dict.fromkeys(self.members, 0)

        old = before or {}
        known = {server for share in old.values() for server in share.servers}
        stay = {number: [server for server in old[number].servers if server in self.members] for number in weights if number in old}
        placement: Placement = {}
        for number in sorted(weights, key=lambda item: (-weights[item], not stay.get(item), item)):
            walk = ring = list(self.walk(number))
            if stay.get(number):
                last = max(map(ring.index, stay[number]))
                first = [server for at, server in enumerate(ring) if server in stay[number] or (at < last and server not in known)]
                walk = [*first, *(server for server in ring if server not in first)]
            chosen = self._choose(walk, max(1, weights[number]), kept, hosts >= kept, bound, loads)
            placement[number] = Share(chosen, ring.index(chosen[0]))
        return dict(sorted(placement.items())), self._reason(placement, loads, copies, hosts)

    def _choose(self, walk: list[str], weight: int, copies: int, apart: bool, bound: int, loads: dict[str, int]) -> tuple[str, ...]:
        """The servers of one range, the first of `walk` that may have it; books its bytes."""
        chosen: list[str] = []
        for _ in range(copies):
            taken = {self.members[server].host for server in chosen} if apart else set()
            allowed = {name for name, member in self.members.items() if name not in chosen and member.host not in taken}
            # Where nobody has room (a range heavier than the mean), the emptiest takes it: never worse than mean + weight.
            limit = max(bound, min(loads[server] for server in allowed) + weight)
            server = next(server for server in walk if server in allowed and loads[server] + weight <= limit)
            chosen.append(server)
            loads[server] += weight
        return tuple(chosen)

    def _reason(self, placement: Placement, loads: dict[str, int], copies: int, hosts: int) -> str:
        count = len(self.members)
        mean = max(1, sum(loads.values()) // count)
        displaced = sum(share.passed > 0 for share in placement.values())
        text = (
            f"{plural(len(placement), 'range')} on {plural(count, 'server')}: the fullest has {max(loads.values()) / mean:.2f} x the mean"
        )
        if displaced:
            text += f", {displaced} moved on clockwise because the server before had a full share"
        if count < copies:
            text += f"; only {count} of {copies} copies: start more servers"
        elif hosts < copies:
            text += f"; copies share a host: {plural(hosts, 'host')} for {copies} copies"
        return text


def moves(old: Mapping[int, Share], new: Mapping[int, Share]) -> list[Move]:
    """The copies that somebody must get so that `old` becomes `new`, by range."""
    result = []
    for number, share in sorted(new.items()):
        before = old[number].servers if number in old else ()
        source = before[0] if before else ""
        result += [Move(number, source, server) for server in share.servers if server not in before]
    return result


def plural(count: int, word: str) -> str:
    """`1 range`, `2 ranges`: for sentences that people read."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
