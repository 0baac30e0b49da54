"""Pushes that are accepted before they are carried out: whole in `pend.*` or not there at all, whoever dies when."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugml.core.errors import Code, RequestError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import kept, numbers, page
from plugml.shm_protocol.channel import AgentChannel
from plugml.shm_protocol.create import files_of
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.reading import Data
from plugml.shm_protocol.request import Request, Section, parse_request
from plugml.shm_protocol.twin import MemoryFiles, adopt_twin

SPEC = JobSpec(
    "j", 1,
    (
        TableSpec("w", (5,), storage="f16"), TableSpec("e", (100, 3), "sparse", index="u64", batch=4),
        TableSpec("f", (0, 2), "sparse", dtype="f64", index="str", batch=3),
    ),
)  # fmt: skip
INFO = Info.of(SPEC, 0, 1, "0" * 32, 0)
W = np.array([1, 2, 3, 4, 5], "<f4")
E = np.array([[1, 2, 3], [4, 5, 6]], "<f4")
F = np.array([[0.25, -0.25]], "<f8")
RAW = "push 7 3 n=5 w=2 async=1 table=e k=2 table=f k=1"
LINES = [
    RAW, "push 7 3 async=1", "push 7 3 n=5", "push 7 3 fmt=text async=1", "step 7 3 n=5 fmt=text t=50 table=e k=2 want=1 table=f k=1 want=2",
    "step 7 3 t=5 table=f k=1", "clock 7 3 t=9",
]  # fmt: skip


class Killed(BaseException):
    pass


def filled(line: str) -> MemoryFiles:
    """Memory of a program that has written all that its request names, and more."""
    files = MemoryFiles(INFO)
    request = parse_request(line.encode())
    dense = request.takes_dense
    grad = bytearray(64 if dense else 0)
    grad[:20] = W.tobytes()[: 20 if dense else 0]
    text = [*(W.tolist() if dense else [])]
    for section in request.sections:
        if section.table == "e" and section.rows:
            grad += E.tobytes()
            text += E.reshape(-1).tolist()
        if section.table == "f" and section.rows:
            grad += F.tobytes()
            text += F.reshape(-1).tolist()
    files.contents["grad"][:] = grad if request.sections else W.tobytes().ljust(INFO.cap_grad, b"\xff")
    files.contents["grad.txt"][:] = "".join(f"{x}\n" for x in text).encode()
    files.contents["gidx"][:] = np.array([7, 99], "<u8").tobytes()
    files.contents["gidx.txt"][:] = b"7\n99\n"
    files.contents["want"][:] = np.array([3], "<u8").tobytes()
    files.contents["want.txt"][:] = b"3\n"
    files.contents["gkey"][:] = "schön\n".encode()
    files.contents["wkey"][:] = b"a\nb\n"
    return files


def spoil(files: MemoryFiles) -> None:
    """The program goes on: its files hold something else now."""
    for name in ("grad", "grad.txt", "gidx", "gidx.txt", "want", "want.txt", "gkey", "wkey"):
        files.contents[name][:] = b"\xff" * 3


def same(one: Data, other: Data) -> None:
    assert (one.buffer is None) == (other.buffer is None)
    assert one.buffer is None or other.buffer is None or one.buffer.tobytes() == other.buffer.tobytes()
    assert (one.crc, one.nbytes) == (other.crc, other.nbytes)
    for left, right in ((one.rows, other.rows), (one.wants, other.wants)):
        assert [r.table for r in left] == [r.table for r in right]
        for a, b in zip(left, right):
            for x, y in zip(a[1:], b[1:]):
                assert (x is None) == (y is None) and (x is None or y is None or (x.tolist(), x.dtype) == (y.tolist(), y.dtype))


def buffer_of(agent: AgentChannel) -> np.ndarray:
    return numbers.aligned(agent.reader.stored_bytes)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("slot", [0, 1])
def test_what_was_kept_is_read_as_what_was_pushed(line: str, slot: int) -> None:  # SPEC 4.15 7.17
    files = filled(line)
    agent = adopt_twin(files, INFO, 1)
    request = parse_request(line.encode())
    before = agent.read_data(request, buffer_of(agent))
    assert agent.kept_pushes() == ()
    agent.keep(slot, request)
    spoil(files)
    later = adopt_twin(files, INFO, 2)
    [(at, told)] = later.kept_pushes()
    assert (at, parse_request(told)) == (slot, request)
    same(before, later.read_kept(slot, parse_request(told), buffer_of(later)))
    later.drop(slot)
    assert later.kept_pushes() == adopt_twin(files, INFO, 3).kept_pushes() == ()
    with pytest.raises(RequestError, match=f"pend.{slot} holds no push"):
        later.read_kept(slot, request, buffer_of(later))


def test_two_pushes_are_told_in_the_order_of_their_seq() -> None:  # SPEC 7.18 4.15
    files = filled(RAW)
    agent = adopt_twin(files, INFO, 1)
    for slot, seq in ((0, 9), (1, 8)):
        agent.keep(slot, parse_request(RAW.encode())._replace(seq=seq))
    assert [slot for slot, _line in adopt_twin(files, INFO, 2).kept_pushes()] == [1, 0]
    agent.drop(1)
    agent.keep(1, parse_request(RAW.encode())._replace(seq=10))
    assert [slot for slot, _line in adopt_twin(files, INFO, 2).kept_pushes()] == [0, 1]
    assert agent.counters()["kept"] == 3


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("old", [False, True], ids=["fresh", "used"])
def test_an_agent_dies_between_any_two_stores_and_the_push_is_there_whole_or_not_at_all(line: str, old: bool) -> None:  # SPEC 7.8 7.17
    request = parse_request(line.encode())
    kill_at = 0
    whole = []
    while True:
        kill_at += 1
        files = filled(line)
        agent = adopt_twin(files, INFO, 1)
        if old:  # something longer was there before
            mine = dict(files.contents)
            files.contents |= {name: bytearray(data) for name, data in filled(RAW).contents.items() if name in ("grad", "gidx", "gkey")}
            agent.keep(0, parse_request(RAW.encode())._replace(seq=6))
            agent.drop(0)
            files.contents |= {name: mine[name] for name in ("grad", "gidx", "gkey")}
        wanted = agent.read_data(request, buffer_of(agent))
        left = [kill_at]

        def on_store(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed

        files.on_store = on_store
        try:
            agent.keep(0, request)
            killed = False
        except Killed:
            killed = True
        files.on_store = lambda: None
        spoil(files)
        later = adopt_twin(files, INFO, 2)
        found = later.kept_pushes()
        whole.append(bool(found))
        if found:
            same(wanted, later.read_kept(0, parse_request(found[0][1]), buffer_of(later)))
        if not killed:
            break
    assert whole == [False] * (len(whole) - 1) + [True] and len(whole) >= 2


def test_a_head_that_is_torn_anywhere_is_none() -> None:  # SPEC 7.17
    files = filled(RAW)
    agent = adopt_twin(files, INFO, 1)
    agent.keep(0, parse_request(RAW.encode()))
    whole = bytes(files.contents["pend.0"])
    used = 0x40 + len(RAW)
    for old in (bytes(kept.HEAD_BYTES), kept.Kept(b"push 6 2 async=1 n=5", (20, 0, 0, 0, 0)).pack()):
        for at in [*range(used + 4), *range(used + 4, kept.HEAD_BYTES, 97)]:
            head = whole[:at] + (kept.FREE + old[len(kept.FREE) :])[at:]
            found = kept.read_kept(head, len(whole))
            assert (found is None) == (head != whole[: kept.HEAD_BYTES]), at
    for at in range(used):
        for bit in (0x01, 0x80):
            head = bytearray(whole[: kept.HEAD_BYTES])
            head[at] ^= bit
            assert kept.read_kept(bytes(head), len(whole)) is None, at


def test_lengths_that_do_not_fit_the_file_are_none() -> None:  # SPEC 7.17
    for sizes in ((1, 0, 0, 0, 0), (0, 0, 0, 0, 65), ((1 << 64) - 1, 0, 0, 0, 0), ((1 << 64) - 8192, 1, 0, 0, 0)):
        head = kept.Kept(b"push 1 0", sizes).pack()
        assert kept.read_kept(head, kept.HEAD_BYTES) is None
    assert kept.read_kept(kept.Kept(b"clock 1 0 t=5", (0, 0, 0, 0, 0)).pack(), kept.HEAD_BYTES) is not None
    wrong = bytearray(kept.Kept(b"x", (0, 0, 0, 0, 0)).pack())
    wrong[12:16] = (4096).to_bytes(4, "little")  # more than a line can have, and a checksum that fits
    wrong[8:12] = bytes(4)
    wrong[8:12] = zlib.crc32(wrong).to_bytes(4, "little")
    assert kept.read_kept(bytes(wrong), kept.HEAD_BYTES) is None


@given(st.binary(max_size=200), st.integers(0, 1 << 20))
def test_any_head_is_a_push_or_none(head: bytes, nbytes: int) -> None:
    for whole in (head, kept.MAGIC + head, (kept.MAGIC + head).ljust(kept.HEAD_BYTES, b"\0")):
        assert kept.read_kept(whole, nbytes) is None


@given(st.binary(max_size=page.REQUEST_BYTES_MAX), st.lists(st.integers(0, 1 << 40), min_size=5, max_size=5).map(tuple))
def test_a_head_reads_back(line: bytes, sizes: tuple[int, ...]) -> None:
    made = kept.Kept(line, sizes)
    assert kept.read_kept(made.pack(), 1 << 50) == made
    offsets = made.offsets
    assert offsets[0] == kept.HEAD_BYTES and all(at % 64 == 0 for at in offsets)
    assert all(offsets[i] + sizes[i] <= offsets[i + 1] < offsets[i] + sizes[i] + 64 for i in range(4))


def test_a_slot_grows_with_the_first_push_that_it_takes() -> None:  # SPEC 1.5
    """A program that never has a push accepted beforehand pays a head for each slot and nothing more."""
    spec = JobSpec("j", 1, (TableSpec("w", (5,)), TableSpec("e", (0, 3), "sparse", index="u32", batch=5), TableSpec("g", (0, 1), "sparse", index="u64", batch=3)))
    info = Info.of(spec, 0, 1, "0" * 32, 0)
    files = MemoryFiles(info)
    agent = adopt_twin(files, info, 1)
    assert len(files.contents["pend.1"]) == kept.HEAD_BYTES == dict((name, size) for name, _mode, size in files_of(info))["pend.1"]
    agent.keep(1, parse_request(b"step 1 0 n=5 t=1 table=e k=5 want=5 table=g k=3 want=3"))
    assert len(files.contents["pend.1"]) > kept.HEAD_BYTES + info.cap_grad
    assert [slot for slot, _line in agent.kept_pushes()] == [1]


@pytest.mark.parametrize(
    ("name", "nbytes"), [("grad", 3), ("gidx", 8), ("grad", 0), ("want", 9)],
)  # fmt: skip
def test_a_file_of_another_size_is_not_kept(name: str, nbytes: int) -> None:
    line = "step 7 3 t=50 table=e k=2 want=1"
    files = filled(line)
    agent = adopt_twin(files, INFO, 1)
    files.contents[name][:] = bytes(nbytes)
    with pytest.raises(RequestError) as refused:
        agent.keep(0, parse_request(line.encode()))
    assert refused.value.code is Code.SIZE
    assert agent.kept_pushes() == ()


@pytest.mark.parametrize("name", ["gkey", "grad.txt", "gidx.txt", "wkey"])
def test_a_text_that_is_too_long_is_not_copied(name: str) -> None:
    line = "step 7 3 n=5 fmt=text t=50 table=e k=2 want=1 table=f k=1 want=2"
    files = filled(line)
    agent = adopt_twin(files, INFO, 1)
    files.contents[name].extend(bytes(10_000))
    with pytest.raises(RequestError, match=f"SIZE: {name} has .* lines need at most"):
        agent.keep(0, parse_request(line.encode()))
    assert agent.kept_pushes() == ()


def test_a_slot_without_room_keeps_nothing_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    files = filled(RAW)
    agent = adopt_twin(files, INFO, 1)
    agent.keep(0, parse_request(RAW.encode()))
    real = files.write

    def full(name: str, offset: int, data: bytes) -> None:
        if name == "pend.1" and offset > kept.HEAD_BYTES:  # the second file of the push
            raise RequestError(Code.NOSPC, "pend.1 cannot be written: the channel root is full")
        real(name, offset, data)

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(RequestError, match="NOSPC"):
        agent.keep(1, parse_request(RAW.encode())._replace(seq=8))
    assert [slot for slot, _line in adopt_twin(files, INFO, 2).kept_pushes()] == [0]
    assert len(files.contents["pend.1"]) == kept.HEAD_BYTES, "what could not be kept takes no room"


def test_a_push_that_was_late_counts_as_taken() -> None:  # SPEC 7.14 7.15
    files = filled(RAW)
    agent = adopt_twin(files, INFO, 1)
    for seq, status in ((7, Code.TIMEOUT), (8, Code.NOSPC)):
        agent.set_current(seq)
        agent.read_data(parse_request(RAW.encode()), buffer_of(agent))
        agent.write_result(seq, 3, 0, status)
        agent.set_done(seq)
    assert (agent.counters()["pushes"], agent.counters()["rows_pushed"], agent.counters()["errors"]) == (1, 3, 2)


def test_a_kept_push_counts_once_when_it_is_answered() -> None:  # SPEC 7.14
    files = filled(RAW)
    agent = adopt_twin(files, INFO, 1)
    request = parse_request(RAW.encode())
    agent.set_current(7)
    agent.read_data(request, buffer_of(agent))
    agent.keep(0, request)
    agent.write_result(7, 3, 0, 0)
    agent.set_done(7)
    agent.set_current(8)
    agent.read_kept(0, request, buffer_of(agent))
    agent.drop(0)
    agent.write_result(8, 3, 0, 0)
    agent.set_done(8)
    counted = agent.counters()
    assert {name: counted[name] for name in ("pushes", "bytes_pushed", "rows_pushed", "kept", "requests")} == {
        "pushes": 1, "bytes_pushed": 64 + 24 + 16, "rows_pushed": 3, "kept": 1, "requests": 2,
    }  # fmt: skip


def test_a_line_that_grows_past_the_limit_is_refused_and_not_cut() -> None:
    tables = tuple(TableSpec(f"t{at}".ljust(60, "x"), (9, 1), "sparse", batch=1) for at in range(70))
    info = Info.of(JobSpec("j", 1, tables), 0, 1, "0" * 32, 0)
    agent = adopt_twin(MemoryFiles(info), info, 1)
    with pytest.raises(RequestError, match="4095 is the most"):
        agent.keep(0, Request("push", 7, 3, sections=tuple(Section(table.name, 0, 0) for table in tables)))
    assert agent.kept_pushes() == ()


def test_what_a_job_has_not_is_not_kept() -> None:
    agent = adopt_twin(filled(RAW), INFO, 1)
    with pytest.raises(RequestError, match="none of this job's"):
        agent.keep(0, Request("push", 7, 3, sections=(Section("x", 1, 0),)))
