"""The files of a result: every format reads back as the agent's numbers, rows in order, the same bytes for the same values."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from plugml.core.errors import UsageError, WorldError
from plugml.core.table import TableSpec
from plugml.launch import export, export_files, export_rows
from plugml.launch.effects import ResultSaved, Tell
from plugml.launch.export import FORMATS, file_names, parse_formats, room_bytes
from plugml.launch.export_files import values_of, write_csv
from plugml.launch.plan import make_plan
from plugml.launch.result import publish
from plugml.launch.saving import Saver

W = TableSpec("w", (2, 3), dtype="f64")
M = TableSpec("m", (2, 3, 2), order="F")
N = TableSpec("seen", (4,), dtype="i64", optimizer="add")
E = TableSpec("e", (100, 2), kind="sparse")
U = TableSpec("u", (0, 3), kind="sparse", dtype="f64", index="u64")
S = TableSpec("s", (0, 2), kind="sparse", index="str")
ALL = (W, M, N, E, U, S)
KEYS = ['b"x', "a", "ab", "a,b", "z" * 255, "é", "a\0", "ab" * 20, "ab" * 20 + "c", " ", "a\r"]


def lay_down(scratch: Path, order: np.random.Generator | None = None) -> None:
    """What an agent exports of ALL; sparse rows in a drawn order."""
    scratch.mkdir(parents=True)
    rng = np.random.default_rng(1)
    w = rng.standard_normal(6)
    w[2] = 1e-310
    (scratch / "w.bin").write_bytes(w.astype("<f8").tobytes())
    (scratch / "m.bin").write_bytes(np.arange(12, dtype="<f4").tobytes())
    (scratch / "seen.bin").write_bytes(np.array([0, -(1 << 63), (1 << 63) - 1, 5], "<i8").tobytes())
    for table, ids in ((E, [7, 0, 99, 12]), (U, [(1 << 64) - 1, 3, 1 << 40, 2])):
        values = rng.standard_normal((len(ids), table.width)).astype(table.numpy_dtype)
        at = order.permutation(len(ids)) if order is not None else np.arange(len(ids))
        (scratch / f"{table.name}.bin").write_bytes(values[at].tobytes())
        (scratch / f"{table.name}.idx").write_bytes(np.array(ids, export.index_dtype(table))[at].tobytes())
    values = rng.standard_normal((len(KEYS), 2)).astype("<f4")
    at = order.permutation(len(KEYS)) if order is not None else np.arange(len(KEYS))
    (scratch / "s.bin").write_bytes(values[at].tobytes())
    (scratch / "s.keys").write_bytes(b"".join(KEYS[n].encode() + b"\n" for n in at))


def published(tmp_path: Path, name: str, seed: int = 1, formats: tuple[str, ...] = FORMATS) -> Path:
    scratch = tmp_path / f".{name}"
    lay_down(scratch, np.random.default_rng(seed))
    directory = tmp_path / name
    directory.mkdir(exist_ok=True)
    publish(ALL, scratch, directory, {"job": "t"}, formats)
    assert not scratch.exists()
    return directory


def expected(tmp_path: Path) -> dict[str, Any]:
    """Every table by hand: dense as an array, sparse as pairs in order."""
    scratch = tmp_path / "by-hand"
    lay_down(scratch)
    found: dict[str, Any] = {}
    for table in (W, M, N):
        flat = np.fromfile(scratch / f"{table.name}.bin", table.numpy_dtype)
        found[table.name] = flat.reshape(table.shape, order="F" if table.order == "F" else "C")
    for table, ids in ((E, [7, 0, 99, 12]), (U, [(1 << 64) - 1, 3, 1 << 40, 2])):
        values = np.fromfile(scratch / f"{table.name}.bin", table.numpy_dtype).reshape(-1, table.width)
        found[table.name] = sorted(zip(ids, values.tolist()))
    values = np.fromfile(scratch / "s.bin", "<f4").reshape(-1, 2)
    found["s"] = sorted(zip((key.encode() for key in KEYS), values.tolist()))
    return found


def pairs(arrays: Any, name: str) -> list[Any]:
    if name == "s":
        labels = bytes(arrays["s/keys"]).split(b"\n")[:-1]
    else:
        labels = arrays[f"{name}/rows"].tolist()
    return list(zip(labels, arrays[name].tolist(), strict=True))


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_arrays_read_back_under_the_tables_names(tmp_path: Path, kind: str) -> None:
    directory, wanted = published(tmp_path, "r", formats=(kind,)), expected(tmp_path)
    found: Any = load_file(directory / "tables.safetensors") if kind == "safetensors" else np.load(directory / "tables.npz")
    for name in ("w", "m", "seen"):
        assert found[name].dtype == wanted[name].dtype and np.array_equal(found[name], wanted[name]), name
    for name in ("e", "u", "s"):
        assert pairs(found, name) == wanted[name], name
    assert found["e/rows"].dtype == np.uint32 and found["u/rows"].dtype == np.uint64
    if kind == "npz":
        found.close()
    assert {path.name for path in directory.iterdir()} == {f"tables.{kind}", "result.json"}


def test_raw_files_read_back_in_order(tmp_path: Path) -> None:
    directory, wanted = published(tmp_path, "r", formats=("raw",)), expected(tmp_path)
    assert np.array_equal(np.fromfile(directory / "w.bin").reshape(2, 3), wanted["w"])
    for table in (E, U):
        ids = np.fromfile(directory / f"{table.name}.idx", export.index_dtype(table)).tolist()
        values = np.fromfile(directory / f"{table.name}.bin", table.numpy_dtype).reshape(-1, table.width).tolist()
        assert list(zip(ids, values, strict=True)) == wanted[table.name]
    keys = (directory / "s.keys").read_bytes().split(b"\n")
    assert keys.pop() == b"" and keys == [key for key, _ in wanted["s"]]
    assert np.fromfile(directory / "s.bin", "<f4").reshape(-1, 2).tolist() == [values for _, values in wanted["s"]]


def test_csv_reads_back_bit_for_bit(tmp_path: Path) -> None:
    directory, wanted = published(tmp_path, "r", formats=("csv",)), expected(tmp_path)

    def rows(name: str) -> list[list[str]]:
        return list(csv.reader(io.StringIO((directory / f"{name}.csv").read_bytes().decode(), newline="")))

    head, *lines = rows("w")
    assert head == ["c0", "c1", "c2"] and np.array_equal(np.array(lines, "f8"), wanted["w"])
    head, *lines = rows("m")
    assert head == ["c0", "c1"] and np.array_equal(np.array(lines, "f4"), wanted["m"].reshape(6, 2))
    head, *lines = rows("seen")
    assert head == ["c0"] and [int(line[0]) for line in lines] == wanted["seen"].tolist()
    head, *lines = rows("u")
    assert head == ["row", "c0", "c1", "c2"] and [(int(row), [float(x) for x in rest]) for row, *rest in lines] == wanted["u"]
    head, *lines = rows("e")
    assert [(int(row), [float(np.float32(x)) for x in rest]) for row, *rest in lines] == wanted["e"]
    head, *lines = rows("s")
    assert head == ["key", "c0", "c1"] and [(key.encode(), [float(np.float32(x)) for x in rest]) for key, *rest in lines] == wanted["s"]


def test_equal_values_give_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = published(tmp_path, "one", seed=1)
    monkeypatch.setattr("time.time", lambda: 4e9)
    monkeypatch.setattr("time.localtime", lambda *_: (2099, 1, 1, 0, 0, 0, 0, 0, 0))
    two = published(tmp_path, "two", seed=2)
    names = [path.name for path in one.iterdir() if path.name != "result.json"]
    assert set(names) == set(file_names(ALL, FORMATS))
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_result_json_describes_tables_and_holds_the_sum_of_each_file(tmp_path: Path) -> None:
    directory = published(tmp_path, "r")
    document = json.loads((directory / "result.json").read_text())
    assert document["files"] == [*file_names(ALL, FORMATS), "result.json"]
    for name, told in document["sums"].items():
        data = (directory / name).read_bytes()
        assert told == {"bytes": len(data), "crc32": zlib.crc32(data)}, name
    assert set(document["sums"]) == set(document["files"]) - {"result.json"}
    tables = {entry["name"]: entry for entry in document["tables"]}
    assert tables["w"]["shape"] == [2, 3] and tables["w"]["file"] == "w.bin" and tables["m"]["order"] == "F"
    assert (tables["e"]["rows"], tables["e"]["shape"], tables["e"]["index"]) == (4, [4, 2], "u32")
    assert (tables["s"]["rows"], tables["s"]["width"], tables["s"]["index"]) == (len(KEYS), 2, "str")


def test_a_result_in_other_formats_takes_the_earlier_ones_place(tmp_path: Path) -> None:
    directory = published(tmp_path, "r", formats=("raw", "npz"))
    (directory / "mine.csv").write_text("a user's own")
    published(tmp_path, "r", formats=("csv",))
    names = {path.name for path in directory.iterdir()}
    assert names == {"result.json", "mine.csv", *file_names(ALL, ("csv",))}


@pytest.mark.parametrize("listed", ['{"files": ["../x.bin", "w.bin", 3]}', "[]", "{", "null", '{"files": 7}'])
def test_a_foreign_result_json_costs_nobody_a_file(tmp_path: Path, listed: str) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "x.bin").write_bytes(b"kept")
    (tmp_path / "r" / "result.json").write_text(listed)
    published(tmp_path, "r", formats=("csv",))
    assert (tmp_path / "x.bin").read_bytes() == b"kept"


def test_numbers_that_are_not_finite_are_told(tmp_path: Path) -> None:
    scratch, directory = tmp_path / "s", tmp_path / "r"
    scratch.mkdir()
    directory.mkdir()
    (scratch / "w.bin").write_bytes(np.array([1, np.nan, np.inf, -np.inf, 0, 2], "<f8").tobytes())
    saved = publish((W,), scratch, directory, {"warnings": ["an earlier one"]}, ("csv",))
    assert saved.warnings == ("table w holds numbers that are not finite",)
    document = json.loads((directory / "result.json").read_text())
    assert document["tables"][0]["finite"] is False and document["warnings"] == ["an earlier one", *saved.warnings]
    assert (directory / "w.csv").read_text() == "c0,c1,c2\n1.0,NaN,Inf\n-Inf,0.0,2.0\n"


def test_the_user_hears_of_them() -> None:
    crew = SimpleNamespace(warnings=[], plan=SimpleNamespace(result="r"), deserted=False)
    saver = Saver(crew, lambda *_, **__: None, "")  # type: ignore[arg-type]
    assert saver.on_saved(ResultSaved("r", ("w.bin",), ("hm",))) == [Tell("warn", "hm")] and crew.warnings == ["hm"]


# -- what cannot be right ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "numbers", "index", "text"),
    [
        (E, 16, np.array([1], "<u4").tobytes(), "e.idx names 1 rows, e.bin has 2"),
        (E, 16, np.array([5, 5], "<u4").tobytes(), "e.idx names row 5 twice"),
        (E, 16, np.array([5, 100], "<u4").tobytes(), "e.idx names row 100, the table has 100 rows"),
        (E, 12, np.array([5], "<u4").tobytes(), "no multiple of the width 2"),
        (E, 9, np.array([5], "<u4").tobytes(), "9 bytes, which is no multiple of 4"),
        (E, 8, b"\1\0\0", "3 bytes, which is no multiple of 4"),
        (S, 16, b"a\nb", "s.keys ends inside of a line"),
        (S, 16, b"abcdefgh\nabcdefgh\n", "names b'abcdefgh' twice"),
        (S, 16, b"a\na\n", "names b'a' twice"),
        (S, 16, b"\n\n", "names b'' twice"),
        (S, 8, b"a\nb\n", "s.keys names 2 rows, s.bin has 1"),
    ],
)
def test_files_that_cannot_be_right_are_refused(tmp_path: Path, table: TableSpec, numbers: int, index: bytes, text: str) -> None:
    numbers_name, index_name = export.raw_files(table)
    (tmp_path / numbers_name).write_bytes(bytes(numbers))
    (tmp_path / index_name).write_bytes(index)
    with pytest.raises(WorldError, match=text):
        values_of(table, tmp_path)


def test_formats_are_named_or_refused_with_the_nearest() -> None:
    assert parse_formats(list(reversed(FORMATS)), "x") == FORMATS
    with pytest.raises(UsageError, match="--export: unknown format 'npy'; did you mean 'npz'"):
        parse_formats(["npy"], "--export")
    for wrong in ([], "", "npz,", None, [3], {"npz": 1}):
        with pytest.raises(UsageError, match="--export"):
            parse_formats(wrong, "--export")


@pytest.mark.parametrize(
    ("names", "formats", "text"),
    [
        (["__metadata__"], "safetensors", "safetensors keeps that name for itself"),
        (["a", "a.npy"], "npz", "numpy.load takes one for the other"),
        (["a", "a.npy"], "csv", ""),
        (["__metadata__", "a.npy", "file", "tables", "result.json", "logs"], "npz,raw,csv", ""),
    ],
)
def test_names_that_a_format_keeps_for_itself_are_refused_at_the_start(tmp_path: Path, names: list[str], formats: str, text: str) -> None:
    """And only those: everything else reads back under its name."""
    flags = {"tables": [f"{name}=2" for name in names], "argv": ["./t"], "export": formats}
    if text:
        with pytest.raises(UsageError, match=text):
            make_plan({}, "job.toml", flags, "/dir")
        return
    plan = make_plan({}, "job.toml", flags, "/dir")
    scratch, directory = tmp_path / "s", tmp_path / "r"
    scratch.mkdir()
    directory.mkdir()
    for number, name in enumerate(names):
        (scratch / f"{name}.bin").write_bytes(np.full(2, number, "<f4").tobytes())
    publish(plan.spec.tables, scratch, directory, {"job": "t"}, plan.formats)
    for number, name in enumerate(names):
        assert np.loadtxt(directory / f"{name}.csv", skiprows=1).tolist() == [number] * 2
        if "npz" in plan.formats:
            with np.load(directory / "tables.npz") as arrays:
                assert arrays[name].tolist() == [number] * 2
            assert np.fromfile(directory / f"{name}.bin", "<f4").tolist() == [number] * 2


def test_room_is_at_least_what_the_files_take(tmp_path: Path) -> None:
    for formats in [(one,) for one in FORMATS] + [FORMATS]:
        scratch, directory = tmp_path / "s", tmp_path / "-".join(formats)
        scratch.mkdir()
        directory.mkdir()
        rng = np.random.default_rng(3)
        (scratch / "w.bin").write_bytes(np.full(6, -1.2345678901234567e-308).tobytes())
        (scratch / "m.bin").write_bytes(rng.standard_normal(12).astype("<f4").tobytes())
        (scratch / "seen.bin").write_bytes(np.full(4, -(1 << 63), "<i8").tobytes())
        publish((W, M, N), scratch, directory, {}, formats)
        heads = 2_000  # names, headers, the directory of a zip file
        assert sum((directory / name).stat().st_size for name in file_names((W, M, N), formats)) <= room_bytes((W, M, N), formats) + heads
        assert room_bytes((E, U, S), formats) == 0


# -- a table without rows, long lines, many rows ----------------------------------------------------------------------


def test_a_sparse_table_that_nobody_pushed_to_has_no_rows(tmp_path: Path) -> None:
    scratch, directory = tmp_path / "s", tmp_path / "r"
    scratch.mkdir()
    directory.mkdir()
    for table in (E, U, S):
        for name in export.raw_files(table):
            (scratch / name).write_bytes(b"")
    publish((E, U, S), scratch, directory, {}, FORMATS)
    assert (directory / "e.csv").read_text() == "row,c0,c1\n" and (directory / "s.csv").read_text() == "key,c0,c1\n"
    found = load_file(directory / "tables.safetensors")
    with np.load(directory / "tables.npz") as arrays:
        for name in ("e", "e/rows", "u", "u/rows", "s", "s/keys"):
            assert found[name].shape == arrays[name].shape and found[name].size == 0 == arrays[name].size
    assert json.loads((directory / "result.json").read_text())["tables"][0]["rows"] == 0


@pytest.mark.parametrize("cells", [1, 2, 5, 100])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_size_of_pieces_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: int, order: str) -> None:
    whole = published(tmp_path, "whole")
    monkeypatch.setattr(export, "CELLS", cells)
    monkeypatch.setattr(export_files, "CELLS", cells)
    monkeypatch.setattr(export_files, "_PIECE_BYTES", cells)
    monkeypatch.setattr(export_rows, "_PIECE_BYTES", cells)
    monkeypatch.setattr(export_rows, "_PIECE_KEYS", cells)
    pieces = published(tmp_path, "pieces", seed=2)
    for name in file_names(ALL, FORMATS):
        assert (whole / name).read_bytes() == (pieces / name).read_bytes(), name


KEY = st.binary(min_size=0, max_size=40).filter(lambda key: b"\n" not in key)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(KEY, st.integers(0, 5).map(lambda n: b"a" * 8 * n), st.sampled_from([b"a", b"a\0", b"a" * 8, b"a" * 8 + b"\0"])), unique=True))
def test_keys_are_sorted_as_bytes_are(keys: list[bytes]) -> None:
    text = np.frombuffer(b"".join(key + b"\n" for key in keys), np.uint8)
    order = export_rows._order_of_keys(text, export_rows._line_ends(text, "k"), "k")
    assert [keys[n] for n in order] == sorted(keys)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=30), st.sampled_from(["<f4", "<f8"]))
def test_text_reads_back_as_the_same_bits(numbers: list[float], dtype: str) -> None:
    array = np.array(numbers, dtype)
    cells = export.csv_cells(array).split(b",")
    again = np.array([float(cell) for cell in cells], dtype)
    assert np.array_equal(again, array, equal_nan=True) and np.array_equal(np.signbit(again[again == 0]), np.signbit(array[array == 0]))
    assert all(b"nan" not in cell and b"inf" not in cell for cell in cells)


def test_a_large_table_passes_by_in_pieces(tmp_path: Path) -> None:
    """Numbers of 64 MiB; what Python and numpy hold at once stays far below (mapped files are not counted)."""
    table = TableSpec("big", (0, 64), kind="sparse", index="u64")
    count = 1 << 18
    ids = np.arange(count, dtype="<u8")[::-1]
    scratch, directory = tmp_path / "s", tmp_path / "r"
    scratch.mkdir()
    directory.mkdir()
    (scratch / "big.idx").write_bytes(ids.tobytes())
    with (scratch / "big.bin").open("wb") as file:
        for start in range(0, count, 1 << 14):
            file.write(np.repeat(ids[start : start + (1 << 14)].astype("<f4"), 64).tobytes())
    turned = TableSpec("turned", (1 << 12, 1 << 12), order="F")
    np.memmap(scratch / "turned.bin", "<f4", "w+", shape=turned.shape)[:] = 1
    del ids
    tracemalloc.start()
    publish((table, turned), scratch, directory, {}, ("raw", "npz", "safetensors"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20
    found = load_file(directory / "tables.safetensors")
    assert np.array_equal(found["big/rows"], np.arange(count)) and np.array_equal(found["big"][:, 63], np.arange(count, dtype="<f4"))


def test_csv_of_a_wide_row_is_made_in_pieces(tmp_path: Path) -> None:
    wide = TableSpec("wide", (2, export.CELLS + 3))
    values = export.Values(wide, np.arange(2 * (export.CELLS + 3), dtype="<f4").reshape(2, -1))
    with (tmp_path / "wide.csv").open("wb") as file:
        write_csv(values, file)
    head, *lines = (tmp_path / "wide.csv").read_text().splitlines()
    assert head.split(",")[-1] == f"c{export.CELLS + 2}"
    assert np.array_equal(np.array([line.split(",") for line in lines], "f4"), values.array)
