"""`plugml inspect`: it says what is there, what is wrong and why; any bytes give a report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from plugml.cli import inspect, look
from plugml.cli.inspect import look_at, report_text
from plugml.cli.main import main
from plugml.core.errors import UsageError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.launch.export import FORMATS
from plugml.launch.result import publish
from plugml.shm_protocol.create import create_channel
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.page import new_page
from plugml.shm_protocol.root import boot_id, prepare_root
from tests.leaks import own_root

W = TableSpec("w", (20, 30), dtype="f64")
M = TableSpec("m", (6, 4), order="F")
E = TableSpec("e", (100, 2), kind="sparse")
S = TableSpec("s", (0, 2), kind="sparse", index="str")
KEYS = ["a", "b,c", "é"]


@pytest.fixture
def result(tmp_path: Path) -> Path:
    scratch, directory = tmp_path / "s", tmp_path / "r"
    scratch.mkdir()
    directory.mkdir()
    rng = np.random.default_rng(0)
    (scratch / "w.bin").write_bytes(rng.standard_normal(600).tobytes())
    (scratch / "m.bin").write_bytes(np.arange(24, dtype="<f4").tobytes())
    (scratch / "e.bin").write_bytes(np.array([[1, 2], [3, 4]], "<f4").tobytes())
    (scratch / "e.idx").write_bytes(np.array([7, 5], "<u4").tobytes())
    (scratch / "s.bin").write_bytes(np.array([[1, 2], [3, 4], [5, 6]], "<f4").tobytes())
    (scratch / "s.keys").write_bytes("".join(f"{key}\n" for key in KEYS).encode())
    document = {"job": "digits", "state": "finished", "exit_code": 0, "workers": [{}, {}], "closed": 7, "warnings": ["hm"]}
    publish((W, M, E, S), scratch, directory, document, FORMATS)
    return directory


def looks(path: Path, dtype: str = "") -> dict[str, look.Look]:
    return {item.name: item for item in look_at(path, dtype).looks}


# -- results ----------------------------------------------------------------------------------------------------------


def test_a_result_is_told_table_by_table_and_file_by_file(result: Path) -> None:
    report = look_at(result)
    assert report.kind == "result" and report.problems == [] and report.notes == ["the run warned: hm"]
    assert report.facts == {"job": "digits", "state": "finished", "exit_code": 0, "closed": 7, "workers": 2}
    seen = {item.name: item for item in report.looks}
    assert list(seen) == ["w", "m", "e", "e/rows", "s", "s/keys"]
    numbers = np.fromfile(result / "w.bin")
    assert (seen["w"].low, seen["w"].high, seen["w"].shape, seen["w"].kind) == (numbers.min(), numbers.max(), (20, 30), "f64")
    assert seen["w"].mean == pytest.approx(numbers.mean()) and seen["e"].rows == 2 and seen["e/rows"].high == 7
    assert {name: about for name, _, about in report.files} == dict.fromkeys(json.loads((result / "result.json").read_text())["sums"], "as it was saved")
    assert look_at(result / "result.json").facts == report.facts
    text = report_text(report)
    assert "w       20 x 30  f64" in text and "job digits, state finished, exit_code 0" in text


@pytest.mark.parametrize("formats", [("npz",), ("safetensors",), ("csv",)])
def test_every_format_tells_the_same_numbers(result: Path, tmp_path: Path, formats: tuple[str, ...]) -> None:
    raw = {item.name: item for item in look_at(result).looks}
    for name in ("w", "m", "e", "s"):
        path = result / (f"{name}.csv" if formats == ("csv",) else f"tables.{formats[0]}")
        item = looks(path)[name]
        assert (item.low, item.high, item.count) == pytest.approx((raw[name].low, raw[name].high, raw[name].count)), name
        assert item.mean == pytest.approx(raw[name].mean) and item.bad == 0


def test_a_file_that_was_changed_after_it_was_saved_is_told(result: Path) -> None:
    data = bytearray((result / "w.bin").read_bytes())
    data[0] ^= 1
    (result / "w.bin").write_bytes(data)
    (result / "tables.npz").write_bytes(b"PK")
    (result / "e.csv").unlink()
    report = look_at(result)
    assert [text.split(" ")[0] for text in report.problems] == ["w.bin", "tables.npz", "e.csv:"]
    assert "its sum differs" in report.problems[0] and "2 bytes" in report.problems[1] and "No such file" in report.problems[2]
    assert look_at(result / "w.bin").problems == [report.problems[0]]


def test_what_is_not_finite_is_placed(tmp_path: Path) -> None:
    for order, at in (("C", "[1, 2]"), ("F", "[0, 2]")):
        numbers = np.arange(12, dtype="<f4")
        numbers[[6, 9]] = np.nan, np.inf
        document = {"tables": [{"name": "w", "shape": [3, 4] if order == "F" else [3, 4], "dtype": "f32", "order": order}]}
        (tmp_path / "result.json").write_text(json.dumps(document))
        (tmp_path / "w.bin").write_bytes(numbers.tobytes())
        report = look_at(tmp_path / "w.bin")
        assert report.problems == [f"w: 2 not finite, the first at {at}"]
        assert (report.looks[0].low, report.looks[0].high, report.looks[0].count) == (0, 11, 12)
        assert report.to_document()["tables"][0]["not_finite"] == 2


# -- raw files that are not what they should be -----------------------------------------------------------------------


def declared(tmp_path: Path, data: bytes, shape: list[int], dtype: str = "f64") -> list[str]:
    (tmp_path / "result.json").write_text(json.dumps({"tables": [{"name": "w", "shape": shape, "dtype": dtype, "order": "C"}]}))
    (tmp_path / "w.bin").write_bytes(data)
    return look_at(tmp_path / "w.bin").problems


def test_a_wrong_size_names_what_it_may_be(tmp_path: Path) -> None:
    numbers = np.linspace(1, 2, 10)
    marker = (80).to_bytes(4, "little")
    (text,) = declared(tmp_path, marker + numbers.tobytes() + marker, [10])
    assert "has 88 bytes, result.json says 80: it is 8 bytes longer: Fortran's record markers" in text
    (text,) = declared(tmp_path, numbers.astype("f4").tobytes(), [10])
    assert "half as long" in text
    assert "twice as long" in declared(tmp_path, numbers.tobytes(), [10], "f32")[0]
    assert "3 times as long" in declared(tmp_path, numbers.tobytes() * 3, [10])[0]
    assert declared(tmp_path, numbers.tobytes()[:-3], [10]) == ["w.bin has 77 bytes, result.json says 80"]


def test_big_endian_numbers_and_text_are_recognised(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal(100)
    assert "big-endian" in declared(tmp_path, numbers.astype(">f8").tobytes(), [100])[0]
    assert "big-endian" in declared(tmp_path, numbers.astype(">f4").tobytes(), [100], "f32")[0]
    assert declared(tmp_path, numbers.tobytes(), [100]) == [] and declared(tmp_path, bytes(800), [100]) == []
    text = "\n".join(map(repr, numbers.tolist())).encode()
    problems = declared(tmp_path, text, [100])
    assert len(problems) == 2 and "numbers in text" in problems[1]


@pytest.mark.parametrize("dtype", ["<f8", "<f4", "<i8"])
def test_undescribed_numbers_are_guessed_and_said_to_be(tmp_path: Path, dtype: str) -> None:
    numbers = (np.random.default_rng(0).standard_normal(1000) * 100).astype(dtype)
    (tmp_path / "x.bin").write_bytes(numbers.tobytes())
    report = look_at(tmp_path / "x.bin")
    kind = {"<f8": "f64", "<f4": "f32", "<i8": "i64"}[dtype]
    assert report.looks[0].kind == kind and f"read as {kind}, a guess" in report.notes[0]
    assert report.looks[0].high == numbers.max()
    assert looks(tmp_path / "x.bin", "u32")["x"].kind == "u32" and look_at(tmp_path / "x.bin", kind).notes == []


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("where", [slice(3, 4), slice(None, None, 2), slice(None)])
def test_undescribed_numbers_of_which_some_are_none_are_still_numbers(tmp_path: Path, dtype: str, where: slice, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.linspace(-1, 1, 40).astype(dtype)
    values[where] = np.nan
    values.tofile(tmp_path / "x.bin")
    assert main(["inspect", str(tmp_path / "x.bin")]) == 1
    said = capsys.readouterr().out
    assert f"read as f{8 * int(dtype[1])}, a guess" in said and f"{np.isnan(values).sum()} not finite, the first at {np.isnan(values).argmax()}" in said


def test_whole_numbers_as_f64_are_not_taken_for_pairs_of_f32() -> None:
    assert look.guess(np.arange(1000.0).tobytes()) == "f64"
    assert look.guess(np.arange(1000, dtype="f4").tobytes()) == "f32"


# -- archives and text ------------------------------------------------------------------------------------------------


def test_arrays_of_every_kind_are_named_and_pickles_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "z.npz"
    arrays: dict[str, Any] = {
        "half": np.array([1, np.inf], "f2"), "big": np.array([1.5, 2], ">f8"), "long": np.array([1, 2], "g"), "text": np.array(["x"]),
        "complex": np.array([1j]), "record": np.zeros(2, [("a", "f4"), ("b", "i4")]), "none": np.zeros((0, 3)), "one": np.float64(3),
    }  # fmt: skip
    np.savez(path, pickle=np.array([{}], dtype=object), **arrays)
    report = look_at(path)
    seen = {item.name: item for item in report.looks}
    assert set(seen) == {*arrays, "pickle"}
    assert (seen["half"].bad, seen["big"].high, seen["long"].high, seen["one"].low, seen["none"].count) == (1, 2, 2, 3, 0)
    assert any("pickle" in text and "never opens" in text for text in report.problems)
    assert sum("not looked into" in text for text in report.notes) == 4
    json.dumps(report.to_document(), allow_nan=False)


def test_a_cut_npy_file_says_where_it_ends(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100.0))
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data[:-12])
    assert look_at(tmp_path / "a.npy").problems == ["a ends after 98 of 100 numbers"]
    (tmp_path / "a.npy").write_bytes(data + b"x")
    assert look_at(tmp_path / "a.npy").problems == ["a: something stands behind the array"]


def test_tensors_without_a_numpy_kind_are_named(tmp_path: Path) -> None:
    header = json.dumps({"b": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}, "__metadata__": {"who": "me"}}).encode()
    (tmp_path / "t.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    report = look_at(tmp_path / "t.safetensors")
    assert report.looks[0].kind == "bf16" and report.notes[:2] == ["metadata who = me", "b holds BF16: not looked into"] and not report.problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not even a line of names"),
        ("c0,c1\n1,2\n3\n", "line 3 has 1 columns, the line of names 2"),
        ("c0,c1\n1,2\n3,x\n", "line 3: 'x' is no number"),
        ("c0\n1\n2\n\n", "line 4 has 0 columns"),
        ("1,2\n3,4\n", "its first line holds numbers"),
        ("a;b\n1;2\n", "line 2: '1;2' is no number"),
        ("c0\nNaN\n", "1 not finite, the first at [0, 0]"),
    ],
)
def test_a_table_of_text_that_is_none_names_the_line(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert any(problem in told for told in look_at(tmp_path / "t.csv").problems)


def test_lines_beyond_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugml.cli.lookfiles.LINE_BYTES_MAX", 100)
    (tmp_path / "t.csv").write_text("c0\n" + "1" * 200)
    assert "a line is longer" in look_at(tmp_path / "t.csv").problems[0]


# -- channels ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def root() -> Iterator[Path]:
    path = own_root()
    prepare_root(path)
    yield path
    assert os.listdir(path) == []
    path.rmdir()


def test_a_channel_is_told_with_its_last_request(root: Path, no_leaks: None) -> None:
    spec = JobSpec("job", 2, (TableSpec("w", (1000,)), TableSpec("b", (2, 5), dtype="f64")))
    with create_channel(root, Info.of(spec, 1, 3, boot_id(), 7)) as made:
        directory = made.directory
        grad = np.zeros(made.info.cap_grad // 4, "<f4")
        grad[3] = np.nan
        (directory / "grad").write_bytes(grad.tobytes())
        (directory / "cmd").write_text("step 1 7\n")
        (directory / "err").write_text("grad has 8 bytes\x1b[2J\n")
        report = look_at(directory)
        assert report.kind == "channel" and report.facts["state"] == "READY" and report.facts["clock"] == 7
        assert (report.facts["job"], report.facts["worker"], report.facts["gen"], report.facts["cmd"]) == ("job", 1, 3, "step 1 7")
        assert report.problems == ["grad/w: 1 not finite, the first at 3"]
        assert [item.name for item in report.looks] == ["grad/w", "grad/b", "param/w", "param/b"]
        assert "\x1b" not in report_text(report) and "err: grad has 8 bytes" in report_text(report)
        (directory / "grad").write_bytes(bytes(16))
        assert any("grad has 16 bytes" in text for text in look_at(directory).problems)
        (directory / "ctl").write_bytes(b"x" * 4096)
        assert any("ctl cannot be read" in text for text in look_at(directory).problems)
        with pytest.raises(UsageError, match="no regular file"):
            look_at(directory / "req")


def test_a_channel_with_rows_says_what_its_tables_are(root: Path, no_leaks: None) -> None:
    spec = JobSpec("job", 1, (TableSpec("w", (10,)), E, S))
    with create_channel(root, Info.of(spec, 0, 1, boot_id(), 0)) as made:
        report = look_at(made.directory)
        assert report.problems == [] and report.looks == []  # what lies in grad and param depends on the request
        assert "table e: sparse, 100 rows of 2 f32, named by u32" in report.notes
        assert "table s: sparse, any number of rows of 2 f32, named by str" in report.notes
        (made.directory / "cmd").write_text("step 1 0 n=10 table=e k=1\n")
        assert [item.name for item in look_at(made.directory).looks] == ["grad/w", "param/w"]


INFO = Info.of(JobSpec("job", 2, (TableSpec("w", (3,)), E)), 1, 3, boot_id(), 7)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_in_a_channel_give_a_report(data: st.DataObject, tmp_path: Path) -> None:
    files = {"info": INFO.format().encode(), "ctl": new_page(INFO.constant(1)), "grad": bytes(64), "param": b"", "cmd": b"step 1 7 n=3\n", "err": b""}
    for name, whole in files.items():
        content = bytearray(whole)
        for _ in range(data.draw(st.sampled_from([0, 0, 1, 3]))):
            if content:
                content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        (tmp_path / name).write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    report = look_at(tmp_path)
    assert report_text(report).replace("\n", "").isprintable()
    json.dumps(report.to_document(), allow_nan=False)


# -- any bytes --------------------------------------------------------------------------------------------------------


def seeds() -> list[bytes]:
    """Small whole files of every kind."""
    where = own_root("inspect")
    where.mkdir()
    try:
        np.save(where / "a.npy", np.arange(6.0).reshape(2, 3))
        np.savez_compressed(where / "a.npz", a=np.arange(3), b=np.ones((2, 2), "f4"))
        save_file({"w": np.ones((2, 2), "f4"), "w/rows": np.arange(2, dtype="u8")}, where / "a.safetensors")
        with zipfile.ZipFile(where / "b.npz", "w", zipfile.ZIP_LZMA) as file:
            file.writestr("a.npy", (where / "a.npy").read_bytes())
        (where / "a.csv").write_bytes(b'key,c0,c1\n"a""b",1.5,2\n"c\r\n",NaN,-1e300\n')
        return [path.read_bytes() for path in sorted(where.iterdir())]
    finally:
        for path in where.iterdir():
            path.unlink()
        where.rmdir()


SEEDS = seeds()
NAMES = ["x.npy", "x.npz", "x.safetensors", "x.csv", "w.bin", "e.idx", "s.keys", "x", "result.json"]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_give_a_report_or_a_sentence(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(data.draw(st.one_of(st.sampled_from(SEEDS), st.binary(max_size=200))))
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    name = data.draw(st.sampled_from(NAMES))
    for old in tmp_path.iterdir():
        old.unlink()
    told = data.draw(st.sampled_from(["", "{}", "[]", '{"tables": [{"name": "w"}, 3, {"name": "e", "shape": [3, 2], "index": "u32"}], "sums": {"w.bin": 7}}',
                                      '{"tables": [{"name": "w", "shape": [-3], "dtype": "f32"}], "files": ["w.bin", "../x", 3, "x.npz", "."]}']))  # fmt: skip
    (tmp_path / "result.json").write_text(told)
    (tmp_path / name).write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    for path in (tmp_path / name, tmp_path):
        try:
            report = look_at(path)
        except UsageError:
            continue
        assert report_text(report).replace("\n", "").isprintable()
        json.dumps(report.to_document(), allow_nan=False)


def test_a_huge_file_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(256 << 20)
    np.lib.format.open_memmap(tmp_path / "huge.npy", "w+", "f4", (1 << 26,)).flush()
    tracemalloc.start()
    assert looks(path, "f32")["huge"].count == looks(tmp_path / "huge.npy")["huge"].count == 1 << 26
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20


# -- the command ------------------------------------------------------------------------------------------------------


def test_codes_and_sentences(result: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["inspect", str(result)]) == 0
    assert main(["inspect", "--json", str(result)]) == 0
    (result / "w.bin").write_bytes(b"")
    assert main(["inspect", str(result)]) == 1 and "wrong: w.bin has 0 bytes" in capsys.readouterr().out
    for words, text in (
        ([str(tmp_path / "no")], "No such file"), ([str(tmp_path)], "neither a result"), (["/dev/zero"], "no regular file"),
        ([str(result / "w.csv"), "--dtype", "f23"], "did you mean 'f32'"), (["x\0y"], "null"), ([""], "it is empty"), (["/proc/self/mem"], "lies in proc: the kernel makes it up"),
    ):  # fmt: skip
        assert main(["inspect", *words]) == 2 and text in capsys.readouterr().err


def test_a_run_that_failed_has_no_result_but_what_it_had_is_shown(result: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    result.rename(run / "failed")
    assert main(["inspect", str(run)]) == 1
    said = capsys.readouterr().out
    assert f"wrong: {run} holds no result of its own: this is what lies in failed/" in said and "20 x 30" in said


def test_json_is_one_document(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", str(result / "tables.npz")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "npz" and document["problems"] == []
    assert {table["name"]: table["shape"] for table in document["tables"]}["w"] == [20, 30]


def test_its_reader_may_go(result: Path) -> None:
    command = f"{sys.executable} -m plugml inspect {result} | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == f"{result}: result\n" and "Traceback" not in done.stderr and done.returncode in (0, 141)


def test_a_name_moves_no_cursor() -> None:
    assert inspect.plain("a\x1b[2J\nb") == "a\\x1b[2J\\x0ab"


# -- model files ------------------------------------------------------------------------------------------------------


def test_a_model_file_is_told_with_its_layout(tmp_path: Path) -> None:
    numbers = np.linspace(-1, 1, 100)
    (tmp_path / "net.txt").write_text("layers 3\nw 0.5 -1e-3\n")
    report = look_at(tmp_path / "net.txt")
    assert report.kind == "text" and report.looks[0].count == 3 and not report.problems
    assert "plugml run --model net.txt:text: 2 are written as floats and shared, 1 as whole" in report.notes[0]
    np.savez(tmp_path / "m.npz", w=numbers)
    assert look_at(tmp_path / "m.npz").notes[-1] == "for plugml run --model m.npz:npz: 100 numbers"
    (tmp_path / "my net").write_bytes(b"NET1" + (7).to_bytes(8, "little") + numbers.astype("f4").tobytes())
    assert "my net:f32,offset=12 (100 numbers)" in look_at(tmp_path / "my net").notes[-1]
    (tmp_path / "w.pkl").write_bytes(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00K\x01.")
    assert "it is a Python pickle" in look_at(tmp_path / "w.pkl").notes[-1]
    (tmp_path / "bad.txt").write_text("w 0.5 nan\n")
    assert "not finite" in look_at(tmp_path / "bad.txt").problems[0]
