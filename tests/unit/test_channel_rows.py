"""Rows of sparse tables in the channel's files: where they lie, how they are named, and what is refused before anything is sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plugml.core.errors import Code, RequestError
from plugml.core.job import JobSpec
from plugml.core.keys import name_hash
from plugml.core.table import ROWS_TOP, TableSpec
from plugml.shm_protocol import numbers, rows
from plugml.shm_protocol.channel import AgentChannel
from plugml.shm_protocol.info import Info, InfoTable, caps, parse_info
from plugml.shm_protocol.places import Places, lay_out
from plugml.shm_protocol.reading import Data
from plugml.shm_protocol.request import Request, Section, parse_request
from plugml.shm_protocol.sample import WINDOW_BYTES, WINDOWS, sample
from plugml.shm_protocol.twin import MemoryFiles, adopt_twin

BOOT = "0" * 32
#: Two different keys with one hash.
TWINS = ("8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ")
W = TableSpec("w", (10,))
E = TableSpec("e", (1000, 3), "sparse", index="u32", batch=4)
F = TableSpec("f", (0, 2), "sparse", dtype="f64", index="str", batch=3)
G = TableSpec("g", (0, 1), "sparse", dtype="i64", index="u64", batch=2, optimizer="add")
SPEC = JobSpec("j", 1, (W, E, F, G))


class Host:
    """A program's files in memory and the agent that reads them."""

    def __init__(self, *tables: TableSpec) -> None:
        self.info = Info.of(JobSpec("j", 1, tables or SPEC.tables), 0, 1, BOOT, 0)
        self.files = MemoryFiles(self.info)
        self.agent: AgentChannel = adopt_twin(self.files, self.info, 1)

    def put(self, **contents: bytes) -> Host:
        for name, data in contents.items():
            self.files.contents[name.replace("_", ".")][:] = data
        return self

    def read(self, line: str) -> Data:
        request = parse_request(line.encode())
        return self.agent.read_data(request, numbers.aligned(self.agent.reader.stored_bytes) if request.takes_dense else None)

    def refused(self, line: str) -> tuple[Code, str]:
        with pytest.raises(RequestError) as error:
            self.read(line)
        return error.value.code, error.value.text


def f4(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def u4(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


def grad_of(*parts: tuple[int, bytes]) -> bytes:
    """Bytes at their offsets, with 0xff (not a number) between them."""
    whole = bytearray()
    for at, part in parts:
        whole.extend(b"\xff" * (at - len(whole)) + part)
    return bytes(whole)


# -- info


def test_the_lines_of_sparse_tables() -> None:  # SPEC 2.6 2.11 2.12 2.13 2.14
    info = Info.of(JobSpec("j", 1, (*SPEC.tables, TableSpec("h", (4,), dtype="f64", storage="f32"), TableSpec("s", (9, 5), "sparse", storage="f16"))), 0, 1, BOOT, 0)
    lines = [line for line in info.format().splitlines() if line.startswith("table=")]
    assert lines[1:] == [
        "table=e kind=sparse dtype=f32 order=C offset=0 count=0 shape=1000,3 width=3 index=u32 batch=4",
        "table=f kind=sparse dtype=f64 order=C offset=0 count=0 shape=0,2 width=2 index=str batch=3",
        "table=g kind=sparse dtype=i64 order=C offset=0 count=0 shape=0,1 width=1 index=u64 batch=2",
        "table=h kind=dense dtype=f64 order=C offset=64 count=4 shape=4 storage=f32",
        "table=s kind=sparse dtype=f32 order=C offset=0 count=0 shape=9,5 width=5 index=u32 batch=9 storage=f16",
    ]
    assert (info.cap_grad, info.cap_param, info.cap_idx) == (128 + 48 + 48 + 16 + 184, 128 + 48 + 48 + 16 + 184, 16 + 16 + 40)
    assert (info.elements, info.constant(0).index_bytes, info.constant(0).cap_idx) == (14, 8, 72)
    assert parse_info(info.format()) == info


def test_a_table_may_have_every_row_but_one() -> None:  # SPEC 2.12
    info = Info.of(JobSpec("j", 1, (TableSpec("e", (ROWS_TOP, 2), "sparse", batch=1),)), 0, 1, BOOT, 0)
    assert f"shape={(1 << 64) - 1},2" in info.format()
    assert parse_info(info.format()) == info


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (" index=u32", "", Code.FORMAT), (" batch=4", "", Code.FORMAT), (" width=3", "", Code.FORMAT), ("width=3", "width=4", Code.FORMAT),
        ("index=u32", "index=u16", Code.VERSION), ("batch=4", "batch=0", Code.FORMAT), ("batch=4", "batch=5000", Code.FORMAT),
        ("shape=1000,3", "shape=3", Code.FORMAT), ("shape=1000,3", f"shape={1 << 64},3", Code.FORMAT), ("cap_idx=32", "cap_idx=31", Code.FORMAT),
        ("shape=0,2 width=2 index=str batch=3", "shape=0,2 width=2 index=str batch=3 storage=i8", Code.VERSION),
    ],
)  # fmt: skip
def test_a_wrong_line_of_a_sparse_table_is_refused(old: str, new: str, code: Code) -> None:  # SPEC 2.11 2.13
    text = Host().info.format()
    assert old in text
    with pytest.raises(RequestError) as error:
        parse_info(text.replace(old, new, 1))
    assert error.value.code is code


