"""The compiled part for rows comes when the first sparse job does: nothing is lost meanwhile, and nobody waits for it who needs it not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plugml.core.errors import Code
from plugml.core.limits import Limits
from plugml.server import main
from plugml.server.effects import Warm, WarmUp
from plugml.wire import messages as m
from tests.scenario.kit import Box, Heard, job, make_map, table
from tests.scenario.sparse import sparse_table


def cold(limits: Limits = Limits(), **rest: Any) -> Box:
    """A server whose WarmUp is not answered yet."""
    there = Box(job(table("w", 2, "f64", "add")), limits=limits)
    there.warms = False
    there.spec = job(sparse_table(width=1, dtype="f64", optimizer="add"), **rest)
    there.tell_map(make_map(there.spec, number=2, token=2))
    there.take()
    return there


def join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "warm-up":
            thread.join(30)


def test_a_dense_job_asks_for_nothing() -> None:
    there = Box(job(table()))
    assert there.servers["s0.1"]._warmth.state.name == "COLD"


def test_it_is_asked_for_once() -> None:
    machine = cold().servers["s0.1"]
    effects = machine.on_message("m0", m.MapTold(3, 3, make_map(job(sparse_table()), number=3, token=3).to_document()), 0)
    assert not any(isinstance(effect, WarmUp) for effect in effects)
    fresh = Box(job(table())).servers["s0.1"]
    effects = fresh.on_message("m0", m.MapTold(3, 3, make_map(job(sparse_table()), number=3, token=3).to_document()), 0)
    assert sum(isinstance(effect, WarmUp) for effect in effects) == 1


def test_what_comes_meanwhile_is_done_in_order_once_it_is_there() -> None:
    there = cold(consistency="asp")
    for seq in (1, 2):
        there.push({}, seq=seq, prev=seq - 1, rows={"e": {5: [1.0]}})
    there.push({}, seq=1, prev=0, rows={"e": {5: [1.0]}})
    there.pull(after=2, rows={"e": [5]}, request=8)
    there.last()
    assert not there.take()
    there.feed("s0.1", "", Warm())
    answers = there.take()
    assert [type(answer).__name__ for answer in answers] == ["PushAck", "PushAck", "PushAck", "Values", "LastTold"]
    assert np.frombuffer(answers[3].payload[0], "f8").tolist() == [2.0]
    there.push({}, seq=3, prev=2, rows={"e": {5: [1.0]}})
    assert there.take(m.PushAck)


def test_others_are_served_meanwhile() -> None:
    there = cold()
    there.clock(m.Join)
    assert there.take(m.Standing)
    dense = Box(job(table("w", 2, "f64", "add")))
    map_ = dense.map
    there.feed("s0.1", "a0.1", m.Pull(1, 0, map_.epoch(0), 1, 5, 0, 1, 0, 0, (m.Segment(0, 0, 2, 2, m.BLOCK, m.ABSENT),)))
    assert [values.request for values in there.take(m.Values)] == [5]


def test_an_old_map_is_told_at_once() -> None:
    there = cold()
    there.feed("s0.1", "a0.1", m.LastAsk(2, 0, 7, 2, 0, 1))
    assert there.take(m.Nack)


@pytest.mark.parametrize(("limits", "kept"), [(Limits(parked_max=2), 2), (Limits(window_bytes=3 * 16), 3)])
def test_what_does_not_fit_is_dropped_and_comes_again(limits: Limits, kept: int) -> None:
    """A push of one row has 16 bytes."""
    there = cold(limits, consistency="asp")
    for seq in range(1, 6):
        there.push({}, seq=seq, prev=seq - 1, rows={"e": {5: [1.0]}})
    there.feed("s0.1", "", Warm())
    assert [ack.seq for ack in there.take(m.PushAck)] == list(range(1, kept + 1))
    for seq in range(kept + 1, 6):
        there.push({}, seq=seq, prev=seq - 1, rows={"e": {5: [1.0]}})
    assert there.row(5)[0] == 5.0


def test_one_that_breaks_the_protocol_does_not_take_the_others_with_it() -> None:
    there = cold(consistency="asp")
    there.push_sum({}, [], rows={"e": {5: [1.0]}})
    there.push({}, rows={"e": {5: [1.0]}})
    there.feed("s0.1", "", Warm())
    assert len(there.take(m.PushAck)) == 1 and there.logs[-1][1].event == "peer_dropped"


def test_a_job_that_ended_meanwhile_is_nacked() -> None:
    there = cold()
    there.push({}, rows={"e": {5: [1.0]}})
    there.tell_map(there.map._replace(token=3, state="stopped"))
    there.take()
    there.feed("s0.1", "", Warm())
    assert there.take(m.Nack)


def test_without_it_sparse_jobs_are_refused_with_a_sentence_and_dense_ones_go_on() -> None:
    there = cold(consistency="asp")
    there.push({}, rows={"e": {5: [1.0]}})
    there.push_sum({}, [m.Component(0, 1, 1, 0, 0, 1.0), m.Component(1, 1, 1, 0, 0, 1.0)], rows={"e": {5: [1.0]}})
    there.feed("s0.1", "", Warm("numba cannot be used here (No module named 'numba')"))
    heard = there.take()
    refusals = [message for message in heard if isinstance(message, m.Refuse)]
    assert [(refusal.worker, refusal.seq) for refusal in refusals] == [(0, 1), (0, 1), (1, 1)]
    for refusal in refusals:
        assert Code(refusal.code) is Code.INTERNAL
        assert refusal.text == "server s0.1 cannot keep the sparse tables of job 'story': numba cannot be used here (No module named 'numba')"
    assert [(end.job, end.reason) for end in heard if isinstance(end, m.JobEnd)] == [(2, refusals[0].text)]
    there.scan()
    there.pull(rows={"e": [5]}, request=9)
    assert [refusal.request for refusal in there.take(m.Refuse)] == [1, 9]
    there.tell_map(make_map(there.spec, number=3, token=4))
    assert [end.job for end in there.take(m.JobEnd)] == [3], "the next sparse job is told at once"
    assert not there.servers["s0.1"].jobs[1].full


# -- the shell


def test_the_shell_imports_in_a_thread_and_feeds_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on meanwhile: it is what lets the thread finish here."""
    gate = threading.Event()
    threads = []

    def import_module(name: str, package: str) -> None:
        threads.append(threading.current_thread())
        assert gate.wait(30)

    monkeypatch.setattr(main, "import_module", import_module)
    fed: list[Any] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        there = asyncio.Event()
        node = SimpleNamespace(loop=loop, feed=lambda sender, message: (fed.append((sender, message)), there.set()))
        main.warm_up(node)
        loop.call_soon(gate.set)
        await asyncio.wait_for(there.wait(), 30)

    asyncio.run(run())
    assert fed == [("", Warm(""))] and threads[0] is not threading.main_thread()


