"""One block: values and optimizer state replaced together, room counted, storage, lr by clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plugml.core.job import JobSpec
from plugml.core.jobmap import pieces
from plugml.core.table import DTYPE_CODES, OPTIMIZERS, TableSpec
from plugml.server.memory import Memory
from plugml.server.optimizers import KERNELS, Mix
from plugml.server.place import Place, State, smaller_steps
from tests.scenario.kit import Box, job, table


def place_of(spec: JobSpec) -> Place:
    return Place(spec, pieces(spec, 1)[0])


def step(place: Place, memory: Memory, push: list[float], clock: int = 0, share: float = 1.0) -> State | None:
    mixed = Mix.sum_of([np.array(push, place.dtype)])
    new = place.stepped(mixed, place.scalars(clock, share), memory)
    if new is not None:
        place.replace(new, memory)
    return new


class CountingMemory(Memory):
    """Counts the arrays that are out, and fails at the n-th `take`."""

    def __init__(self, fail_at: int = -1) -> None:
        super().__init__()
        self.out = 0
        self.fail_at = fail_at

    def take(self, dtype: np.dtype[Any], count: int) -> Any:
        if self.fail_at == 0:
            raise MemoryError
        self.fail_at -= 1
        self.out += 1
        return super().take(dtype, count)

    def give(self, array: Any) -> None:
        self.out -= 1
        super().give(array)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_values_and_state_are_replaced_together_and_a_refused_step_leaves_no_trace(name: str) -> None:
    memory = CountingMemory()
    place = place_of(job(table(count=2, dtype="f64", optimizer=name)))
    arrays = 1 + KERNELS[name].slots
    for number in range(1, 4):
        assert step(place, memory, [0.5, -2.0]) is not None
        assert place.state is not None and place.state.step == number and len(place.state.slots) == arrays - 1
        assert memory.out == arrays
    before, held = place.digest(1), place.state
    assert step(place, memory, [1.0, np.nan]) is None
    assert place.state is held and place.digest(1) == before and memory.out == arrays


@pytest.mark.parametrize("fail_at", range(4))
def test_a_step_without_memory_gives_back_what_it_had_taken(fail_at: int) -> None:
    memory = CountingMemory(fail_at)
    place = place_of(job(table(count=2, dtype="f64", optimizer="adam")))
    with pytest.raises(MemoryError):
        step(place, memory, [1.0, 1.0])
    assert memory.out == (fail_at > 0)  # the values that the touch has made
    memory.fail_at = -1
    assert step(place, memory, [1.0, 1.0]) is not None and memory.out == 3


def test_an_array_that_was_shown_stays_what_it_was() -> None:
    memory = Memory()
    place = place_of(job(table(count=2, dtype="f64", optimizer="momentum")))
    assert step(place, memory, [1.0, 1.0]) is not None
    memory.begin_event()
    shown = memory.show(place.current(memory))
    copy = shown.copy()
    for _ in range(3):
        assert step(place, memory, [1.0, 1.0]) is not None
    np.testing.assert_array_equal(shown, copy)


@pytest.mark.parametrize(("name", "arrays"), (("sgd", 1), ("momentum", 2), ("adagrad", 2), ("adam", 3), ("adamw", 3), ("add", 1)))
def test_room_counts_the_state_and_is_owed_until_it_is_taken(name: str, arrays: int) -> None:
    memory = Memory()
    place = place_of(job(table(count=100, optimizer=name)))
    assert place.wire_bytes == 400 and place.nbytes == 400 * arrays == place.owed_bytes
    place.current(memory)
    assert place.owed_bytes == 400 * (arrays - 1)
    assert step(place, memory, [0.0] * 100) is not None and place.owed_bytes == 0


def test_a_model_whose_state_has_no_room_is_refused_when_it_comes() -> None:
    """100 numbers of float32 fit into 500 bytes with sgd, and not with Adam."""
    fits = Box(job(table(count=100)), room=lambda: 500)
    assert not fits.servers["s0.1"].jobs[1].full
    full = Box(job(table(count=100, optimizer="adam")), room=lambda: 500)
    assert "needs 1200 bytes" in full.servers["s0.1"].jobs[1].full


def test_storage_is_what_a_block_keeps_and_sends() -> None:
    spec = TableSpec("w", (10,), dtype="f32", storage="f16", optimizer="adam", init="uniform", block_bytes=1 << 16)
    memory = Memory()
    place = place_of(job(spec))
    assert place.segment.dtype == DTYPE_CODES["f16"] and place.wire_bytes == 20 and place.nbytes == 20 + 2 * 40
    values = place.current(memory)
    assert values.dtype == np.float16 and values.any()
    new = step(place, memory, [1.0] * 10)
    assert new is not None and new.values.dtype == np.float16 and [slot.dtype for slot in new.slots] == [np.float32] * 2


def test_lr_follows_its_scale_and_the_warm_up() -> None:
    spec = replace(job(table(lr=0.5), workers=9), lr_scale="linear", lr_warmup=4)
    place = place_of(spec)
    assert [place.scalars(clock)[1] for clock in (0, 1, 3, 4, 5, 1000)] == [0.5, 1.5, 3.5, 4.5, 4.5, 4.5]
    assert place.scalars(2, 0.5) == (0.5, 0.5 * 5.0 * 0.5)
    plain = place_of(job(table(lr=0.5), workers=9))
    assert {plain.scalars(clock) for clock in (0, 7)} == {(1.0, 0.5)}


def test_the_warm_up_reaches_steps_under_every_model() -> None:
    for consistency in ("bsp", "asp"):
        spec = replace(job(table(count=1, dtype="f64", lr=0.5), workers=3, consistency=consistency, combine="sum"), lr_scale="linear", lr_warmup=2)
        box = Box(spec)
        for clock, factor in ((0, 1.0), (1, 2.0), (2, 3.0)):
            before = box.values()[0]
            box.push({"w": [1.0]}, seq=clock + 1, clock=clock)
            for worker in range(3):
                box.tick(clock, worker)
            assert box.values()[0] - before == -0.5 * factor


def test_a_push_that_nobody_weighs_is_no_step() -> None:
    memory = Memory()
    place = place_of(job(table(count=1, dtype="f64", optimizer="adam")))
    assert step(place, memory, [3.0], share=0.0) is not None
    assert place.state is not None and place.state.step == 0 and place.state.values[0] == 0.0
    assert step(place, memory, [3.0]) is not None
    assert place.state.step == 1 and place.state.values[0] == pytest.approx(-0.001)


def test_first_values_have_no_state_yet() -> None:
    memory = Memory()
    place = place_of(job(table(count=1, dtype="f64", optimizer="adam", init="program")))
    place.replace(place.offered(np.array([5.0]), memory), memory)
    assert place.state is not None and place.state.slots == () and place.owed_bytes == 16
    assert step(place, memory, [1.0]) is not None


def test_the_digest_sees_state_and_step_number() -> None:
    memory = Memory()
    place = place_of(job(table(count=1, dtype="f64", optimizer="adam")))
    assert place.digest(7) == 7
    step(place, memory, [0.0])
    first = place.digest(7)
    step(place, memory, [0.0])  # nothing has changed but the number of steps
    assert place.digest(7) != first


def test_the_advice_about_an_overflow_is_none_that_was_followed_already() -> None:
    assert smaller_steps(TableSpec("w", (3,))) == "try a smaller learning rate or dtype f64"
    assert smaller_steps(TableSpec("w", (3,), dtype="f64")) == "try a smaller learning rate"
    assert smaller_steps(TableSpec("w", (3,), dtype="i64", optimizer="add")) == "try smaller pushes"
