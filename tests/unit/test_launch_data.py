"""A run's input: globs, shares, slices and pieces; names that nobody would choose."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugml.core.errors import UsageError
from plugml.launch import data, datafiles
from plugml.launch.data import Data, parse_data
from plugml.launch.plan import RunPlan, make_plan


def plan(directory: Path | str, *argv: str, **flags: Any) -> RunPlan:
    flags = {"tables": ["w=4"], "argv": list(argv) or ["./t", "{data}"], "workers": 2, **flags}
    made = make_plan({}, "job.toml", flags, str(directory))
    return made.with_data(datafiles.look(made.data, made.workers, made.directory))


def refused(directory: Path | str, *argv: str, **flags: Any) -> str:
    with pytest.raises(UsageError) as caught:
        plan(directory, *argv, **flags)
    return str(caught.value)


# -- what may be written ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"data": ["a"], "shard": "b"}, "files and shard both say what the workers read"),
        ({"shard": "a", "pieces": ["b"]}, "keep one"),
        ({"data": ["a"], "passes": 2}, "passes over the pieces"),
        ({"pieces": ["a"], "passes": 0}, "passes = 0"),
        ({"pieces": ["a:lines:0"], "argv": ["./t"]}, "'0' slices"),
        ({"pieces": ["a:lines:x"], "argv": ["./t"]}, "'x' slices"),
        ({"pieces": ["a:lines:3", "b"], "argv": ["./t"]}, "name no other files beside it"),
        ({"data": [""]}, "no name of files"),
        ({"data": ["a"], "argv": ["./t"]}, "the command of worker 0 has no {data}"),
        ({"data": ["a"], "argv": [], "worker": ["./a {data}", "./b"]}, "the command of worker 1 has no {data}"),
        ({"pieces": ["a"]}, "pieces are asked for by the program"),
    ],
)
def test_input_that_cannot_be_is_refused(flags: dict[str, Any], says: str, tmp_path: Path) -> None:
    assert says in refused(tmp_path, **flags)


def test_a_job_file_says_where_its_input_is_and_a_flag_takes_its_place() -> None:
    file = {"data": {"files": ["a", "b"]}}
    flags = {"tables": ["w=4"], "argv": ["./t", "{data}"]}
    assert make_plan(file, "job.toml", flags, "/d").data == Data("files", ("a", "b"))
    assert make_plan(file, "job.toml", {**flags, "shard": "x.csv"}, "/d").data == Data("shard", source="x.csv", cut="csv")
    with pytest.raises(UsageError, match="did you mean 'files'"):
        make_plan({"data": {"file": "a"}}, "job.toml", flags, "/d")


@pytest.mark.parametrize(
    ("text", "source", "cut"),
    [("a.csv", "a.csv", "csv"), ("a.csv:lines", "a.csv", "lines"), ("a.svm", "a.svm", "libsvm"), ("a:b", "a:b", "lines"), ("x:csv:csv", "x:csv", "csv"), (":csv", ":csv", "lines")],
)  # fmt: skip
def test_how_a_file_is_cut(text: str, source: str, cut: str) -> None:
    assert parse_data({"shard": text}, None) == Data("shard", source=source, cut=cut)


def test_pieces_of_one_file_are_told_by_their_number() -> None:
    assert parse_data({"pieces": ["a:b.csv:csv:12"]}, 3) == Data("pieces", ("a:b.csv:csv:12",), "a:b.csv", "csv", 12, 3)
    assert parse_data({"pieces": "a:b"}, None) == Data("pieces", ("a:b",)), "a colon alone is part of a name"


# -- files ------------------------------------------------------------------------------------------------------------


def test_every_worker_gets_its_share_of_the_files(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"p{number}.csv").touch()
    made = plan(tmp_path, "./t", "-x", "{data}", "{worker}", "--in={data}", data=["p*.csv", "p0.csv"])
    assert made.arguments(0) == ["./t", "-x", "p0.csv", "p2.csv", "p4.csv", "0", "--in=p0.csv p2.csv p4.csv"]
    assert made.arguments(1) == ["./t", "-x", "p1.csv", "p3.csv", "1", "--in=p1.csv p3.csv"]
    told = data.document(made.data, 2, made.result)
    assert told == {"kind": "files", "workers": [["p0.csv", "p2.csv", "p4.csv"], ["p1.csv", "p3.csv"]]}
    assert data.unseen(made.data, 1, 2, made.result) == "no longer seen: p1.csv, p3.csv"


def test_names_come_through_whatever_they_hold(tmp_path: Path) -> None:
    names = [b"a b.csv", b"it's.csv", b"\xff\xfe.csv", b"new\nline.csv", b"{worker}.csv", b"[1].csv", b"-x.csv", "ä.csv".encode()]
    folder = tmp_path / "d 1"
    folder.mkdir()
    for name in names:
        with open(os.path.join(os.fsencode(folder), name), "w"):
            pass
    made = plan(tmp_path, "./t", "{data}", data=["d 1/*.csv"], workers=1)
    assert [os.fsencode(word) for word in made.arguments(0)[1:]] == sorted(b"d 1/" + name for name in names)
    assert plan(tmp_path, "./t", "{data}", data=["d 1/[1].csv"], workers=1).arguments(0)[1:] == ["d 1/[1].csv"], "a name that is there is no glob"
    assert "holds a blank or a quote: let {data} stand alone" in str(pytest.raises(UsageError, plan(tmp_path, "./t", "-i{data}", data=["d 1/*"], workers=1).arguments, 0).value)
    assert plan(tmp_path, "./t", "-i{data}", data=["d 1/a b.csv"], workers=1).arguments(0) == ["./t", "-id 1/a b.csv"]
    assert "holds a newline" in refused(tmp_path, "./t", pieces=["d 1/*.csv"])


def test_a_glob_that_meets_nothing_and_too_few_files_are_refused(tmp_path: Path) -> None:
    assert "--data 'x*' matches nothing" in refused(tmp_path, data=["x*"])
    (tmp_path / "x1").touch()
    assert "1 file for 2 workers: worker 1 would have none" in refused(tmp_path, data=["x*"])
    assert "--pieces 'y' matches nothing" in refused(tmp_path, "./t", pieces=["y"])


def test_standard_input_takes_one_file(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"x{number}").touch()
    made = plan(tmp_path, "./t", data=["x*"], stdin="{data}", workers=4)
    assert [made.stdin_of(worker) for worker in range(4)] == ["x0", "x1", "x2", "x3"] and made.arguments(0) == ["./t"]
    with pytest.raises(UsageError, match="worker 0 has 2 files"):
        plan(tmp_path, "./t", data=["x*"], stdin="{data}").stdin_of(0)


# -- slices -----------------------------------------------------------------------------------------------------------


def sliced(directory: Path, content: bytes, kind: str, count: int, seed: int = 1) -> list[bytes]:
    source = directory / "source"
    source.write_bytes(content)
    paths = [directory / f"s{number}" for number in range(count)]
    datafiles.cut(source, kind, paths, seed)
    return [path.read_bytes() for path in paths]


def test_slices_are_equal_shuffled_by_the_seed_and_lose_nothing(tmp_path: Path) -> None:
    lines = [b"%d\n" % number for number in range(1003)]
    parts = sliced(tmp_path, b"".join(lines), "lines", 4)
    assert [part.count(b"\n") for part in parts] == [251, 251, 251, 250]
    assert sorted(b"".join(parts).splitlines(True)) == sorted(lines)
    assert parts == sliced(tmp_path, b"".join(lines), "lines", 4) != sliced(tmp_path, b"".join(lines), "lines", 4, seed=2)
    assert parts[0].splitlines(True) != sorted(parts[0].splitlines(True)), "not in the order of the file"


def test_every_slice_of_a_csv_has_its_line_of_names(tmp_path: Path) -> None:
    parts = sliced(tmp_path, b'x,y\r\n1,"a\nb"\r\n\r\n2,"say ""hi"""\r\n3,4', "csv", 2)
    assert all(part.startswith(b"x,y\r\n") for part in parts)
    rows = [row for part in parts for row in list(csv.reader(io.StringIO(part.decode(), newline="")))[1:]]
    assert sorted(rows) == [["1", "a\nb"], ["2", 'say "hi"'], ["3", "4"]]
    assert sliced(tmp_path, b"x,y", "csv", 2) == [b"x,y\n"] * 2
    assert sliced(tmp_path, b"", "csv", 2) == [b"", b""], "an empty file gives empty slices"


