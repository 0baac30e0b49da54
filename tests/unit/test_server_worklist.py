"""Pieces of input: handed out once a pass, in order; repeats, lost pieces, passes; against a model that forgets nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import PeerError
from plugml.server.worklist import REMEMBERED, Told, Worklist
from plugml.wire.messages import NO_PIECE, SAME_PIECE


def drain(work: Worklist, worker: int = 0, gen: int = 1, request: int = 1) -> list[Told]:
    found: list[Told] = []
    while True:
        told = work.ask(worker, gen, request)
        work.check()
        assert told is not None
        if told.piece == NO_PIECE:
            return found
        found.append(told)
        request += 1


def test_pieces_come_in_order_pass_by_pass() -> None:
    assert drain(Worklist(3, 2)) == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    assert drain(Worklist(2, 0)) == [(0, 0), (1, 0)]  # 0 passes are one


def test_the_same_request_is_answered_the_same_even_when_the_list_has_changed() -> None:
    work = Worklist(2, 1)
    first = work.ask(0, 1, 5)
    assert first == (0, 0) and work.ask(0, 1, 5) == first
    work.ask(1, 1, 1)
    nothing = work.ask(0, 1, 6)
    assert nothing == (NO_PIECE, 1)
    work.lose(1)
    assert work.ask(0, 1, 6) == nothing  # a repeat, though a piece is back
    assert work.ask(0, 1, 7) == (1, 0)
    assert work.ask(0, 1, 6) is None  # late: the stream is further on


def test_a_lost_piece_is_first_in_line_the_earliest_before_the_others() -> None:
    work = Worklist(9, 1)
    for worker in range(4):
        work.ask(worker, 1, 1)
    for worker in (2, 0):
        work.lose(worker)
    assert [work.ask(3, 1, request) for request in (2, 3, 4)] == [(0, 0), (2, 0), (4, 0)]


def test_a_new_incarnation_gets_the_piece_that_the_old_one_held() -> None:
    work = Worklist(9, 1)
    work.ask(0, 1, 1)
    assert work.ask(0, 1, 2) == (1, 0)
    assert work.ask(0, 2, 1) == (1, 0)
    work.check()
    assert work.done == 1 and work.next == 2


def test_a_finished_piece_does_not_come_back() -> None:
    work = Worklist(3, 1)
    work.ask(0, 1, 1)
    work.finish(0)
    work.lose(0)
    assert work.done == 1 and work.ask(1, 1, 1) == (1, 0)


def test_a_job_without_pieces_has_nothing() -> None:
    assert Worklist(0, 5).ask(0, 1, 1) == (NO_PIECE, 5)


def test_a_list_longer_than_any_memory_takes_none() -> None:
    work = Worklist(1 << 62, 1 << 62)
    assert drain_some(work, 3) == [(0, 0), (1, 0), (2, 0)] and len(work.state()) == 6


def drain_some(work: Worklist, count: int) -> list[Told | None]:
    return [work.ask(0, 1, request) for request in range(1, count + 1)]


@given(st.integers(1, 6), st.integers(1, 3), st.data())
@settings(max_examples=200, deadline=None)
def test_against_a_model_that_forgets_nothing(pieces: int, passes: int, data: st.DataObject) -> None:
    """Each piece of each pass is out with at most one worker, is done once, and none is lost; whoever asks gets the
    earliest one that came back, else the next."""
    work = Worklist(pieces, passes)
    line = [Told(piece, turn) for turn in range(passes) for piece in range(pieces)]
    waiting = list(range(len(line)))
    holds: dict[int, int] = {}
    streams = {worker: [1, 0] for worker in range(3)}  # gen, last request
    answers: dict[tuple[int, int, int], Told | None] = {}
    done: list[int] = []
    for _ in range(data.draw(st.integers(1, 40))):
        worker = data.draw(st.sampled_from(sorted(streams)))
        gen, request = streams[worker]
        what = data.draw(st.sampled_from(("ask", "ask", "ask", "repeat", "lose", "finish", "restart")))
        if what == "repeat" and request:
            assert work.ask(worker, gen, request) == answers[worker, gen, request]
        elif what == "lose":
            work.lose(worker)
            if worker in holds:
                waiting = sorted([*waiting, holds.pop(worker)])
        elif what == "finish":
            work.finish(worker)
            if worker in holds:
                done.append(holds.pop(worker))
        elif what in ("ask", "restart"):
            if what == "restart":
                streams[worker] = [gen + 1, 0]
                if worker in holds:
                    waiting = sorted([*waiting, holds.pop(worker)])
            streams[worker][1] += data.draw(st.integers(1, 3))  # other requests have numbers too
            if worker in holds:
                done.append(holds.pop(worker))
            told = work.ask(worker, *streams[worker])
            answers[worker, streams[worker][0], streams[worker][1]] = told
            if waiting:
                holds[worker] = waiting.pop(0)
                assert told == line[holds[worker]]
            else:
                assert told == (NO_PIECE, passes)
        work.check()
        assert work.done == len(done) == len(set(done))


@pytest.mark.parametrize("how", ("lose", "finish"))
def test_who_holds_nothing_has_nothing_to_put_down(how: str) -> None:
    work = Worklist(2, 1)
    getattr(work, how)(7)
    work.ask(7, 1, 1)
    getattr(work, how)(7)
    before = work.state()
    getattr(work, how)(7)
    assert work.state() == before


def test_a_piece_that_its_program_never_saw_is_told_once_more() -> None:
    work = Worklist(3, 1)
    first = work.ask(0, 1, 5)
    assert work.ask(0, 1, SAME_PIECE) == first == Told(0, 0)
    assert work.ask(0, 1, 9) == Told(1, 0)
    assert work.ask(1, 1, SAME_PIECE) == Told(2, 0)  # to whom nothing was told it is the next one
    work.check()


def test_from_a_checkpoint_what_was_out_comes_back_and_what_was_done_behind_the_cut_too() -> None:
    """Worker 1 is two clocks ahead of the cut: the piece of its clock 5 is not in it."""
    work = Worklist(9, 1)
    work.settle(3 + REMEMBERED)
    for request, clocks in ((1, 3), (2, 4), (3, 5), (4, 6)):
        work.ask(1, 1, request, clocks)
    work.ask(2, 1, 1, 4)
    assert work.state()[0] == 5 and work.done == 3
    copy = Worklist(9, 1)
    copy.load(work.dump())
    assert copy.state() == work.state()
    copy.rewind(4)
    copy.check()
    told = [copy.ask(worker, 1, 1) for worker in (1, 2, 3, 4, 5)]
    assert [piece.piece for piece in told if piece is not None] == [1, 2, 3, 4, 5] and copy.done == 1
    assert work.undecided(1, 6, 7) and not work.undecided(1, 6, 6) and not work.undecided(1, 8, 7)
    work.settle(6 + REMEMBERED)
    assert work.remembers(6) and not work.remembers(5)
    work.rewind(6)
    assert work.done == 3, "everything that is done by then is in a later cut"


@pytest.mark.parametrize("late", [[(5, 1), (5, 1)], [(5, 8)], [(5, 3)], [(5, 0), (5, 1), (5, 2)], 7])
def test_a_copy_that_lies_about_late_pieces_is_refused(late: object) -> None:
    work = Worklist(9, 1)
    for request in (1, 2, 3):
        work.ask(1, 1, request, request)
    with pytest.raises(PeerError):
        Worklist(9, 1).load({**work.dump(), "late": late})