@given(st.data())
def test_any_changed_piece_of_an_info_is_an_info_or_a_request_error(data: st.DataObject) -> None:
    words = Host().info.format().split(" ")
    at = data.draw(st.integers(0, len(words) - 1))
    words[at] = data.draw(st.sampled_from(["", "index=str", "kind=dense", "kind=sparse", "batch=-1", "width=1e3", "shape=,", "offset=64", "storage=f16", "x"]) | st.text(max_size=9))
    try:
        made = parse_info(" ".join(words))
    except RequestError as error:
        assert error.code in (Code.FORMAT, Code.VERSION)
    else:
        cap, cap_idx = caps(made.tables)
        assert cap <= made.cap_grad and cap_idx <= made.cap_idx


# -- places


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9))), st.integers(0, 3))
def test_sections_lie_one_behind_the_other_at_multiples_of_eight(sizes: list[tuple[int, int]], start: int) -> None:  # SPEC 3.13
    start *= 64
    wanted = [rows_ * width for rows_, width in sizes]
    offsets, end = lay_out(wanted, start)
    at = last = start
    for offset, nbytes in zip(offsets, wanted):
        if nbytes:
            assert offset % 8 == 0 and at <= offset < at + 8
            at = last = offset + nbytes
    assert end == last


def test_the_example_of_the_specification() -> None:  # SPEC 3.12 3.13 3.14 3.17
    host = Host(W, E, F)
    values = np.arange(10, dtype="<f4")
    e, f = np.arange(9, dtype="<f4").reshape(3, 3), np.array([[0.5, -0.5]], "<f8")
    grad = grad_of((0, values.tobytes()), (64, e.tobytes()), (104, f.tobytes()))
    assert len(grad) == 120
    host.put(grad=grad, gidx=u4(7, 999, 7), gkey="größe\n".encode(), want=u4(3))
    data = host.read("step 5 4 n=10 table=e k=3 want=1 table=f k=1")
    assert data.buffer is not None and data.buffer.view("<f4").tolist() == values.tolist()
    assert [(r.table, r.ids.tolist(), r.values.tolist() if r.values is not None else None) for r in data.rows] == [
        (1, [7, 999, 7], e.tolist()), (2, [name_hash("größe")], f.tolist()),
    ]  # fmt: skip
    assert [(r.table, r.ids.tolist(), r.values) for r in data.wants] == [(1, [3], None)]
    assert data.crc and data.nbytes == 120
    places = Places(host.info).param(parse_request(b"step 5 4 n=10 table=e k=3 want=1 table=f k=1"))
    assert (places.dense, [tuple(place) for place in places.places], places.nbytes) == (True, [(1, 1, 64, 12)], 76)