def test_an_open_quote_is_said_instead_of_guessed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="odd number of double quotes.*:lines"):
        sliced(tmp_path, b'a\n5"\n6\n', "csv", 2)
    assert b"".join(sliced(tmp_path, b'a\n5"\n6\n', "lines", 1)).count(b"\n") == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet="ab,\"\r\n", max_size=12), max_size=8), st.integers(1, 40), st.booleans())
def test_a_csv_of_any_cells_is_cut_between_its_rows(cells: list[str], chunk: int, last: bool) -> None:
    """Whatever lies where two chunks meet."""
    import tempfile

    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["names", "more"])
    rows = [[cell, "x"] for cell in cells]
    writer.writerows(rows)
    raw = text.getvalue().encode()
    before, datafiles.CHUNK_BYTES = datafiles.CHUNK_BYTES, chunk
    try:
        with tempfile.TemporaryDirectory() as directory:
            parts = sliced(Path(directory), raw if last else raw[:-1], "csv", 3)
    finally:
        datafiles.CHUNK_BYTES = before
    got = [row for part in parts for row in list(csv.reader(io.StringIO(part.decode(), newline="")))[1:]]
    assert sorted(got) == sorted(rows)
    assert all(part.startswith(b'"names"') for part in parts)


def test_the_runs_directory_holds_slices_and_the_list_of_pieces(tmp_path: Path) -> None:
    (tmp_path / "digits.csv").write_text("a\n1\n2\n3\n")
    place = tmp_path / "place"
    place.mkdir()
    made = plan(tmp_path, shard="digits.csv", result=str(place))
    assert datafiles.lay_out(made.data, 2, 0, str(tmp_path), place, lambda: None) == ([2, 1], "")
    assert made.arguments(1) == ["./t", f"{place}/shards/1.csv"] and Path(made.arguments(1)[1]).read_text().startswith("a\n")
    assert data.unseen(made.data, 1, 2, made.result) == f"no longer seen: slice 1 of 2 of digits.csv ({place}/shards/1.csv)"

    made = plan(tmp_path, "./t", pieces=["digits.csv:lines:2"], passes=3, result=str(place))
    records, listed = datafiles.lay_out(made.data, 2, 0, str(tmp_path), place, lambda: None)
    assert records == [2, 2] and (made.spec.pieces, made.spec.passes) == (2, 3)
    assert Path(listed).read_text() == f"{place}/pieces/0.csv\n{place}/pieces/1.csv\n"

    with open(os.path.join(os.fsencode(tmp_path), b"p\xff 1"), "w"):
        pass
    made = plan(tmp_path, "./t", pieces=["p*1"], result=str(place))
    assert Path(datafiles.lay_out(made.data, 2, 0, str(tmp_path), place, lambda: None)[1]).read_bytes() == b"p\xff 1\n"
    assert made.spec.pieces == 1 and data.document(made.data, 2, made.result)["pieces"] == ["p\udcff 1"]


