"""The simulated world itself: processes die between effects, sockets behave as real ones do, lent arrays are watched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plugml.core.effects import Connect, Send
from plugml.wire.messages import BeatAck, MapAsk, Segment, Values

from .network import Network, Weather
from .process import Process
from .store import MemoryStore
from .world import Violation, World


class Echo:
    """A machine that does what it is told by the test."""

    def __init__(self, first: list[Any]) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.first = first
        self.answers: dict[type[Any], list[Any]] = {}
        self.wake: int | None = 0

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        self.seen.append((sender, message))
        return self.answers.get(type(message), [])

    def on_time(self, now_us: int) -> list[Any]:
        self.wake = None
        return self.first

    def deadline_us(self) -> int | None:
        return self.wake

    def check(self) -> None:
        return

    def digest(self) -> int:
        return len(self.seen)


def values(array: np.ndarray[Any, Any]) -> Values:
    return Values(1, 2, 3, 4, 5, 6, 7, (Segment(0, 0, array.size, 2),), (array,))


def pair(weather: Weather, first: list[Any]) -> tuple[World, Network, Process, Process]:
    """A client `c` connected to a server `s`; `first` is what the client does at its start."""
    world = World(1)
    network = Network(world, weather)
    server = Process(world, network, "s", "ipc://s", lambda process: Echo([]), lambda process: {})
    client = Process(world, network, "c", "ipc://c", lambda process: Echo([Connect("s.old", "ipc://s"), *first]), lambda process: {})
    server.start()
    client.start()
    return world, network, client, server


def run(world: World) -> None:
    world.run_until(lambda: False, world.now_us + 60_000_000)


def test_a_message_reaches_whoever_is_at_the_endpoint_and_the_answer_only_the_asker() -> None:
    world, _network, client, server = pair(Weather(), [Send("s.old", MapAsk(1, 2))])
    server.machine.answers[MapAsk] = [Send(client.name, BeatAck(1, 2, True)), Send("c.other", BeatAck(9, 9, True))]
    run(world)
    assert server.machine.seen == [(client.name, MapAsk(1, 2))]
    assert client.machine.seen == [("s.old", BeatAck(1, 2, True))]


def test_a_cut_goes_one_way() -> None:
    world, network, client, server = pair(Weather(), [])
    network.cut("ipc://c", "ipc://s", 1_000_000)
    client.machine.first = [Connect("s.old", "ipc://s"), Send("s.old", MapAsk(1, 2))]
    client.machine.wake = 0
    network.send(server, client.name, BeatAck(1, 2, True))
    run(world)
    assert server.machine.seen == [] and len(client.machine.seen) == 1


def test_doubles_and_flipped_bits_happen_and_are_counted() -> None:
    sends = [Send("s.old", MapAsk(1, number)) for number in range(50)]
    world, _network, _client, server = pair(Weather(double=0.5, corrupt=0.2, straggle=0.2), sends)
    run(world)
    assert {"double", "flipped bit", "straggler"} <= set(world.faults)
    tokens = [message.token for _sender, message in server.machine.seen]
    assert tokens != sorted(tokens) and len(tokens) > 40


def test_writing_into_a_lent_array_is_seen() -> None:
    array = np.arange(8.0)
    world, network, client, _server = pair(Weather(lent_us=(100, 100)), [Send("s.old", values(array))])
    world.run_until(lambda: network.sent == 1, 1_000)
    assert network.is_lent(client, array) and network.is_lent(client, array[7:])
    assert not network.is_lent(client, np.arange(8.0))
    array[7] = 9.0
    with pytest.raises(Violation, match="lent"):
        run(world)


def test_an_array_that_was_sent_is_free_again() -> None:
    array = np.arange(8.0)
    world, network, client, server = pair(Weather(lent_us=(100, 100)), [Send("s.old", values(array))])
    run(world)
    assert not network.is_lent(client, array)
    array[:] = 0
    assert bytes(server.machine.seen[0][1].payload[0]) == np.arange(8.0).tobytes()


@pytest.mark.parametrize("point", range(4))
def test_a_process_dies_between_two_effects(point: int) -> None:
    sends = [Send("s.old", MapAsk(1, number)) for number in range(3)]
    world = World(1)
    network = Network(world, Weather())
    server = Process(world, network, "s", "ipc://s", lambda process: Echo([]), lambda process: {})
    client = Process(world, network, "c", "ipc://c", lambda process: Echo([Connect("s.old", "ipc://s"), *sends]), lambda process: {})
    client.crash_at = [point]
    server.start()
    client.start()
    run(world)
    assert not client.alive and len(server.machine.seen) == max(0, point - 1)


def test_a_paused_process_does_everything_later() -> None:
    world, _network, _client, server = pair(Weather(), [Send("s.old", MapAsk(1, 2))])
    server.pause(5_000_000)
    world.run_until(lambda: False, 4_000_000)
    assert server.machine.seen == []
    run(world)
    assert len(server.machine.seen) == 1


def test_the_store_swaps_once_and_may_not_say_so() -> None:
    world = World(3)
    store = MemoryStore(world, unknown_rate=1.0)
    answers: list[tuple[str, str, int, bytes]] = []
    store.compare_and_swap("k", 0, b"a", lambda *answer: answers.append(answer))
    run(world)
    assert answers[0][1] == "unknown"
    store.unknown_rate = 0.0
    version = store.values.get("k", (0, b""))[0]
    store.compare_and_swap("k", version, b"b", lambda *answer: answers.append(answer))
    store.compare_and_swap("k", version, b"c", lambda *answer: answers.append(answer))
    run(world)
    assert [answer[1] for answer in sorted(answers[1:], key=lambda a: a[1])] == ["conflict", "ok"]
    assert store.values["k"] == (version + 1, b"b")


def test_the_same_seed_gives_the_same_digest() -> None:
    def once() -> tuple[int, int]:
        world, _network, _client, _server = pair(Weather(double=0.3, drop=0.2), [Send("s.old", MapAsk(1, n)) for n in range(20)])
        run(world)
        return world.digest, world.events

    assert once() == once()