def test_without_n_the_dense_tables_take_no_part_and_rows_begin_at_zero() -> None:  # SPEC 3.12 3.13
    host = Host(W, E).put(grad=f4(1, 2, 3), gidx=u4(5))
    data = host.read("push 1 0 table=e k=1")
    assert data.buffer is None and data.rows[0].values is not None and data.rows[0].values.tolist() == [[1, 2, 3]]
    assert host.refused("push 1 0") == (Code.SIZE, "grad has 12 bytes, 40 are declared (10 elements of f32); nothing was applied")


@st.composite
def pushes(draw: st.DrawFn) -> tuple[list[TableSpec], list[Section], bool]:
    kinds = draw(st.lists(st.tuples(st.sampled_from(("u32", "u64", "str")), st.integers(1, 5), st.sampled_from(("f32", "f64", "i64"))), min_size=1, max_size=5))
    tables = [
        TableSpec(f"t{at}", (0, width), "sparse", dtype=dtype, index=index, batch=6, optimizer="add") for at, (index, width, dtype) in enumerate(kinds)
    ]
    named = draw(st.permutations(tables))[: draw(st.integers(1, len(tables)))]
    sections = [Section(table.name, draw(st.integers(0, 6)), draw(st.integers(0, 6))) for table in named]
    return tables, sections, draw(st.booleans())


@given(pushes(), st.integers(0, 2), st.data())
def test_whatever_is_pushed_comes_back_as_it_was_written(made: tuple[list[TableSpec], list[Section], bool], mode: int, data: st.DataObject) -> None:  # SPEC 3.12 3.13 3.14 3.15
    """`mode`: files of exactly the size, of their full size, or longer with n=."""
    tables, sections, text = made
    host = Host(W, *tables)
    by_name = {table.name: table for table in tables}
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    dense = mode == 2
    request = Request("step", 1, 0, n=10 if dense else None, text=text, sections=tuple(sections))
    values = [rng.integers(-9, 9, (s.rows, by_name[s.table].width)).astype(by_name[s.table].numpy_dtype) for s in sections]
    pushed = [rng.integers(0, 5, s.rows) for s in sections]
    wanted = [rng.integers(0, 5, s.want) for s in sections]
    w = rng.integers(-9, 9, 10).astype("<f4")

    def packed(start: int, arrays_: list[np.ndarray]) -> bytes:
        offsets, end = lay_out([a.nbytes for a in arrays_], start)
        whole = bytearray(rng.bytes(end))  # what lies between means nothing
        for at, array in zip(offsets, arrays_):
            whole[at : at + array.nbytes] = array.tobytes()
        return bytes(whole)

    def index(named: list[np.ndarray]) -> list[np.ndarray]:
        kinds = [by_name[s.table].index_name for s in sections]
        return [ids.astype("<u4" if kind == "u32" else "<u8") for ids, kind in zip(named, kinds) if kind != "str"]

    def keys(named: list[np.ndarray]) -> bytes:
        return b"".join(b"k%d\n" % i for s, ids in zip(sections, named) if by_name[s.table].index_name == "str" for i in ids.tolist())

    def lines(arrays_: list[np.ndarray]) -> bytes:
        return b"".join(b"%s\n" % str(v).encode() for a in arrays_ for v in a.reshape(-1).tolist())

    contents = {"gkey": keys(pushed), "wkey": keys(wanted)}
    if text:
        contents |= {"grad_txt": lines([*([w] if dense else []), *values]), "gidx_txt": lines(index(pushed)), "want_txt": lines(index(wanted))}
    else:
        grad = packed(64 if dense else 0, values)
        if dense:
            grad = w.tobytes() + grad[40:] if any(v.size for v in values) else w.tobytes()
        more = {0: lambda b, cap: b, 1: lambda b, cap: b.ljust(cap, b"\xff"), 2: lambda b, cap: b + b"\xff\xff"}[mode]
        contents |= {"grad": more(grad, host.info.cap_grad), "gidx": more(packed(0, index(pushed)), host.info.cap_idx), "want": more(packed(0, index(wanted)), host.info.cap_idx)}
    host.put(**{name: content for name, content in contents.items() if name.replace("_", ".") in host.files.contents})
    found = host.agent.read_data(request, numbers.aligned(host.agent.reader.stored_bytes))
    assert (found.buffer is not None) == dense and (found.buffer is None or found.buffer.view("<f4").tolist() == w.tolist())
    numbers_of = {table.name: number for number, table in enumerate(host.info.tables)}
    for got, named, given_ in ((found.rows, pushed, values), (found.wants, wanted, None)):
        assert [r.table for r in got] == [numbers_of[s.table] for s, ids in zip(sections, named) if len(ids)]
        for r, (s, ids) in zip(got, [(s, ids) for s, ids in zip(sections, named) if len(ids)]):
            if by_name[s.table].index_name == "str":
                assert r.ids.tolist() == [name_hash(f"k{i}") for i in ids.tolist()]
                assert r.keys is not None and r.ends is not None
                assert [r.keys[a:b].tobytes().decode() for a, b in zip([0, *r.ends[:-1].tolist()], r.ends.tolist())] == [f"k{i}" for i in ids.tolist()]
            else:
                assert r.ids.tolist() == ids.tolist() and r.keys is None
            if given_ is not None:
                assert r.values is not None and r.values.tolist() == given_[sections.index(s)].tolist()