def test_a_missing_numba_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "plugml.server.rowindex", raising=False)
    problem = main.rows_problem()
    assert "numba cannot be used here" in problem and "install plugml with its dependencies" in problem


def test_where_numba_is_it_can_be_used() -> None:
    assert main.rows_problem() == ""


def test_a_compiler_that_breaks_down_ends_the_process_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by silence: the loop gets an exception, which the node's crash handler tells."""
    monkeypatch.setattr(main, "rows_problem", lambda: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    told: list[Any] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        there = asyncio.Event()
        loop.set_exception_handler(lambda _, context: (told.append(context["exception"]), there.set()))
        main.warm_up(SimpleNamespace(loop=loop, feed=lambda sender, message: None))
        await asyncio.wait_for(there.wait(), 30)

    asyncio.run(run())
    join_threads()  # before the hook is put back: the thread says last what broke it
    assert isinstance(told[0], AssertionError)


def test_a_server_that_ends_meanwhile_is_not_troubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "rows_problem", lambda: "")
    failures: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    loop = asyncio.new_event_loop()
    loop.close()
    main.warm_up(SimpleNamespace(loop=loop, feed=lambda sender, message: failures.append(message)))
    join_threads()
    assert not failures


def test_heard_is_what_left_the_server() -> None:
    """The kit tells who spoke: answers kept by WarmUp come from the server, as any."""
    there = cold(consistency="asp")
    there.push({}, rows={"e": {5: [1.0]}})
    there.feed("s0.1", "", Warm())
    assert [item for item in there.heard if isinstance(item.message, m.PushAck)] == [Heard("s0.1", "a0.1", m.PushAck(2, 0, 1, 2, 0, 1, 1))]


def test_a_server_without_sparse_tables_never_imports_numba() -> None:
    code = "import sys, plugml.server.main; sys.exit('numba' in sys.modules or 'plugml.server.rowindex' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
