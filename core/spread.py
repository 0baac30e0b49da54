"""What moves so that every server has its share: when servers have come, or when copies share a host without need.

Owns the choice of copies that move, as few as do it; where a copy may lie at all is the ring's.  Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .ring import LOAD_PERCENT, Ring, level

#: A server with less of its share is filled.
FILL_BELOW = 0.5


class Move(NamedTuple):
    """The copy of a range that `target` gets and `source` gives up (ids of servers)."""

    range: int
    source: str
    target: str


class Spread(NamedTuple):
    """Copies that move, and ranges that another server is to lead once they have moved."""

    moves: list[Move]
    leaders: dict[int, str]


def spread(ring: Ring, weights: Mapping[int, int], places: Mapping[int, Sequence[str]]) -> Spread:
    """The way from `places` (servers by range, the leading one first) to a fair share for each member of the ring.

    A server with less than half of the mean is filled up to it, by ranges that have it early on the ring, out of the
    servers that have most; then those with more than 1.1 x the mean give to whoever has room.
    """
    work = _Work(ring, weights, places)
    work.part_hosts()
    for server in sorted(ring.members, key=lambda name: (work.held[name], name)):
        work.fill(server)
    for server in sorted(ring.members, key=lambda name: (-work.held[name], name)):
        work.relieve(server)
    return Spread(sorted(work.moves), level(ring.members, weights, work.places))


class _Work:
    """Places and loads as they are after the moves chosen so far."""

    def __init__(self, ring: Ring, weights: Mapping[int, int], places: Mapping[int, Sequence[str]]) -> None:
        self.ring = ring
        self.weights = {number: max(1, weights.get(number, 0)) for number in places}
        self.places = {n: [server for server in servers if server in ring.members] for n, servers in sorted(places.items())}
        self.ranks = {n: {server: rank for rank, server in enumerate(ring.walk(n))} for n in self.places}
        self.held = dict.fromkeys(ring.members, 0)
        for number, servers in self.places.items():
            for server in servers:
                self.held[server] += self.weights[number]
        self.fair = sum(self.held.values()) / len(self.held)
        self.moves: list[Move] = []
        self.left: set[tuple[int, str]] = set()  # copies that move away, and where they come
        self.come: set[tuple[int, str]] = set()

    def part_hosts(self) -> None:
        """Copies that share a host, where they need not, are parted: the ring's first server with room on another host."""
        hosts = {member.host for member in self.ring.members.values()}
        for number, servers in self.places.items():
            on = [self.ring.members[server].host for server in servers]
            if len(set(on)) >= min(len(servers), len(hosts)):
                continue
            source = next(server for server, host in zip(reversed(servers), reversed(on)) if on.count(host) > 1)
            targets = [server for server in self.ranks[number] if self.ring.members[server].host not in on]
            weight = self.weights[number]
            roomy = [server for server in targets if 100 * (self.held[server] + weight) <= LOAD_PERCENT * self.fair]
            self._move(number, source, roomy[0] if roomy else min(targets, key=self.held.__getitem__))

    def fill(self, target: str) -> None:
        """Give the server its share, if it has much less."""
        if self.held[target] >= FILL_BELOW * self.fair:
            return
        mine = sorted(self.places, key=lambda n: (self.ranks[n][target], n))
        bound = LOAD_PERCENT * self.fair / 100
        # First from servers that have too much, then from those that keep their share, then from any that keep more than this one.
        for above, keeps in ((bound, self.fair), (self.fair, self.fair), (self.fair, 0)):
            for number in mine:
                weight = self.weights[number]
                if self.held[target] + weight / 2 <= self.fair and self._free(number, target):
                    self._take(number, target, above, keeps - weight / 2)

    def relieve(self, source: str) -> None:
        """Take from a server what it has too much."""
        mine = [n for n, servers in self.places.items() if source in servers]
        for number in sorted(mine, key=lambda n: (-self.ranks[n][source], n)):
            if 100 * self.held[source] <= LOAD_PERCENT * self.fair:
                return
            weight = self.weights[number]
            for target in self.ranks[number]:
                better = self.held[target] + weight < self.held[source] and self.held[target] + weight / 2 <= self.fair
                if better and self._free(number, target) and self._may_go(number, source, target):
                    self._move(number, source, target)
                    break

    def _take(self, number: int, target: str, above: float, floor: float) -> None:
        """Move a copy here from the fullest server of the range that has more than `above` and keeps `floor`."""
        floor = max(floor, self.held[target] + 1)  # else both would only change their parts
        sources = [
            server for server in self.places[number]
            if self.held[server] > above and self.held[server] - self.weights[number] >= floor
            and self._may_go(number, server, target)
        ]  # fmt: skip
        if sources:
            self._move(number, max(sources, key=self.held.__getitem__), target)

    def _free(self, number: int, target: str) -> bool:
        return target not in self.places[number] and (number, target) not in self.left

    def _may_go(self, number: int, source: str, target: str) -> bool:
        """The source has had its copy from the start, and the copies lie on no fewer hosts than before."""
        if (number, source) in self.come:
            return False
        after = [target if server == source else server for server in self.places[number]]
        return self._hosts(after) >= self._hosts(self.places[number])

    def _hosts(self, servers: Iterable[str]) -> int:
        return len({self.ring.members[server].host for server in servers})

    def _move(self, number: int, source: str, target: str) -> None:
        servers = self.places[number]
        servers[servers.index(source)] = target
        self.held[source] -= self.weights[number]
        self.held[target] += self.weights[number]
        self.moves.append(Move(number, source, target))
        self.left.add((number, source))
        self.come.add((number, target))