# -- sizes


@pytest.mark.parametrize("verb", ["push", "step"])
def test_sizes_of_raw_files(verb: str) -> None:  # SPEC 3.3 3.4
    host = Host(W, E)
    rows_ = f4(*range(6))
    for nbytes, ok in ((24, True), (host.info.cap_grad, True), (23, False), (25, False), (0, False), (32, False)):
        host.put(grad=rows_.ljust(nbytes, b"\0")[:nbytes], gidx=u4(1, 2))
        if ok:
            assert host.read(f"{verb} 1 0 table=e k=2").rows[0].size == 2
        else:
            assert host.refused(f"{verb} 1 0 table=e k=2")[0] is Code.SIZE
    host.put(grad=bytes(24))
    for nbytes, ok in ((8, True), (host.info.cap_idx, True), (4, False), (12, False), (0, False)):
        host.put(gidx=bytes(nbytes))
        if ok:
            assert host.read(f"{verb} 1 0 table=e k=2").rows[0].ids.tolist() == [0, 0]
        else:
            assert host.refused(f"{verb} 1 0 table=e k=2") == (Code.SIZE, f"gidx has {nbytes} bytes, 8 are declared; nothing was applied")
    host.put(grad=bytes(64 + 24 + 9), gidx=bytes(11))
    assert host.read(f"{verb} 1 0 n=10 table=e k=2").rows[0].size == 2
    assert host.put(grad=bytes(64 + 23)).refused(f"{verb} 1 0 n=10 table=e k=2")[0] is Code.SIZE


def test_a_size_that_does_not_fit_tells_what_was_declared() -> None:
    host = Host(W, E, F).put(grad=bytes(7), gidx=u4(1, 2))
    assert host.refused("step 1 0 n=10 table=e k=2 table=f k=1") == (
        Code.SIZE,
        "grad has 7 bytes, 104 are declared (10 dense elements, 2 rows of 3 f32 for table e at 64, 1 rows of 2 f64 for table f at 88); nothing was applied",
    )


def test_a_file_of_which_nothing_takes_part_is_not_looked_at() -> None:  # SPEC 3.12
    host = Host(W, E, F)
    host.put(grad=bytes(3), gidx=bytes(1), gkey=b"\xff", want=u4(4))
    data = host.read("step 1 0 table=e want=1 table=f")
    assert (data.buffer, data.rows, [r.ids.tolist() for r in data.wants]) == (None, (), [[4]])
    for name in ("grad", "gidx", "gkey"):
        del host.files.contents[name]
    assert host.read("pull 1 0 table=e want=1").wants[0].size == 1


