"""Files of numbers, whoever wrote them: raw, npy, npz, safetensors, csv.  Read in pieces; any bytes give a report, never a traceback."""

from __future__ import annotations

import codecs
import csv
import io
import json
import lzma
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..core.errors import UsageError
from .look import KINDS, SAMPLE_BYTES, Look, Report, doubts, guess, may_be_swapped, size_doubts

PIECE_BYTES = 1 << 22
LINE_BYTES_MAX = 1 << 26  # a line of two million numbers
CELLS = 1 << 16
#: What a header of the format may say; what has no numpy kind is named, and not looked into.
_TENSOR_KINDS = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
_BAD_ARRAY = (ValueError, SyntaxError, TypeError, KeyError, OverflowError, MemoryError, RecursionError, UnicodeError, tokenize.TokenError)
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, NotImplementedError, RuntimeError, EOFError, OSError, *_BAD_ARRAY)


def look_at_file(path: Path, entry: dict[str, Any] | None = None, kind: str = "") -> Report:
    """The report of one file.  `entry` is its table in result.json, `kind` what the user says that raw numbers are."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(16)
        form = _form(path, head, size)
        report = Report(str(path), form, {"bytes": size})
        file.seek(0)
        if form == "npy":
            _npy(file, path.stem, report, size)
        elif form == "npz":
            _npz(file, report)
        elif form == "safetensors":
            _safetensors(file, path, report)
        elif form == "csv":
            _csv(file, path.stem, report)
        elif form == "keys":
            _keys(file, path.stem, report, entry)
        else:
            _raw(file, path, report, entry, kind)
    report.judge()
    return report


def _form(path: Path, head: bytes, size: int) -> str:
    """By the first bytes, where a format has some of its own; else by the name."""
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "npz"
    suffix = path.suffix[1:]
    if suffix in ("npy", "npz", "safetensors", "csv", "keys"):
        return suffix
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= size - 8:
        return "safetensors"
    return "raw"


def pieces(file: Any, dtype: np.dtype[Any], nbytes: int) -> Iterator[Any]:
    """Numbers from the present place on, some MiB at a time; fewer than asked for where the file ends."""
    left = nbytes
    rest = b""
    while left > 0:
        data = file.read(min(PIECE_BYTES, left))
        if not data:
            return
        left -= len(data)
        data = rest + data
        whole = len(data) // dtype.itemsize * dtype.itemsize
        rest = data[whole:]
        yield np.frombuffer(data[:whole], dtype)


# -- raw --------------------------------------------------------------------------------------------------------------


def _raw(file: BinaryIO, path: Path, report: Report, entry: dict[str, Any] | None, kind: str) -> None:
    size = report.facts["bytes"]
    sample = file.read(SAMPLE_BYTES)
    if entry is not None:
        look, dtype = _declared(path, entry)
        wanted = math.prod(look.shape) * dtype.itemsize
        if size != wanted:
            file.seek(max(0, size - 4))
            hint = size_doubts(size, wanted, sample[:4], file.read(4))
            report.problems.append(f"{path.name} has {size:,} bytes, result.json says {wanted:,}" + (f": {hint}" if hint else ""))
    else:
        guessed = kind or ("u64" if path.suffix == ".idx" and size % 8 == 0 else guess(sample))
        if not kind:
            said = f"read as {guessed}, a guess" if guessed else "no kind of number fits"
            said += " (big-endian f64 would fit, too)" if guessed == "i64" and may_be_swapped(sample) else ""
            report.notes.append(f"no result.json beside it says what it is: {said}; --dtype says it ({', '.join(KINDS)})")
        if not guessed:
            hint = doubts(sample, KINDS["f64"]) or doubts(sample, KINDS["f32"])
            report.problems += [hint] if hint else []
            return
        dtype = KINDS[guessed]
        look = Look(path.stem, guessed, (size // dtype.itemsize,))
        if size % dtype.itemsize:
            report.problems.append(f"{size:,} bytes are no whole number of {guessed}: {size % dtype.itemsize} are left over")
    hint = doubts(sample, dtype)
    if hint:
        report.problems.append(hint)
    file.seek(0)
    for piece in pieces(file, dtype, size):
        look.add(piece)
    report.looks.append(look)


def _declared(path: Path, entry: dict[str, Any]) -> tuple[Look, np.dtype[Any]]:
    """What result.json says of a raw file.  Raises `UsageError` where that makes no sense."""
    try:
        shape = tuple(int(n) for n in entry["shape"])
        if path.suffix == ".idx":
            return Look(f"{entry['name']}/rows", str(entry["index"]), shape[:1], rows=shape[0], about="row numbers"), KINDS[entry["index"]]
        rows = shape[0] if entry.get("kind") == "sparse" else None
        return Look(str(entry["name"]), str(entry["dtype"]), shape, str(entry.get("order", "C")), rows=rows), KINDS[entry["dtype"]]
    except (KeyError, ValueError, TypeError, IndexError, OverflowError):
        raise UsageError(f"result.json beside {path} does not say what table it is; --dtype reads it without") from None


def _keys(file: BinaryIO, name: str, report: Report, entry: dict[str, Any] | None) -> None:
    """A UTF-8 key a line."""
    count, longest, length, last = 0, 0, 0, b"\n"
    broken = False
    decoder = _utf8()
    while data := file.read(PIECE_BYTES):
        lines = data.split(b"\n")
        longest = max(longest, length + len(lines[0]), *map(len, lines[1:])) if len(lines) > 1 else max(longest, length + len(data))
        length = len(lines[-1]) if len(lines) > 1 else length + len(data)
        count, last = count + len(lines) - 1, data[-1:]
        broken = broken or not decoder(data, False)
    if broken or not decoder(b"", True):
        report.problems.append("it is not valid UTF-8")
    if last != b"\n":
        report.problems.append("its last line has no end")
    if entry is not None and entry.get("rows") != count:
        report.problems.append(f"it has {count:,} keys, result.json says {entry.get('rows')}")
    report.facts["longest"] = longest
    report.looks.append(Look(f"{name}/keys", "", (count,), rows=count, about=f"keys of at most {longest} bytes"))


def _utf8() -> Callable[[bytes, bool], bool]:
    """Tells of each piece whether it goes on as UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()

    def good(data: bytes, final: bool) -> bool:
        try:
            decoder.decode(data, final)
        except UnicodeDecodeError:
            decoder.reset()
            return False
        return True

    return good


