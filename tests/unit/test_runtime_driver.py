"""The driver: one event at a time, effects in order, answers queued, one timer, and a crash that stops everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import uvloop

from plugml.runtime.driver import STORY_EVENTS, Driver
from plugml.runtime.node import now_us


class Ping(NamedTuple):
    number: int
    payload: Any = b""


class Store(NamedTuple):
    number: int


class Reply(NamedTuple):
    number: int


class Machine:
    """Answers Ping with Store, Reply; writes down what it saw."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.due_us: int | None = None
        self.checked = 0
        self.asked = 0

    def on_message(self, sender: str, message: Any, now_us: int) -> list[Any]:
        self.seen.append((sender, message))
        if isinstance(message, Ping) and message.number < 0:
            raise ZeroDivisionError("planted")
        return [Store(message.number), Reply(message.number)] if isinstance(message, Ping) else []

    def on_time(self, now_us: int) -> list[Any]:
        assert self.due_us is not None and now_us >= self.due_us
        self.seen.append(now_us)
        self.due_us = None
        return [Reply(-1)]

    def deadline_us(self) -> int | None:
        self.asked += 1
        return self.due_us

    def check(self) -> None:
        self.checked += 1

    def digest(self) -> int:
        return len(self.seen)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    yield loop
    loop.close()


def drive(loop: asyncio.AbstractEventLoop, machine: Machine, **performers: Callable[[Any], object]) -> tuple[Driver, list[Any]]:
    done: list[Any] = []
    table: dict[type[Any], Callable[[Any], object]] = {Store: done.append, Reply: done.append}
    table |= {{"store": Store, "reply": Reply}[name]: function for name, function in performers.items()}
    return Driver(loop, machine, table, now_us), done


def test_effects_are_performed_one_by_one_in_order(loop: asyncio.AbstractEventLoop) -> None:
    driver, done = drive(loop, Machine())
    driver.feed("a0.00000001", Ping(1))
    driver.feed("a0.00000001", Ping(2))
    assert done == [Store(1), Reply(1), Store(2), Reply(2)]


def test_an_answer_is_queued_and_never_nested(loop: asyncio.AbstractEventLoop) -> None:
    machine = Machine()
    order: list[str] = []

    def store(effect: Store) -> None:
        driver.feed("", ("stored", effect.number))
        order.append(f"store {effect.number}, seen {len(machine.seen)}")

    driver, done = drive(loop, machine, store=store)
    driver.feed("x", Ping(1))
    assert order == ["store 1, seen 1"]  # the answer had not reached the machine while the effect was performed
    assert done == [Reply(1)] and machine.seen == [("x", Ping(1)), ("", ("stored", 1))]


def test_an_exception_goes_up_and_nothing_is_fed_or_performed_after_it(loop: asyncio.AbstractEventLoop) -> None:
    machine = Machine()
    machine.due_us = now_us()
    driver, done = drive(loop, machine)
    driver.start()
    with pytest.raises(ZeroDivisionError):
        driver.feed("s0.00000001", Ping(-1))
    driver.feed("s0.00000001", Ping(3))
    loop.call_later(0.05, loop.stop)
    loop.run_forever()
    assert done == [] and len(machine.seen) == 1


def test_a_failing_performer_leaves_the_effects_after_it_undone(loop: asyncio.AbstractEventLoop) -> None:
    def store(effect: Store) -> None:
        raise OSError("disk")

    driver, done = drive(loop, Machine(), store=store)
    with pytest.raises(OSError):
        driver.feed("x", Ping(1))
    assert done == [] and driver.closed


def test_the_story_names_the_last_events_without_their_payload(loop: asyncio.AbstractEventLoop) -> None:
    driver, _ = drive(loop, Machine())
    for number in range(STORY_EVENTS + 7):
        driver.feed("s0.00000001", Ping(number, bytes(1000)))
    story = driver.story()
    assert len(story) == STORY_EVENTS
    assert story[-1].endswith(f"s0.00000001 Ping number={STORY_EVENTS + 6}")
    assert "payload" not in "".join(story)


def test_one_timer_fires_at_the_deadline_and_not_before(loop: asyncio.AbstractEventLoop) -> None:
    machine = Machine()
    start = now_us()
    machine.due_us = start + 30_000
    driver, done = drive(loop, machine, reply=lambda effect: loop.stop())
    driver.start()
    loop.run_forever()
    assert machine.seen[0] >= start + 30_000


def test_an_earlier_deadline_replaces_the_timer_and_a_later_one_waits_for_it(loop: asyncio.AbstractEventLoop) -> None:
    machine = Machine()
    machine.due_us = now_us() + 3_600_000_000
    driver, _ = drive(loop, machine)
    driver.start()
    machine.due_us = now_us() + 10_000
    driver.feed("x", ("hurry", 0))
    machine.due_us += 10_000
    wanted = machine.due_us
    driver.performers = {Reply: lambda effect: loop.stop()}
    loop.run_forever()
    assert machine.seen[-1] >= wanted


def test_an_early_deadline_does_not_spin(loop: asyncio.AbstractEventLoop) -> None:
    machine = Machine()
    machine.due_us = now_us() + 5_000
    driver, _ = drive(loop, machine, reply=lambda effect: loop.stop())
    driver.start()
    loop.run_forever()
    assert machine.asked < 50


def test_closing_ends_the_timer(loop: asyncio.AbstractEventLoop) -> None:
    machine = Machine()
    machine.due_us = now_us() + 1_000
    driver, _ = drive(loop, machine)
    driver.start()
    driver.close()
    loop.call_later(0.05, loop.stop)
    loop.run_forever()
    assert machine.seen == []


def test_check_mode_checks_after_every_event(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGML_CHECK", "1")
    machine = Machine()
    driver, _ = drive(loop, machine)
    driver.feed("x", Ping(1))
    assert machine.checked == 1
    monkeypatch.setenv("PLUGML_CHECK", "0")
    driver, _ = drive(loop, machine)
    driver.feed("x", Ping(1))
    assert machine.checked == 1


class Stuck(Machine):
    def on_time(self, now_us: int) -> list[Any]:
        return []


def test_check_mode_finds_a_deadline_that_does_not_move(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUGML_CHECK", "1")
    machine = Stuck()
    machine.due_us = now_us()
    driver, _ = drive(loop, machine)
    errors: list[dict[str, Any]] = []

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        errors.append(context)
        loop.stop()

    loop.set_exception_handler(failed)
    driver.start()
    loop.run_forever()
    assert "left the deadline at" in str(errors[0]["exception"])


def test_a_crash_leaves_nothing_for_the_next_turn(loop: asyncio.AbstractEventLoop) -> None:
    machine = Machine()
    driver, done = drive(loop, machine)

    def store(effect: Store) -> None:
        driver.feed("", Ping(-1))
        driver.feed("", Ping(9))

    driver.performers = {Store: store, Reply: done.append}
    with pytest.raises(ZeroDivisionError):
        driver.feed("x", Ping(1))
    assert done == [Reply(1)] and [seen[1].number for seen in machine.seen] == [1, -1]