def test_a_job_of_sparse_tables_only() -> None:
    host = Host(E).put(grad=f4(1, 2, 3), gidx=u4(1))
    assert host.read("step 1 0 table=e k=1").rows[0].size == 1
    data = host.read("step 1 0 n=0 table=e k=1")
    assert data.buffer is not None and data.buffer.nbytes == 0
    assert host.read("push 1 0").rows == ()


# -- which rows


def test_a_row_that_the_table_has_not_is_named() -> None:  # SPEC 3.16
    host = Host(W, E).put(grad=bytes(36), gidx=u4(999, 1000, 4000000000), want=u4(1000))
    assert host.refused("push 1 0 table=e k=3") == (Code.RANGE, "row 1000, number 1 of table e in gidx, is not below 1000; nothing was applied")
    assert host.refused("pull 1 0 table=e want=1") == (Code.RANGE, "row 1000, number 0 of table e in want, is not below 1000; nothing was applied")
    big = Host(TableSpec("e", (ROWS_TOP, 1), "sparse", batch=2)).put(want=np.array([ROWS_TOP - 1, ROWS_TOP], "<u8").tobytes())
    assert big.refused("pull 1 0 table=e want=2")[1].startswith(f"row {ROWS_TOP}, number 1 of table e in want, is not below {ROWS_TOP}")
    assert Host(G).put(want=b"\xff" * 8).read("pull 1 0 table=g want=1").wants[0].ids.tolist() == [(1 << 64) - 1]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (b"1\n2\n", Code.SIZE, "gidx.txt has 2 lines, 3 are declared"), (b"1\n2\n3\n4", Code.SIZE, "gidx.txt has 4 lines, 3 are declared"),
        (b"1\n-2\n3", Code.RANGE, "line 2 of gidx.txt: '-2' does not fit into u64 (table e)"), (b"1\n2.0\n3", Code.FORMAT, "line 2 of gidx.txt: '2.0' is no whole number"),
        (b"1\n1_0\n3", Code.FORMAT, "line 2 of gidx.txt: '1_0'"), (b"1\nx\n3", Code.FORMAT, "line 2"), (b"1\n1000\n3", Code.RANGE, "row 1000, number 1 of table e in gidx.txt"),
        (b"1\n18446744073709551616\n3", Code.RANGE, "line 2"), (b"1\n" + b"9" * 5000 + b"\n3", Code.SIZE, "need at most"),
    ],
)  # fmt: skip
def test_row_numbers_as_text(line: bytes, code: Code, words: str) -> None:  # SPEC 3.20
    host = Host(W, E).put(grad_txt=b"1\n" * 9, gidx_txt=b"7\r\n 0 \n+999")
    assert host.read("push 1 0 fmt=text table=e k=3").rows[0].ids.tolist() == [7, 0, 999]
    refused = host.put(gidx_txt=line).refused("push 1 0 fmt=text table=e k=3")
    assert refused[0] is code and words in refused[1]


# -- keys


@pytest.mark.parametrize(("index", "row", "word"), [("u32", 1 << 32, "4294967296"), ("u32", (1 << 64) - 1, "4294967296")])
def test_a_text_cannot_name_a_row_that_the_index_cannot_hold(index: str, row: int, word: str) -> None:  # SPEC 2.12 3.16
    host = Host(TableSpec("e", (0, 1), "sparse", index=index, batch=2))
    last = int(word) - 1
    assert host.put(want_txt=b"%d\n" % last).read("pull 1 0 fmt=text table=e want=1").wants[0].ids.tolist() == [last]
    code, text = host.put(want_txt=b"1\n%d\n" % row).refused("pull 1 0 fmt=text table=e want=2")
    assert code is Code.RANGE and text.startswith(f"row {row}, number 1 of table e in want.txt, is not below {word}")


