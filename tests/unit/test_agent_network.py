"""Messages lost, doubled, late, out of order and refused; maps that change; windows; several channels and jobs."""

from __future__ import annotations

import dataclasses
from collections import deque
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.agent import effects as e
from plugml.core.effects import Send
from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.core.jobmap import STOPPED
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.wire import messages as m

from .test_agent_harness import Program, World, job

ONES = np.ones(40, "<f4")


class Weather:
    """Loses, doubles and keeps back messages between the agent and everybody else."""

    def __init__(self, world: World, seed: int, lose: float, double: float, shuffle: float) -> None:
        self.world, self.random = world, Random(seed)
        self.lose, self.double, self.shuffle = lose, double, shuffle
        self.old: list[tuple[str, str, Any]] = []
        world.interfere = self

    def __call__(self, sender: str, to: str, message: Any) -> tuple[Any, ...]:
        draw = self.random.random
        if draw() < self.lose:
            return ()
        if draw() < self.shuffle and self.world.queue:
            queue = list(self.world.queue)
            self.random.shuffle(queue)
            self.world.queue = deque(queue)
        if draw() < 0.1:
            self.old.append((sender, to, message))
        if self.old and draw() < 0.1:  # something old comes again
            self.world.queue.append(self.random.choice(self.old))
        return (message, message) if draw() < self.double else (message,)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30), consistency=st.sampled_from(["bsp", "asp"]))
def test_bad_weather_costs_time_only(seed: int, consistency: str) -> None:
    world = World(servers=3)
    world.register(job(workers=2, consistency=consistency))
    programs = [world.plug("digits", worker) for worker in range(2)]
    Weather(world, seed, lose=0.15, double=0.15, shuffle=0.3)
    random = Random(seed)
    for number in range(1, 6):
        for program in programs:
            program.begin("step", number * ONES)
        if random.random() < 0.4:
            world.run(random.random())
            world.kill_agent()
        for program in programs:
            assert program.answer(200.0).ok
    world.interfere = lambda sender, to, message: (message,)
    for program in programs:
        assert program.do("pull").ok
        np.testing.assert_array_equal(program.param(), 30 * ONES)
    world.run(5.0)
    assert world.agent.house.credits.used == {}


def test_late_values_are_not_written_once_the_request_is_answered() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    late: list[tuple[str, str, Any]] = []

    def keep(sender: str, to: str, message: Any) -> tuple[Any, ...]:
        if isinstance(message, m.Values):
            late.append((sender, to, message))
        return (message,)

    world.interfere = keep
    assert program.do("step", ONES).ok
    before = bytes(program.files.contents["param"])
    program.files.contents["param"][:] = bytes(len(before))
    for item in late:
        world.queue.append(item)
    world.run(1.0)
    assert bytes(program.files.contents["param"]) == bytes(len(before)), "param belongs to the program now"


def test_a_nack_with_a_newer_map_sends_the_push_where_the_range_lies_now() -> None:
    world = World(servers=2)
    world.register(job())
    program = world.plug("digits", 0)
    old_map = world.master.jobs[1]
    moved = {number: item._replace(epoch=item.epoch + 1) for number, item in old_map.ranges.items()}
    world.master.change(1, ranges=moved)
    for server in world.servers:
        world.queue.append(("m0", server, world.master.map_told(1)))
    world.run(0.01)
    assert program.do("step", ONES).ok
    np.testing.assert_array_equal(program.param(), ONES)
    assert world.agent.counters()["nacks"] > 0
    assert all(route.epoch == 2 for route in world.agent.house.jobs[1].routes.values())


def test_a_server_that_is_behind_is_asked_again_after_a_moment_and_ever_less_often() -> None:
    world = World(servers=1)
    world.register(job())
    program = world.plug("digits", 0)
    world.interfere = lambda sender, to, message: () if to.startswith("s") and sender == "m0" else (message,)
    world.master.change(1)
    world.queue.append(("m0", world.name, world.master.map_told(1)))
    world.run(0.1)
    world.sent.clear()
    program.begin("step", ONES)
    world.run(3.0)
    ranges = len({message.range for _to, message in world.sent if isinstance(message, m.Push)})
    pushes = sum(isinstance(message, m.Push) for _to, message in world.sent)
    assert 3 * ranges <= pushes <= 14 * ranges
    world.interfere = lambda sender, to, message: (message,)
    assert program.answer(10.0).ok


