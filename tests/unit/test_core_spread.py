"""What moves when servers come: about the share of the newcomers, and nothing when everybody has its own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.ring import Member, Ring
from plugml.core.spread import Spread, spread

RANGES, POINTS = 256, 64
Places = dict[int, list[str]]


def members(count: int, hosts: int = 0) -> list[Member]:
    return [Member(f"s{number}", f"host{number % (hosts or count)}") for number in range(count)]


def placed(ring: Ring, weights: dict[int, int], copies: int) -> Places:
    return {n: list(share.servers) for n, share in ring.place(weights, copies)[0].items()}


def carried_out(places: Places, what: Spread) -> Places:
    after = {n: list(servers) for n, servers in places.items()}
    for move in what.moves:
        servers = after[move.range]
        assert move.source in servers and move.target not in servers
        servers[servers.index(move.source)] = move.target
    for number, leader in what.leaders.items():
        after[number] = [leader, *(server for server in after[number] if server != leader)]
    return after


def loads(places: Places, weights: dict[int, int], first: bool = False) -> dict[str, int]:
    result: dict[str, int] = {}
    for number, servers in places.items():
        for server in servers[:1] if first else servers:
            result[server] = result.get(server, 0) + weights[number]
    return result


def weights_of(kind: str) -> dict[int, int]:
    draw = random.Random(5)
    return {n: 1 << 20 if kind == "even" else draw.choice([1 << 16, 1 << 20, 3 << 20]) for n in range(RANGES)}


@pytest.mark.parametrize("kind", ["even", "lumpy"])
@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize(("count", "more"), [(3, 1), (4, 1), (6, 1), (8, 1), (4, 2), (4, 4), (8, 8)])
def test_a_join_moves_about_the_share_of_the_newcomers_to_them(kind: str, copies: int, count: int, more: int) -> None:
    weights = weights_of(kind)
    places = placed(Ring(members(count), RANGES, POINTS), weights, copies)
    ring = Ring(members(count + more), RANGES, POINTS)
    what = spread(ring, weights, places)
    after = carried_out(places, what)

    share = sum(weights.values()) * copies / (count + more)
    moved = sum(weights[move.range] for move in what.moves)
    assert moved <= 1.2 * share * more
    newcomers = {f"s{number}" for number in range(count, count + more)}
    held, led = loads(after, weights), loads(after, weights, first=True)
    assert max(held.values()) <= 1.1 * share + max(weights.values())
    assert min(held[name] for name in newcomers) >= 0.9 * share
    assert max(led.values()) <= 1.1 * share / copies + max(weights.values())
    assert min(led[name] for name in newcomers) >= 0.8 * share / copies


@pytest.mark.parametrize("count", [16, 32])
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_many_servers_are_no_reason_to_move_more(count: int, copies: int) -> None:
    weights = weights_of("even")
    places = placed(Ring(members(count), RANGES, POINTS), weights, copies)
    what = spread(Ring(members(count + 1), RANGES, POINTS), weights, places)
    assert len(what.moves) <= 1.1 * RANGES * copies / (count + 1)


def test_what_moves_is_what_lies_early_on_the_ring_of_the_newcomer() -> None:
    weights = weights_of("even")
    places = placed(Ring(members(4), RANGES, POINTS), weights, 1)
    ring = Ring(members(5), RANGES, POINTS)
    moved = {move.range for move in spread(ring, weights, places).moves}
    first = {number for number in weights if ring.walk(number)[0] == "s4"}
    assert len(moved & first) >= 0.75 * min(len(moved), len(first))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Ring, dict[int, int], Places]:
    servers = members(draw(st.integers(1, 8)), draw(st.integers(1, 8)))
    names = [member.id for member in servers]
    ranges = 1 << draw(st.integers(0, 6))
    numbers = draw(st.lists(st.integers(0, ranges - 1), unique=True, max_size=30))
    weights = {number: draw(st.integers(0, 1 << 24)) for number in numbers}
    places = {n: draw(st.lists(st.sampled_from(names), unique=True, min_size=1, max_size=3)) for n in numbers}
    return Ring(servers, ranges, 8), weights, places


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_any_placement_gets_better_and_comes_to_rest(case: tuple[Ring, dict[int, int], Places]) -> None:
    ring, weights, places = case
    host = {name: member.host for name, member in ring.members.items()}
    weights = {number: max(1, weight) for number, weight in weights.items()}
    for _ in range(20):
        what = spread(ring, weights, places)
        after = carried_out(places, what)
        for number, servers in after.items():
            assert len(set(servers)) == len(servers) == len(places[number])
            assert len({host[server] for server in servers}) >= len({host[server] for server in places[number]})
        assert not {(move.range, move.source) for move in what.moves} & {(move.range, move.target) for move in what.moves}
        if not what.moves and not what.leaders:
            break
        places = after
    else:
        raise AssertionError("it never comes to rest")
    for servers in places.values():  # no two copies share a host where they need not
        assert len({host[server] for server in servers}) == min(len(servers), len(set(host.values())))


def test_a_fresh_placement_is_left_as_it_is() -> None:
    for count in (1, 2, 3, 5, 8, 16):
        for copies in (1, 2, 3):
            ring = Ring(members(count), RANGES, POINTS)
            weights = weights_of("even")
            assert spread(ring, weights, placed(ring, weights, copies)) == Spread([], {})


def test_a_server_that_leads_too_much_gives_some_of_it_to_its_backups() -> None:
    weights = dict.fromkeys(range(8), 5)
    places = {n: ["s0", "s1"] for n in weights}
    what = spread(Ring(members(2), 8, POINTS), weights, places)
    assert what.moves == [] and set(what.leaders.values()) == {"s1"} and len(what.leaders) == 4