# -- numpy ------------------------------------------------------------------------------------------------------------


def _npy(file: Any, name: str, report: Report, size: int | None = None) -> None:
    """One array; a pickle is named and never opened."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a header of an old Python needs
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
            if read is None:
                report.problems.append(f"{name}: an npy file of version {version[0]}.{version[1]}, which plugml does not read")
                return
            shape, fortran, dtype = read(file)
    except _BAD_ARRAY as error:
        report.problems.append(f"{name}: no npy array: {_short(error)}")
        return
    if any(type(n) is not int or n < 0 for n in shape):
        report.problems.append(f"{name}: a shape of {_short(shape)}")
        return
    look = Look(name, _kind(dtype), shape, "F" if fortran else "C")
    report.looks.append(look)
    if dtype.hasobject:
        report.problems.append(f"{name} holds Python objects (a pickle), which plugml never opens")
    if dtype.kind not in "fiu" or dtype.subdtype is not None:
        report.notes.append(f"{name} holds {_short(dtype)}: not looked into")
        return
    if dtype.byteorder == ">":
        report.notes.append(f"{name} is big-endian, and says so")
    wanted = math.prod(shape) * dtype.itemsize
    for piece in pieces(file, dtype, wanted):
        look.add(piece)
    if look.count * dtype.itemsize != wanted:
        report.problems.append(f"{name} ends after {look.count:,} of {math.prod(shape):,} numbers")
    elif size is not None and file.read(1):
        report.problems.append(f"{name}: something stands behind the array")


def _npz(file: BinaryIO, report: Report) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            for member in members:
                name = member.filename[:200].removesuffix(".npy")
                try:
                    with archive.open(member) as stream:
                        if member.filename.endswith(".npy"):
                            _npy(stream, name, report, member.file_size)
                        else:
                            report.notes.append(f"{name} is no array")
                except _BAD_ZIP as error:
                    report.problems.append(f"{name} cannot be read: {_short(error)}")
    except _BAD_ZIP as error:
        report.problems.append(f"no npz archive: {_short(error)}")
        return
    _name_rows(report)


def _name_rows(report: Report) -> None:
    """Say which arrays belong to sparse tables."""
    by_name = {look.name: look for look in report.looks}
    for look in report.looks:
        table, slash, what = look.name.rpartition("/")
        if slash and table in by_name and what in ("rows", "keys"):
            look.about = "row numbers" if what == "rows" else "keys, a newline behind each"
            if what == "rows":
                by_name[table].rows = look.count
                if by_name[table].shape[:1] != look.shape:
                    report.problems.append(f"{table} has {by_name[table].shape[:1]} rows, {look.name} names {look.shape}")


# -- safetensors ------------------------------------------------------------------------------------------------------


def _safetensors(file: BinaryIO, path: Path, report: Report) -> None:
    """The library says whether the header keeps the format's rules; the numbers are read by their offsets."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np"):
            pass
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    except (SafetensorError, OSError, *_BAD_ARRAY) as error:
        report.problems.append(f"no safetensors file: {_short(error)}")
        return
    for name, value in header.get("__metadata__", {}).items() if isinstance(header.get("__metadata__"), dict) else ():
        report.notes.append(f"metadata {_short(name)} = {_short(value)}")
    tensors = {name: value for name, value in header.items() if name != "__metadata__"}
    for name, value in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = value["data_offsets"]
        look = Look(name[:200], "", tuple(value["shape"]))
        report.looks.append(look)
        dtype = np.dtype(_TENSOR_KINDS.get(value["dtype"], "V1"))
        if dtype.kind == "V":
            look.kind = str(value["dtype"]).lower()
            report.notes.append(f"{look.name} holds {value['dtype']}: not looked into")
            continue
        look.kind = _kind(dtype)
        file.seek(8 + length + start)
        for piece in pieces(file, dtype, end - start):
            look.add(piece)
    _name_rows(report)