@pytest.mark.parametrize(
    ("lines", "line"), [([256], 1), ([1000], 1), ([3, 100_000], 2), ([255, 255, 256], 3), ([255, 256, 255, 255], 2), ([256, 1, 1, 1, 1], 1), ([300, 255, 255, 9], 1)]
)
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_key_that_is_too_long_is_named_however_long_the_file(lines: list[int], line: int, end: bytes) -> None:  # SPEC 3.18
    text = b"\n".join(b"x" * size for size in lines) + end
    code, words = Host(TableSpec("f", (0, 1), "sparse", index="str", batch=9)).put(wkey=text).refused(f"pull 1 0 table=f want={len(lines)}")
    assert code is Code.FORMAT and words.startswith(f"line {line} of wkey: a key has 1 to 255 bytes")


def test_a_file_of_good_keys_that_are_too_many_is_refused_by_its_start() -> None:  # SPEC 3.17
    code, words = keyed(Host(), b"key\n" * 100_000, 2)
    assert code is Code.SIZE and "more than 2 lines, 2 keys are declared" in words


def keyed(host: Host, text: bytes, count: int) -> tuple[Code, str]:
    return host.put(wkey=text).refused(f"pull 1 0 table=f want={count}")


@pytest.mark.parametrize(
    ("text", "count", "code", "words"),
    [
        (b"a\nb\n", 1, Code.SIZE, "wkey has 2 lines, 1 keys are declared"), (b"a\n", 2, Code.SIZE, "wkey has 1 lines, 2 keys are declared"),
        (b"", 1, Code.SIZE, "0 lines"), (b"\n", 1, Code.FORMAT, "line 1 of wkey: a key has 1 to 255 bytes, this one has 0"),
        (b"a\n\nb", 3, Code.FORMAT, "line 2 of wkey: a key has 1 to 255 bytes, this one has 0"), (b"a\n" + b"x" * 256, 2, Code.FORMAT, "line 2 of wkey: a key has 1 to 255 bytes, this one has 256"),
        (b"a\nb\xff\n", 2, Code.FORMAT, "line 2 of wkey: byte 0xff is not UTF-8"), (b"a\n\xc3\nb\n", 3, Code.FORMAT, "line 2 of wkey: byte 0xc3 is not UTF-8"),
        (b"\xed\xa0\x80\n", 1, Code.FORMAT, "line 1 of wkey"), (b"x" * 600, 1, Code.FORMAT, "line 1 of wkey"),
    ],
)  # fmt: skip
def test_a_key_that_is_none_is_named_by_its_line(text: bytes, count: int, code: Code, words: str) -> None:  # SPEC 3.17 3.18
    refused = keyed(Host(F), text, count)
    assert refused[0] is code and words in refused[1]


def test_keys_of_every_length_and_letter_are_taken() -> None:  # SPEC 3.18 3.19
    keys = ["x", "ä" * 127 + "x", "\r\t \x00"]
    found = Host(F).put(wkey="\n".join(keys).encode()).read("pull 1 0 table=f want=3").wants[0]
    assert found.ids.tolist() == [name_hash(key) for key in keys]
    assert found.ends is not None and found.ends.tolist() == [1, 256, 260]


def test_two_keys_with_one_hash_are_refused_wherever_they_stand() -> None:  # SPEC 3.19
    one, two = TWINS
    assert name_hash(one) == name_hash(two)
    text = f"keys '{one}' and '{two}' of table f have one hash; rename one of them; nothing was applied"
    host = Host(F, TableSpec("h", (0, 2), "sparse", dtype="f64", index="str", batch=3))
    assert keyed(host, f"{one}\nz\n{two}\n".encode(), 3) == (Code.COLLIDE, text)
    host.put(grad=bytes(16), gkey=f"{one}\n".encode(), wkey=f"{two}\n".encode())
    assert host.refused("step 1 0 table=f k=1 want=1") == (Code.COLLIDE, text)
    assert len(host.read("step 1 0 table=f k=1 table=h want=1").wants) == 1  # of two tables
    assert host.put(wkey=f"{one}\n{one}\n".encode()).read("pull 1 0 table=f want=2").wants[0].size == 2