def test_a_map_of_another_job_or_without_its_ranges_is_dropped_and_counted() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    good = world.master.jobs[1]
    for bad in (
        good._replace(token=99, number=2),
        good._replace(token=99, spec=dataclasses.replace(good.spec, name="other")),
        good._replace(token=99, ranges=dict(list(good.ranges.items())[:1])),
    ):
        world.queue.append(("m0", world.name, m.MapTold(1, 99, bad.to_document())))
    world.queue.append(("m0", world.name, m.MapTold(1, 99, {"junk": 1})))
    world.queue.append(("s0.00000000", world.name, m.Pull(1, 1, 1, 1, 1, 0, 1, 0, 0, ())))
    world.run(0.1)
    assert world.agent.counters()["strange"] == 5
    assert program.do("step", ONES).ok


def test_a_refusal_of_a_range_is_the_programs_error() -> None:
    world = World()
    world.register(job(consistency="asp"))
    program = world.plug("digits", 0)
    huge = np.full(40, 3e38, "<f4")
    assert program.do("step", huge).ok
    reply = program.do("step", huge)
    assert not reply.ok and reply.code in (Code.NONFINITE, Code.RANGE), program.err()
    assert program.do("step", -huge).ok, "what was refused is not applied, and the next push finds its way"
    np.testing.assert_array_equal(program.param(), 0 * ONES)


def test_a_range_that_has_taken_a_push_more_than_we_knew_gets_the_next_one_behind_it() -> None:
    world = World(servers=2)
    world.register(job(consistency="asp"))
    program = world.plug("digits", 0)
    assert program.do("push", ONES).ok
    assert program.do("push", np.nan * ONES).code is Code.NONFINITE  # seq 2 went nowhere
    world.interfere = lambda sender, to, message: () if isinstance(message, m.Push) else (message,)
    program.begin("push", ONES)
    world.settle()
    to, push = world.sent[-1]
    world.feed(to, m.LastTold(1, push.range, push.epoch, push.token, 0, 1, 2))
    (again,) = [message for _to, message in world.sent if isinstance(message, m.Push) and message.components[0].prev == 2]
    assert (again.range, again.components[0].seq) == (push.range, 3)


def refusing(world: World, seq: int) -> list[int]:
    """One range refuses its part of this push; which it is."""
    refused: list[int] = []

    def refuse(sender: str, to: str, message: Any) -> tuple[Any, ...]:
        if not isinstance(message, m.Push) or message.components[0].seq != seq or message.range not in (refused or [message.range]):
            return (message,)
        refused[:] = [message.range]
        world.queue.append((to, sender, m.Refuse(1, message.range, message.epoch, message.token, 0, 0, 1, seq, int(Code.COLLIDE), "two keys")))
        return ()

    world.interfere = refuse
    return refused


@pytest.mark.parametrize("more", ["w=3", "w=3 async=1"])
def test_a_push_that_one_range_refuses_counts_where_it_was_taken(more: str) -> None:
    """Its weight counts in the mean: as zeros where it was refused.  Nothing is stepped by more than was pushed."""
    world = World(servers=2)
    world.register(JobSpec("digits", 1, (TableSpec("w", (40,), optimizer="add"),), combine="mean"))
    program = world.plug("digits", 0)
    refusing(world, 1)
    reply = program.do("push", 4 * ONES, more)
    reply = program.do("clock") if "async" in more else reply
    assert (reply.code, reply.clock) == (Code.COLLIDE, 0)
    assert "two keys; 2 other parts of this push had been taken" in program.err()
    world.kill_agent()
    assert program.do("step", 8 * ONES, "w=1").ok
    assert sorted(set(program.param())) == [8 / 4, (3 * 4 + 8) / 4]


def test_a_refusal_is_told_when_the_other_parts_have_answered() -> None:
    world = World(servers=2)
    world.register(job())
    program = world.plug("digits", 0)
    refused = refusing(world, 1)
    refuse = world.interfere
    world.interfere = lambda sender, to, message: () if isinstance(message, m.PushAck) else refuse(sender, to, message)
    program.begin("push", ONES)
    world.settle()
    assert refused and not program.replies(), "whether the others hold theirs is not known yet"
    world.interfere = refuse
    assert program.answer().code is Code.COLLIDE
    assert "2 other parts of this push had been taken" in program.err()
    assert program.do("step", ONES).ok
    assert sorted(set(program.param())) == [1, 2]


@pytest.mark.parametrize("clock", [0, 2])
def test_a_tick_that_is_refused_is_the_programs_error_in_every_clock(clock: int) -> None:
    world = World(servers=1)
    world.register(job())
    program = world.plug("digits", 0)
    for _ in range(clock):
        assert program.do("step", ONES).ok
    keeper, epoch = world.agent.house.jobs[1].clock_route
    world.queue.append(("a9.00000009", keeper, m.Leave(1, epoch, 2, 0, 1, clock, "lost")))
    reply = program.do("step", ONES)
    assert reply.code is Code.SEQ and reply.clock == clock


