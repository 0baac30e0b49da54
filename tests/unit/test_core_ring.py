"""Placement on the ring: everything has a place, nobody has too much, little moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.ring import LOAD_PERCENT, Member, Placement, Ring, level, plural, points_of

RANGES, POINTS = 256, 64


def members(count: int, hosts: int = 0) -> list[Member]:
    return [Member(f"s{number}", f"host{number % (hosts or count)}") for number in range(count)]


def even(count: int = RANGES, weight: int = 1 << 20) -> dict[int, int]:
    return dict.fromkeys(range(count), weight)


def loads(placement: Placement, weights: dict[int, int], servers: list[Member]) -> dict[str, int]:
    result = dict.fromkeys((member.id for member in servers), 0)
    for number, share in placement.items():
        for server in share.servers:
            result[server] += max(1, weights[number])
    return result


def leading(placement: Placement, weights: dict[int, int], servers: list[Member]) -> dict[str, int]:
    result = dict.fromkeys((member.id for member in servers), 0)
    for number, share in placement.items():
        result[share.servers[0]] += max(1, weights[number])
    return result


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[Member], int, dict[int, int], int]:
    ranges = 1 << draw(st.integers(0, 8))
    servers = members(draw(st.integers(1, 12)), draw(st.integers(1, 12)))
    numbers = draw(st.lists(st.integers(0, ranges - 1), unique=True, max_size=40))
    weights = {number: draw(st.integers(0, 1 << 30)) for number in numbers}
    return servers, ranges, weights, draw(st.integers(1, 3))


@settings(max_examples=200, deadline=None)
@given(case=rings())
def test_every_range_has_a_place_and_nobody_too_much(case: tuple[list[Member], int, dict[int, int], int]) -> None:
    servers, ranges, weights, copies = case
    placement, reason = Ring(servers, ranges, 8).place(weights, copies)
    assert list(placement) == sorted(weights)
    hosts = {member.id: member.host for member in servers}
    for share in placement.values():
        assert len(share.servers) == len(set(share.servers)) == min(copies, len(servers))
        assert len({hosts[server] for server in share.servers}) == min(copies, len(set(hosts.values())))
    if copies == 1 and weights:
        total = sum(max(1, weight) for weight in weights.values())
        mean = total / len(servers)
        bound = max(mean * LOAD_PERCENT / 100 + 1, mean + max(max(1, weight) for weight in weights.values()))
        assert max(loads(placement, weights, servers).values()) <= bound
    assert reason.startswith(plural(len(weights), "range"))


@settings(max_examples=100, deadline=None)
@given(case=rings(), data=st.data())
def test_the_order_of_the_arguments_means_nothing(case: tuple[list[Member], int, dict[int, int], int], data: st.DataObject) -> None:
    servers, ranges, weights, copies = case
    shuffled = data.draw(st.permutations(servers))
    turned = dict(data.draw(st.permutations(list(weights.items()))))
    first, second = Ring(servers, ranges, 8).place(weights, copies), Ring(shuffled, ranges, 8).place(turned, copies)
    assert first == second


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("count", [3, 4, 6, 8, 16])
def test_even_ranges_are_spread_within_a_tenth_and_so_are_those_that_lead(count: int, copies: int) -> None:
    servers = members(count)
    placement, _ = Ring(servers, RANGES, POINTS).place(even(), copies)
    mean = RANGES * copies / count
    assert max(loads(placement, even(weight=1), servers).values()) <= mean * 1.1 + 1
    led = leading(placement, even(weight=1), servers)
    assert max(led.values()) <= RANGES / count * 1.1 + 1
    assert copies == 1 or min(led.values()) >= RANGES / count * 0.9 - 1


def test_few_heavy_ranges_are_led_by_different_servers() -> None:
    """Three blocks on three servers, two copies each: the ring alone would let one lead two of them."""
    servers = members(3)
    for start in range(0, RANGES, 7):
        weights = {(start + 80 * number) % RANGES: 1 << 20 for number in range(3)}
        placement, _ = Ring(servers, RANGES, POINTS).place(weights, copies=2)
        assert set(leading(placement, weights, servers).values()) == {1 << 20}
        assert max(loads(placement, weights, servers).values()) <= 3 << 20  # the mean and one range


@settings(max_examples=200, deadline=None)
@given(case=rings(), data=st.data())
def test_levelling_helps_and_what_is_level_stays(case: tuple[list[Member], int, dict[int, int], int], data: st.DataObject) -> None:
    servers, ranges, weights, copies = case
    placement, _ = Ring(servers, ranges, 8).place(weights, copies)
    names = [member.id for member in servers]
    assert level(names, weights, {n: share.servers for n, share in placement.items()}) == {}
    places = {n: data.draw(st.permutations(share.servers)) for n, share in placement.items()}
    changes = level(names, weights, places)
    after = {n: [changes.get(n, servers[0])] for n, servers in places.items()}
    for number, leader in changes.items():
        assert leader in places[number] and leader != places[number][0]
    whole = {n: [*first, *(name for name in places[n] if name not in first)] for n, first in after.items()}
    assert level(names, weights, whole) == {}
    assert squares(names, weights, whole) <= squares(names, weights, places)


def squares(names: list[str], weights: dict[int, int], places: Mapping[int, Sequence[str]]) -> int:
    led = dict.fromkeys(names, 0)
    for number, servers in places.items():
        led[servers[0]] += max(1, weights[number])
    return sum(value * value for value in led.values())


def test_the_places_of_a_server_are_those_of_its_id_for_ever() -> None:
    """Test vectors: placement must not change between versions."""
    assert points_of("s0", 2) == [points_of("s0", 64)[0], points_of("s0", 64)[1]]
    assert [hex(point) for point in points_of("s0", 2)] == GOLDEN_POINTS
    placement, _ = Ring(members(4), 16, 64).place(even(16))
    assert "".join(share.servers[0][1] for share in placement.values()) == GOLDEN_OWNERS


GOLDEN_POINTS = ["0xfd3b04dc43a72bd7", "0xb9aaee55aef890be"]
GOLDEN_OWNERS = "2220303331200111"


def test_a_heavy_range_gets_a_server_and_the_rest_goes_round_it() -> None:
    weights = {0: 1 << 30, **{number: 1 << 20 for number in range(1, 9)}}
    servers = members(3)
    placement, _ = Ring(servers, 16, POINTS).place(weights)
    heavy = placement[0].servers[0]
    assert all(share.servers[0] != heavy for number, share in placement.items() if number)


def test_heavy_ranges_choose_first() -> None:
    """Light ones first would fill both servers evenly, and the heavy one would then come on top."""
    weights = {**dict.fromkeys(range(8), 1 << 20), 15: 8 << 20}
    servers = members(2)
    placement, _ = Ring(servers, 16, POINTS).place(weights)
    assert sorted(loads(placement, weights, servers).values()) == [8 << 20, 8 << 20]


def test_too_few_servers_or_hosts_for_the_copies_is_said() -> None:
    placement, reason = Ring(members(1), 16, POINTS).place(even(16), copies=2)
    assert {share.servers for share in placement.values()} == {("s0",)}
    assert "only 1 of 2 copies" in reason
    placement, reason = Ring(members(2, hosts=1), 16, POINTS).place(even(16), copies=2)
    assert all(len(share.servers) == 2 for share in placement.values())
    assert "COPIES SHARE A HOST: 1 host for 2 copies" in reason
    placement, reason = Ring(members(4, hosts=2), 16, POINTS).place(even(16), copies=3)
    assert all({server in ("s0", "s2") for server in share.servers} == {True, False} for share in placement.values())


def test_a_range_that_passed_a_full_server_says_so() -> None:
    ring = Ring(members(4), RANGES, POINTS)
    placement, reason = ring.place(even())
    passed = {number: share for number, share in placement.items() if share.passed}
    assert passed and f"{len(passed)} moved on clockwise" in reason
    for number, share in passed.items():
        assert ring.walk(number)[share.passed] == share.servers[0]
    for number, share in placement.items():
        if not share.passed:
            assert ring.walk(number)[0] == share.servers[0]