def test_many_twins_are_compared_whatever_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_COMPARED", 7)
    table = InfoTable.of(TableSpec("f", (0, 1), "sparse", index="str", batch=1000), 0)
    names = [f"w{i % 50}" for i in range(400)]
    text = np.frombuffer(("\n".join([*names, TWINS[0]]) + "\n").encode(), np.uint8)
    named = rows.hashed(0, *rows.split_keys(text, 401, "gkey"))
    rows.check_collisions([named], table)
    other = rows.hashed(0, *rows.split_keys(np.frombuffer(f"{TWINS[1]}\nw1\n".encode(), np.uint8), 2, "wkey"))
    with pytest.raises(RequestError, match="have one hash"):
        rows.check_collisions([named, other], table)


@given(st.binary(max_size=60), st.integers(1, 6))
def test_any_bytes_are_keys_or_a_request_error(text: bytes, count: int) -> None:
    raw = np.frombuffer(text, np.uint8)
    try:
        keys, ends = rows.split_keys(raw, count, "gkey")
    except RequestError as error:
        assert error.code in (Code.SIZE, Code.FORMAT)
    else:
        lines = text.removesuffix(b"\n").split(b"\n")
        assert len(lines) == count and all(1 <= len(line) <= 255 for line in lines)
        assert keys.tobytes() == b"".join(lines) and ends.tolist() == np.cumsum([len(line) for line in lines]).tolist()
        text.decode()


# -- numbers


def test_a_row_must_be_finite_and_inside_the_storage() -> None:  # SPEC 3.5 3.21
    half = TableSpec("e", (9, 2), "sparse", storage="f16", batch=2)
    host = Host(TableSpec("w", (3,), dtype="f64", storage="f32"), half)
    dense = np.array([1 / 3, 2, 3], "<f8")
    host.put(grad=grad_of((0, dense.tobytes()), (64, f4(1, 65504, 1 / 3, 1e-9))), gidx=u4(1, 2))
    data = host.read("push 1 0 n=3 table=e k=2")
    assert data.buffer is not None and data.buffer.view("<f4").tolist() == dense.astype("<f4").tolist()
    values = data.rows[0].values
    assert values is not None and values.dtype == np.float16 and values.tolist() == np.array([[1, 65504], [1 / 3, 1e-9]], "<f2").tolist()
    host.put(grad=grad_of((0, dense.tobytes()), (64, f4(1, 2, 3, 65520))))
    assert host.refused("push 1 0 n=3 table=e k=2") == (
        Code.RANGE, "element 1 of row 1 of the push to table e is 65520.0, and its servers keep f16, which cannot hold that; nothing was applied",
    )  # fmt: skip
    host.put(grad=grad_of((0, np.array([1, 2, 1e39], "<f8").tobytes()), (64, f4(1, 2, 3, 4))))
    assert host.refused("push 1 0 n=3 table=e k=2") == (
        Code.RANGE, "element 2 of table w is 1e+39, and its servers keep f32, which cannot hold that; nothing was applied",
    )  # fmt: skip
    host.put(grad=grad_of((0, dense.tobytes()), (64, f4(1, 2, 3, np.nan))))
    assert host.refused("push 1 0 n=3 table=e k=2") == (Code.NONFINITE, "element 1 of row 1 of the push to table e is nan; nothing was applied")
    assert host.agent.counters()["nonfinite"] == 1


@given(arrays("<f8", 20, elements=st.floats(width=64)))
def test_every_number_is_converted_or_refused(values: np.ndarray) -> None:  # SPEC 3.21
    host = Host(TableSpec("w", (20,), dtype="f64", storage="f16")).put(grad=values.tobytes())
    with np.errstate(over="ignore"):
        kept = values.astype("<f2")
    try:
        data = host.read("push 1 0")
    except RequestError as error:
        assert error.code is (Code.NONFINITE if not np.isfinite(values).all() else Code.RANGE)
        assert not np.isfinite(kept).all()
    else:
        assert data.buffer is not None and data.buffer[:40].tobytes() == kept.tobytes()