# -- csv --------------------------------------------------------------------------------------------------------------


def _csv(file: BinaryIO, name: str, report: Report) -> None:
    look = Look(name, "f64")
    with closing(_lines(file)) as lines:
        try:
            rows = csv.reader(lines, strict=True)
            head = next(rows, None)
            if head is None:
                report.problems.append("it is empty: not even a line of names")
                return
            labelled = head[:1] in (["row"], ["key"])
            columns = len(head) - labelled
            hint = _csv_hint(head)
            count = _csv_rows(rows, look, columns, labelled)
        except (csv.Error, ValueError) as error:
            report.problems.append(f"no table of numbers: {_short(error)}")
            return
    look.shape = (count, columns)
    look.rows = count if labelled else None
    look.about = "rows are numbers of a sparse table" if head[:1] == ["row"] else "rows have keys" if labelled else ""
    report.problems += [hint] if hint else []
    report.looks.append(look)


def _csv_rows(rows: Iterable[list[str]], look: Look, columns: int, labelled: bool) -> int:
    """Feed all numbers; gives the number of lines.  Raises `ValueError` that names the line."""
    cells: list[str] = []
    count = first = 0
    for number, row in enumerate(rows):
        if len(row) != columns + labelled:
            raise ValueError(f"line {number + 2} has {len(row)} columns, the line of names {columns + labelled}")
        cells += row[1:] if labelled else row
        count = number + 1
        if len(cells) >= CELLS:
            look.add(_csv_numbers(cells, first, columns))
            cells, first = [], count
    look.add(_csv_numbers(cells, first, columns))
    return count


def _csv_numbers(cells: list[str], first: int, columns: int) -> Any:
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        for position, cell in enumerate(cells):
            try:
                float(cell)
            except ValueError:
                raise ValueError(f"line {first + position // columns + 2}: {cell[:40]!r} is no number") from None
        raise


def _csv_hint(head: list[str]) -> str:
    if len(head) == 1 and (";" in head[0] or "\t" in head[0]):
        return "its columns are separated by something else than commas"
    if head and all(_is_number(cell) for cell in head):
        return "its first line holds numbers where names are expected: it was read as names"
    return ""


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _lines(file: BinaryIO) -> Generator[str, None, None]:
    """Lines of text, none longer than what fits into memory."""
    text = io.TextIOWrapper(file, "utf-8", "replace", newline="")
    try:
        while line := text.readline(LINE_BYTES_MAX):
            if len(line) >= LINE_BYTES_MAX:
                raise ValueError(f"a line is longer than {LINE_BYTES_MAX >> 20} MiB")
            yield line.replace("\0", "")
    finally:
        text.detach()


# -- words ------------------------------------------------------------------------------------------------------------


def _kind(dtype: np.dtype[Any]) -> str:
    """`f64` for what plugml has a name for, else numpy's.

    >>> _kind(np.dtype(">i4")), _kind(np.dtype("S3"))
    ('i32', '|S3')
    """
    return f"{dtype.kind}{8 * dtype.itemsize}" if dtype.kind in "fiu" else dtype.str if dtype.names is None else "record"


def _short(value: object) -> str:
    text = " ".join(str(value).split()) or type(value).__name__
    return text if len(text) <= 120 else text[:117] + "..."


def sum_of(path: Path) -> int:
    """CRC-32 of a file."""
    value = 0
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            value = zlib.crc32(data, value)
    return value