def test_values_that_a_server_has_no_memory_for_do_not_undo_the_step() -> None:
    """The pull is refused while the tick is on its way: the program is told where it stands, and pushes nothing twice."""
    world = World(servers=2)
    world.register(job())
    program = world.plug("digits", 0)
    refused: list[int] = []

    def refuse(sender: str, to: str, message: Any) -> tuple[Any, ...]:
        if isinstance(message, m.Pull) and not refused:
            refused.append(message.range)
            no = m.Refuse(1, message.range, message.epoch, message.token, message.request, 0, 1, 0, int(Code.NOSPC), "no memory")
            world.queue.appendleft((to, sender, no))
            return ()
        return (message,)

    world.interfere = refuse
    reply = program.do("step", ONES)
    assert (reply.code, reply.clock) == (Code.NOSPC, 1), (reply, program.err())
    assert program.do("pull").ok
    np.testing.assert_array_equal(program.param(), ONES)


def test_a_late_refusal_of_a_push_does_not_silence_a_leave() -> None:
    """Only the clock, which names no push, can say that the Leave is no use."""
    world = World(servers=1)
    world.register(job())
    program = world.plug("digits", 0)
    assert program.do("push", ONES).ok
    world.interfere = lambda sender, to, message: () if isinstance(message, m.Leave) else (message,)
    world.feed("", e.Asked(1, {"op": "exited", "id": 1, "job": "digits", "worker": 0, "gen": 1, "how": "lost"}))
    epoch = world.agent.house.jobs[1].clock_route.epoch
    for seq, request in ((1, 0), (0, 5)):
        world.feed("s0.00000000", m.Refuse(1, 0, epoch, 2, request, 0, 1, seq, int(Code.RANGE), "too many pushes"))
    assert (1, 0) in world.agent.servers.notices and not any(document.get("id") == 1 for document in world.told)
    world.interfere = lambda sender, to, message: (message,)
    assert world.run(until=lambda: any(document.get("id") == 1 for document in world.told))


def test_an_answer_to_another_kind_of_question_is_none() -> None:
    world = World()
    world.register(job())
    world.master_away = True
    world.feed("", e.Asked(1, {"op": "attach", "id": 1, "job": "digits", "worker": 0}))
    number = world.agent.house.link.number
    for wrong in (m.JobTold(number, 0, "", 1), m.JobTold(number, int(Code.AGAIN), "", 1), m.Done(number, 0, "")):
        world.feed("m0", wrong)
    assert number in world.agent.house.link.questions and number in world.agent.desk.by_question


def test_a_newer_generation_fences_the_older_one() -> None:
    world = World(servers=2)
    world.register(job(workers=2))
    old = world.plug("digits", 0)
    other = world.plug("digits", 1)
    old.begin("step", ONES)
    world.run(0.5)
    new = world.plug("digits", 0)
    assert (new.gen, new.clock) == (2, 1), "the tick of the older one counts"
    assert old.answer().code is Code.FENCED
    assert old.do("step", ONES).code is Code.FENCED
    new.begin("step", 3 * ONES)
    assert other.do("step", ONES).ok
    np.testing.assert_array_equal(other.param(), 2 * ONES)
    assert other.do("step", ONES).ok and new.answer().ok
    np.testing.assert_array_equal(other.param(), 6 * ONES)


def test_the_window_bounds_what_is_unanswered_and_lets_everything_through() -> None:
    limits = Limits(window_bytes=128)
    world = World(servers=1, limits=limits)
    world.register(job(elements=1000, workers=2))
    programs = [world.plug("digits", worker) for worker in range(2)]
    highest = 0
    unanswered: dict[tuple[int, int], int] = {}

    def watch(sender: str, to: str, message: Any) -> tuple[Any, ...]:
        nonlocal highest
        if isinstance(message, m.Push):
            unanswered[message.components[0].worker, message.range] = sum(len(frame) for frame in message.payload)
        elif isinstance(message, m.PushAck):
            unanswered.pop((message.worker, message.range), None)
        highest = max(highest, sum(unanswered.values()))
        return (message,)

    world.interfere = watch
    for number in range(1, 4):
        for program in programs:
            program.begin("step", np.full(1000, number, "<f4"))
        for program in programs:
            assert program.answer().ok
            np.testing.assert_array_equal(program.param(), np.full(1000, number * (number + 1), "<f4"))
    largest = max(part.nbytes for part in world.agent.house.jobs[1].plan.parts)  # type: ignore[union-attr]
    assert largest <= highest <= max(128, largest)


def test_pushes_of_a_worker_that_runs_ahead_leave_room_for_the_one_it_waits_for() -> None:
    """Ranges keep a push of two clocks ahead only after a close: it must not hold the window until then."""
    world = World(servers=1, limits=Limits(window_bytes=200))
    world.register(job(workers=2))
    fast, slow = world.plug("digits", 0), world.plug("digits", 1)
    for _ in range(2):
        assert fast.do("push", ONES).ok
        assert fast.do("clock").ok
    fast.begin("push", ONES)
    world.run(2.0)
    assert not fast.replies()
    assert slow.do("step", ONES).ok
    assert fast.answer().ok