@pytest.mark.parametrize("count", [3, 200_000])
def test_half_precision_overflows_are_seen_in_large_tables_too(count: int) -> None:
    host = Host(TableSpec("w", (count,), storage="f16"))
    values = np.full(count, 60000, "<f4")
    assert host.put(grad=values.tobytes()).read("push 1 0").nbytes == 4 * count
    values[-1] = 70000
    assert host.put(grad=values.tobytes()).refused("push 1 0")[0] is Code.RANGE


def test_text_has_rows_behind_the_dense_numbers_and_no_padding() -> None:  # SPEC 3.7 3.20
    host = Host(TableSpec("w", (2,)), E, F).put(grad_txt=b"1\n2\n3\n4\n5\n.5\n-.5\n", gidx_txt=b"8\n", gkey=b"k\n")
    data = host.read("push 1 0 n=2 fmt=text table=e k=1 table=f k=1")
    assert data.buffer is not None and data.buffer.view("<f4").tolist() == [1, 2]
    assert [r.values.tolist() for r in data.rows if r.values is not None] == [[[3, 4, 5]], [[0.5, -0.5]]]
    host.put(grad_txt=b"1\n2\n3\n4\n5\n.5\n1e400\n")
    assert host.refused("push 1 0 n=2 fmt=text table=e k=1 table=f k=1") == (Code.RANGE, "line 7 of grad.txt: '1e400' does not fit into f64 (table f); nothing was applied")
    host.agent.write_text(np.array([1, 2], "<f4"), [np.array([[3, 4, 1 / 3]], "<f4"), np.array([[0.1, 2]], "<f8")])
    assert bytes(host.files.contents["param.txt"]) == b"1\n2\n3\n4\n0.333333343\n0.1\n2.0\n"
    host.agent.write_text(None, [np.array([[7]], "<i8")])
    assert bytes(host.files.contents["param.txt"]) == b"7\n"


# -- what a request may say


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("push 1 0 table=e k=5", Code.RANGE, "k=5 rows of table e, its batch is 4"), ("pull 1 0 table=e want=5", Code.RANGE, "want=5 rows of table e, its batch is 4"),
        ("push 1 0 table=w k=1", Code.FORMAT, "only sparse tables are named"), ("push 1 0 table=x k=1", Code.RANGE, "table 'x' is none of this job's; it has w, e, f, g"),
        ("push 1 0 n=9 table=e", Code.SIZE, "n=9, but the job's dense tables have 10 elements"), ("push 1 0 n=0 table=e", Code.SIZE, "n=0"),
    ],
)  # fmt: skip
def test_what_a_job_has_not_is_refused_before_any_file_is_touched(line: str, code: Code, words: str) -> None:  # SPEC 4.12 4.13
    host = Host()
    host.files.contents.clear()
    refused = host.refused(line)
    assert refused[0] is code and words in refused[1]


# -- what twins have in common


def test_a_sample_is_the_same_however_the_bytes_are_cut() -> None:
    rng = np.random.default_rng(1)
    whole = rng.integers(0, 256, 3 * WINDOWS * WINDOW_BYTES, np.uint8)
    for cuts in ([], [5], [1000, 70_000], list(range(999, len(whole), 9973))):
        assert sample(np.split(whole, cuts)) == sample([whole])
    for at in (0, len(whole) - 1, WINDOW_BYTES - 1):
        other = whole.copy()
        other[at] ^= 1
        assert sample([other]) != sample([whole])


def test_a_sample_of_zeros_compares_with_nothing() -> None:
    assert sample([]) == sample([np.zeros(10, np.uint8), np.zeros(1 << 20, np.uint8)]) == 0
    assert sample([np.array([0, 1], np.uint8)]) != 0


def test_the_sample_of_a_push_depends_on_numbers_and_rows() -> None:
    host = Host(W, E)
    seen = set()
    for grad, ids in ((f4(1, 2, 3), u4(1)), (f4(1, 2, 4), u4(1)), (f4(1, 2, 3), u4(2))):
        seen.add(host.put(grad=grad, gidx=ids).read("push 1 0 table=e k=1").crc)
    assert len(seen) == 3 and 0 not in seen
    assert host.put(want=u4(1)).read("pull 1 0 table=e want=1").crc == 0