def test_a_folder_that_is_somebodys_own_is_left_alone(tmp_path: Path) -> None:
    """With the place of the result in the user's own directory a slice could cover the very file that is cut."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "0.csv").write_text("a\n1\n")
    made = plan(tmp_path, shard="shards/0.csv", result=str(tmp_path))
    with pytest.raises(UsageError, match="no run has made it"):
        datafiles.lay_out(made.data, 2, 0, str(tmp_path), tmp_path, lambda: None)
    assert (tmp_path / "shards" / "0.csv").read_text() == "a\n1\n"


def test_slices_of_an_earlier_run_make_room_and_those_of_a_broken_one_go(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1\n2\n3\n")
    place = tmp_path / "place"
    place.mkdir()
    for workers in (3, 2):
        made = plan(tmp_path, shard="x", result=str(place), workers=workers)
        datafiles.lay_out(made.data, workers, 0, str(tmp_path), place, lambda: None)
        assert sorted(path.name for path in (place / "shards").glob("[0-9]*")) == [str(number) for number in range(workers)]

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        datafiles.lay_out(made.data, 2, 0, str(tmp_path), place, stop)
    assert not (place / "shards").exists()


def test_a_file_that_cannot_be_cut_is_named(tmp_path: Path) -> None:
    assert "--shard x.csv: No such file" in refused(tmp_path, shard="x.csv")
    assert "known ways to cut are csv, lines, libsvm" in refused(tmp_path, shard="x.csv:cvs")
    assert "not a regular file" in refused(tmp_path, shard=".")
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in refused(tmp_path, shard="fifo")


def test_cutting_can_be_interrupted(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    (tmp_path / "x").write_text("1\n2\n")
    with pytest.raises(KeyboardInterrupt):
        datafiles.cut(tmp_path / "x", "lines", [tmp_path / "0"], 0, stop)
