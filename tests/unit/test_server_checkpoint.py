"""Checkpoints by the machines: what is kept is exactly its clock, whatever dies, is lost or fails while it is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plugml.core.limits import MS, SECOND
from plugml.runtime import checkpoints
from plugml.server.effects import ManifestWritten, RangeWritten, WriteManifest, WriteRange
from plugml.wire import messages as m
from tests.scenario.kit import job, table

from .save_world import SaveWorld, Stepper, newest
from .test_server_replica_world import Monkey

WORKERS = 2
COUNT = table("n", 3 * WORKERS, "f64", "add", combine="sum", block_bytes=WORKERS * 8)


def spec_of(root: Path, **more: Any) -> Any:
    return replace(job(COUNT, workers=WORKERS, copies=more.pop("copies", 1)), checkpoint_dir=str(root), checkpoint_every=more.pop("every", 4), **more)


def trained(world: SaveWorld, clocks: int, gen: int = 1, most_us: int = 60 * SECOND) -> None:
    agents = [Stepper(world, worker, clocks, gen) for worker in range(WORKERS)]
    if not world.master.token:
        world.master.begin()
    assert world.run(lambda: all(agent.done for agent in agents), most_us), [(agent.name, agent.clock, list(agent.owed)) for agent in agents]
    assert not world.master.failed, world.master.failed


def quiet(world: SaveWorld) -> None:
    """Until nothing is under way any more."""
    world.run(lambda: False, 2 * SECOND)


def test_every_fourth_clock_is_kept_and_two_stay(tmp_path: Path) -> None:
    world = SaveWorld(spec_of(tmp_path), 1, loss=0, double=0)
    trained(world, 13)
    quiet(world)
    assert world.master.stored == {1: 4, 2: 8, 3: 12} and not world.master.problems
    assert checkpoints.numbers(tmp_path) == [2, 3]
    found = newest(tmp_path)
    assert (found.number, found.clock, found.cut) == (3, 12, "closed") and found.document["finished"] == [[0, 12], [1, 12]]


@pytest.mark.parametrize(("servers", "copies"), [(1, 1), (2, 2), (4, 3)])
def test_a_new_job_goes_on_from_it_on_other_servers(tmp_path: Path, servers: int, copies: int) -> None:
    world = SaveWorld(spec_of(tmp_path, copies=2), 2, servers=3)
    trained(world, 10)
    quiet(world)
    place = newest(tmp_path).place
    again = SaveWorld(spec_of(tmp_path, copies=copies, resume=str(place), checkpoint_first=10), 3, servers=servers)
    trained(again, 17)
    quiet(again)
    assert {log.event for _, log in again.logs} >= {"restored"}
    assert again.master.stored == {10: 12, 11: 16}, "numbers go on above those that the directory has"


def test_what_workers_had_pushed_beyond_the_cut_is_pushed_again(tmp_path: Path) -> None:
    """One that reads nothing is a clock ahead: at the cut its push of the next clock waits in ranges, and belongs to nobody any more."""
    world = SaveWorld(spec_of(tmp_path, every=1, checkpoint_keep=100), 5, loss=0, double=0)
    world.slow_us = 0
    agents = [Stepper(world, worker, 9, reads=worker == 0) for worker in range(WORKERS)]
    world.master.begin()
    assert world.run(lambda: all(agent.done for agent in agents), 20 * SECOND)
    quiet(world)
    staged = 0
    for number in checkpoints.numbers(tmp_path)[:4]:
        found = checkpoints.whole(tmp_path / checkpoints.folder(number))
        staged += sum(b'"staged/' in (tmp_path / name).read_bytes() for name in found.files)
        again = SaveWorld(spec_of(tmp_path, every=0, resume=str(found.place)), 6, servers=2)
        trained(again, 9)
        for held in again.servers.values():
            for ranged in held.jobs[1].ranges.values():
                assert not ranged._staging.pushes()
    assert staged, "no cut had what this is about"


def test_one_is_made_when_somebody_asks(tmp_path: Path) -> None:
    world = SaveWorld(spec_of(tmp_path, every=0), 7, loss=0, double=0)
    agents = [Stepper(world, worker, 12) for worker in range(WORKERS)]
    world.master.begin()
    assert world.run(lambda: agents[0].clock == 3, SECOND * 20)
    agents[0].owe("save", agents[0].to_clock(m.SaveAsk, 0))
    assert world.run(lambda: bool(world.master.stored), SECOND * 20)
    del agents[0].owed["save"]
    assert world.run(lambda: all(agent.done for agent in agents), SECOND * 20)
    quiet(world)
    assert list(world.master.stored) == [1], "the same question again makes no second one"
    assert newest(tmp_path).clock == world.master.stored[1] >= 4


def test_a_file_that_cannot_be_written_fails_this_one_and_training_goes_on(tmp_path: Path) -> None:
    def full(effect: Any) -> Any:
        if isinstance(effect, WriteRange) and effect.number == 2:
            return RangeWritten(effect.job, effect.range, 2, 0, 0, (), "no space left on device")
        return None

    world = SaveWorld(spec_of(tmp_path), 8, loss=0, double=0)
    world.spoil = full
    trained(world, 13)
    quiet(world)
    assert world.master.stored == {1: 4, 3: 12} and set(world.master.problems) == {"no space left on device"}
    assert checkpoints.numbers(tmp_path) == [1, 3], "what was begun is removed, what was kept before stays"


def test_one_that_comes_while_another_is_written_is_left_out(tmp_path: Path) -> None:
    world = SaveWorld(spec_of(tmp_path, every=1), 9, loss=0, double=0)
    world.slow_us = SECOND
    trained(world, 12)
    quiet(world)
    assert world.master.stored and not world.master.problems
    assert any(log.event == "checkpoint_skipped" for _, log in world.logs)


def test_a_keeper_that_dies_leaves_nothing_that_is_taken_for_a_checkpoint(tmp_path: Path) -> None:
    world = SaveWorld(spec_of(tmp_path, copies=2, every=5), 10, servers=3)
    world.slow_us = 300 * MS
    agents = [Stepper(world, worker, 16) for worker in range(WORKERS)]
    world.master.begin()
    assert world.run(lambda: agents[0].clock == 6, 20 * SECOND)
    keeper = world.master.map.primary(world.master.map.clock_range)
    world.kill(keeper)
    world.master.dead(keeper)
    assert world.run(lambda: all(agent.done for agent in agents), 60 * SECOND)
    quiet(world)
    assert newest(tmp_path).clock == max(world.master.stored.values()), "the next keeper makes the next one"
    assert checkpoints.numbers(tmp_path)[-1] == max(world.master.stored)


def test_a_range_that_gets_another_primary_ends_the_attempt_loudly(tmp_path: Path) -> None:
    world = SaveWorld(spec_of(tmp_path, copies=2, every=5), 13, servers=3, loss=0, double=0)
    world.slow_us = 300 * MS
    agents = [Stepper(world, worker, 16) for worker in range(WORKERS)]
    world.master.begin()
    assert world.run(lambda: agents[0].clock == 6, 20 * SECOND)
    items = world.master.map.ranges
    number = next(n for n, item in items.items() if item.primary != world.master.map.primary(world.master.map.clock_range))
    world.master.hand_over(number)
    assert world.run(lambda: all(agent.done for agent in agents), 60 * SECOND)
    quiet(world)
    assert "another primary" in world.master.problems[0]
    assert 1 not in world.master.stored and 1 not in checkpoints.numbers(tmp_path) and world.master.stored


def sums(world: SaveWorld) -> set[float]:
    """Every number of every range, on its primary."""
    found: set[float] = set()
    for number, item in world.master.map.ranges.items():
        dump = world.servers[item.primary].jobs[1].ranges[number].dump()
        found |= {float(value) for array in dump.arrays.values() for value in array}
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("copies", [1, 2])
def test_where_members_are_held_the_cut_is_exact_without_closes(tmp_path: Path, seed: int, copies: int) -> None:
    """SSP: nobody comes beyond the cut before every range has it; what is kept are the pushes of the clocks before it."""
    world = SaveWorld(spec_of(tmp_path, every=4, copies=copies, consistency="ssp:2"), seed, servers=3, loss=0.05)
    agents = [Stepper(world, worker, 14, reads=False) for worker in range(WORKERS)]
    world.master.begin()
    assert world.run(lambda: all(agent.done for agent in agents), 60 * SECOND), [(agent.clock, list(agent.owed)) for agent in agents]
    quiet(world)
    assert sums(world) == {sum(range(1, 15))}
    assert {4} <= set(world.master.stored.values()) <= {4, 8, 12}, "one may come while the one before is written"
    for found in (checkpoints.whole(tmp_path / checkpoints.folder(number)) for number in checkpoints.numbers(tmp_path)):
        assert found.cut == "held"
        again = SaveWorld(spec_of(tmp_path, every=0, copies=2, consistency="ssp:2", resume=str(found.place)), seed, servers=2)
        more = [Stepper(again, worker, 17, reads=False) for worker in range(WORKERS)]
        again.master.begin()
        assert again.run(lambda more=more: all(agent.done for agent in more), 60 * SECOND)
        assert {agent.first for agent in more} == {found.clock}
        quiet(again)
        assert sums(again) == {sum(range(1, 18))}


def test_members_are_held_for_one_that_is_asked_for_and_go_on_when_it_fails(tmp_path: Path) -> None:
    world = SaveWorld(spec_of(tmp_path, every=0, consistency="ssp:2"), 3, loss=0, double=0)
    world.spoil = lambda effect: RangeWritten(effect.job, effect.range, 1, 0, 0, (), "no") if isinstance(effect, WriteRange) and effect.number == 1 else None
    agents = [Stepper(world, worker, 30, reads=False) for worker in range(WORKERS)]
    world.master.begin()
    for number in (0, 1):
        assert world.run(lambda number=number: agents[0].clock == 5 + 8 * number, 20 * SECOND)
        agents[0].owe("save", agents[0].to_clock(m.SaveAsk, number))
        assert world.run(lambda number=number: len(world.master.stored) + len(world.master.problems) > number, 20 * SECOND)
        del agents[0].owed["save"]
    assert world.run(lambda: all(agent.done for agent in agents), 60 * SECOND)
    assert set(world.master.problems) == {"no"} and list(world.master.stored) == [2]


def test_without_order_the_cut_is_fuzzy_and_each_goes_on_where_it_stood(tmp_path: Path) -> None:
    world = SaveWorld(spec_of(tmp_path, every=3, consistency="asp"), 4, loss=0, double=0)
    agents = [Stepper(world, worker, 12, reads=False) for worker in range(WORKERS)]
    world.master.begin()
    assert world.run(lambda: all(agent.done for agent in agents), 60 * SECOND)
    quiet(world)
    found = newest(tmp_path)
    assert found.cut == "fuzzy" and found.clock >= 3
    again = SaveWorld(spec_of(tmp_path, every=0, consistency="asp", resume=str(found.place)), 5, servers=2)
    more = [Stepper(again, worker, 14, reads=False) for worker in range(WORKERS)]
    again.master.begin()
    assert again.run(lambda: all(agent.done for agent in more), 60 * SECOND)
    assert all(agent.first >= found.clock for agent in more)
    assert min(sums(again)) >= sum(range(1, 15)), "nothing is lost"


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_what_is_stored_is_whole_and_exactly_its_clock(tmp_path: Path, seed: int) -> None:
    world = SaveWorld(spec_of(tmp_path, copies=2, every=2), seed, servers=3, loss=0.1)
    agents = [Stepper(world, worker, 20) for worker in range(WORKERS)]
    world.master.begin()
    monkey = Monkey(world, world.now_us + SECOND)
    assert world.run(lambda: world.now_us > monkey.until_us and all(agent.done for agent in agents) and world.settled(), 60 * SECOND)
    assert not world.master.failed, world.master.failed
    quiet(world)
    if not world.master.stored:
        return
    last = max(world.master.stored)
    found = checkpoints.whole(tmp_path / checkpoints.folder(last))
    assert found.clock == world.master.stored[last]
    again = SaveWorld(spec_of(tmp_path, copies=2, every=0, resume=str(found.place)), seed, servers=2)
    trained(again, 24)


def test_a_damaged_file_ends_the_job_with_a_sentence(tmp_path: Path) -> None:
    world = SaveWorld(spec_of(tmp_path), 11, loss=0, double=0)
    trained(world, 5)
    quiet(world)
    found = newest(tmp_path)
    name = sorted(found.files)[0]
    data = bytearray((tmp_path / name).read_bytes())
    data[-1] ^= 1
    (tmp_path / name).write_bytes(data)
    again = SaveWorld(spec_of(tmp_path, resume=str(found.place)), 12)
    again.master.begin()
    assert again.run(lambda: bool(again.master.failed), 10 * SECOND)
    assert "cannot be restored" in again.master.failed and "damaged" in again.master.failed


def test_behind_a_manifest_that_failed_nothing_is_referred_to(tmp_path: Path) -> None:
    """Perhaps the one before is damaged, and then each that needs it would fail."""
    world = SaveWorld(spec_of(tmp_path), 1, loss=0, double=0)
    bases: dict[int, int] = {}

    def spoil(effect: Any) -> Any:
        if type(effect) is WriteRange:
            bases[effect.number] = effect.kept
        if type(effect) is WriteManifest and effect.number == 3:
            return ManifestWritten(effect.job, effect.number, "000002/manifest.json is damaged")
        return None

    world.spoil = spoil
    trained(world, 21)
    quiet(world)
    assert list(world.master.stored) == [1, 2, 4, 5] and bases == {1: 0, 2: 1, 3: 2, 4: 0, 5: 4}