def test_a_pull_in_the_middle_of_a_clock_is_not_kept_out_by_a_neighbours_waiting_step() -> None:
    """Worker 1 waits at the barrier with a full window of pulls; worker 0 must still read, push, and open the barrier."""
    world = World(servers=1, limits=Limits(window_bytes=64))
    world.register(job(workers=2, elements=400))
    first, second = (world.plug("digits", worker) for worker in range(2))
    second.begin("step", np.ones(400, "<f4"))
    world.run(1.0)
    assert first.do("pull").ok
    assert first.do("step", np.ones(400, "<f4")).ok
    assert second.answer().ok


def test_many_channels_and_jobs_at_once() -> None:
    world = World(servers=3)
    programs: list[Program] = []
    for name, workers in (("one", 1), ("four", 4), ("eight", 8)):
        world.register(job(name, workers=workers))
        programs += [world.plug(name, worker) for worker in range(workers)]
    for number in range(1, 4):
        for program in programs:
            program.begin("step", number * ONES)
        for program in programs:
            assert program.answer().ok
    for program in programs:
        workers = {"one": 1, "four": 4, "eight": 8}[program.name.partition(".")[0]]
        np.testing.assert_array_equal(program.param(), 6 * workers * ONES)
    assert world.agent.counters()["channels"] == 13


def test_asp_workers_do_not_wait_for_each_other() -> None:
    world = World()
    world.register(job(workers=2, consistency="asp"))
    fast, slow = (world.plug("digits", worker) for worker in range(2))
    for _ in range(5):
        assert fast.do("step", ONES).ok
    np.testing.assert_array_equal(fast.param(), 5 * ONES)
    assert slow.do("step", ONES).ok
    np.testing.assert_array_equal(slow.param(), 6 * ONES)


def test_the_push_of_a_program_that_was_killed_reaches_all_ranges_or_none() -> None:
    """A worker dies when half of its push is out: its successor must not find half a push in the tables."""
    for reached in range(0, 6):
        world = World(servers=2)
        world.register(job(workers=1, elements=96, consistency="asp"))
        program = world.plug("digits", 0)
        count = 0

        def first_few(sender: str, to: str, message: Any, reached: int = reached) -> tuple[Any, ...]:
            nonlocal count
            if isinstance(message, m.Push):
                count += 1
                return (message,) if count <= reached else ()
            return (message,)

        world.interfere = first_few
        program.begin("step", np.ones(96, "<f4"))
        world.run(0.05)
        world.interfere = lambda sender, to, message: (message,)
        answer = world.ask("exited", job="digits", worker=0, gen=1, how="restarting")
        assert answer["ok"], answer
        heir = world.plug("digits", 0)
        assert heir.do("pull").ok
        assert set(heir.param()) in ({0.0}, {1.0}), f"half a push after {reached} ranges"


def test_agent_keeps_knocking_while_the_master_is_away_and_training_goes_on() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    world.master_away = True
    for _ in range(3):
        assert program.do("step", ONES).ok
    world.sent.clear()
    world.run(3.0)
    assert sum(isinstance(message, m.Beat) for _to, message in world.sent) >= 5
    world.master.known.clear()  # the master comes back and knows nobody
    world.master_away = False
    world.run(3.0)
    assert world.name in world.master.known


def test_maps_are_fetched_when_the_masters_token_has_moved_on() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    world.master.change(1, state=STOPPED, reason="by hand")
    world.run(2.0)
    assert program.do("step", ONES).code is Code.STOP


@pytest.mark.parametrize("effects", [range(0, 400, 7)])
def test_digests_of_equal_histories_are_equal(effects: range) -> None:
    def history() -> list[int]:
        world = World(servers=2)
        world.register(job())
        program = world.plug("digits", 0)
        Weather(world, 5, 0.1, 0.1, 0.2)
        digests = []
        for _ in range(5):
            assert program.do("step", ONES).ok or True
            digests.append(world.agent.digest())
        return digests

    assert history() == history()


def test_sends_go_only_to_nodes_that_were_connected_first() -> None:
    world = World()
    connected: set[str] = set()
    perform = world._perform

    def watch(effect: Any) -> None:
        if type(effect).__name__ == "Connect":
            connected.add(effect.node)
        if isinstance(effect, Send):
            assert effect.to in connected
        perform(effect)

    world._perform = watch  # type: ignore[method-assign]
    world.register(job())
    program = world.plug("digits", 0)
    assert program.do("step", ONES).ok
