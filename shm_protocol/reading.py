"""What a request brings, read and checked as a whole before anything is sent: sizes, numbers, rows, keys.

    grad, gidx, gkey -> dense numbers and rows of the storage's kind        want, wkey -> rows that are wanted

`Live` reads the program's files, `KeptFiles` the copies in `pend.*`: what is read, and what is refused, is the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Code, RequestError
from . import numbers
from . import rows as r
from .files import Files
from .kept import PARTS, Kept
from .places import Layout, Places, check_size, fits, rows_start
from .request import Request, Section
from .sample import sample


class Data(NamedTuple):
    """`buffer` holds the dense part in stored layout, `rows` and `wants` an entry for each section that has some."""

    buffer: NDArray[np.uint8] | None
    rows: tuple[r.Rows, ...]
    wants: tuple[r.Rows, ...]
    crc: int
    nbytes: int  # of numbers pushed, as the program wrote them


class Source(Protocol):
    """Where the bytes come from, by the names of the program's files."""

    def size(self, name: str) -> int: ...

    def read_into(self, name: str, buffer: Any, offset: int = 0) -> int: ...


class KeptFiles:
    """A kept push in the place of the files that it was copied from."""

    def __init__(self, files: Files, name: str, kept: Kept) -> None:
        self._files = files
        self._name = name
        self._sizes = dict(zip(PARTS, kept.sizes))
        self._offsets = dict(zip(PARTS, kept.offsets))

    def size(self, name: str) -> int:
        return self._sizes[name.removesuffix(".txt")]

    def read_into(self, name: str, buffer: Any, offset: int = 0) -> int:
        part = name.removesuffix(".txt")
        view = memoryview(buffer).cast("B")[: max(0, self._sizes[part] - offset)]
        return self._files.read_into(self._name, view, self._offsets[part] + offset)


class Reader:
    """Reads the requests of one channel."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._info = places.info
        self._dense = places.info.dense
        self._offsets, self.stored_bytes = _stored(places)
        self._converted = any(table.storage for table in self._dense)
        self._raw: NDArray[np.uint8] | None = None  # dense numbers of the program's kind, where the servers keep another

    def read(self, request: Request, source: Source, into: NDArray[np.uint8] | None) -> Data:
        """`into` is an aligned buffer of `stored_bytes` for the dense part, if that takes part.  Raises `RequestError`."""
        self._info.check(request)
        grad = self.places.grad(request)
        buffer = into if grad.dense else None
        values = self._read_text(request, grad, source, buffer) if request.text else self._read_raw(request, grad, source, buffer)
        rows = self._named(request, source, "gidx", "gkey", [(s.table, s.rows) for s in request.sections])
        rows = [named._replace(values=given) for named, given in zip(rows, values)]
        wants = self._named(request, source, "want", "wkey", [(s.table, s.want) for s in request.sections])
        if request.sections:
            self._check_keys([*rows, *wants])
        crc = sample(self._sampled(buffer, rows)) if request.pushes else 0
        return Data(buffer, tuple(rows), tuple(wants), crc, grad.nbytes)

    def _sampled(self, buffer: NDArray[np.uint8] | None, rows: list[r.Rows]) -> list[NDArray[np.uint8]]:
        parts = [] if buffer is None else [buffer[: self.stored_bytes]]
        for named in rows:
            assert named.values is not None
            parts += [named.values.reshape(-1).view(np.uint8), named.ids.view(np.uint8)]
        return parts

    # -- numbers

    def _read_raw(self, request: Request, grad: Layout, source: Source, buffer: NDArray[np.uint8] | None) -> list[NDArray[Any]]:
        """Fill the buffer; gives the rows of each section."""
        if not grad.nbytes:
            return []
        size = source.size("grad")
        if not fits(size, grad.nbytes, self._info.cap_grad, request):
            raise RequestError(Code.SIZE, why_size(size, grad, self.places))
        if grad.dense:
            assert buffer is not None
            raw = self._raw_buffer() if self._converted else buffer
            self._read_whole(source, "grad", raw[: self.places.dense_bytes], 0)
            self._store_dense(raw, buffer)
        if not grad.places:
            return []
        start = grad.places[0].at
        block = numbers.aligned(grad.nbytes - start)
        self._read_whole(source, "grad", block, start)
        found = []
        for place in grad.places:
            table = self.places.tables[place.table]
            flat = block[place.at - start : place.at - start + place.nbytes].view(table.numpy_dtype)
            found.append(self._stored_rows(numbers.Series(table, flat)))
        return found

    def _read_text(self, request: Request, grad: Layout, source: Source, buffer: NDArray[np.uint8] | None) -> list[NDArray[Any]]:
        if not grad.nbytes:
            return []
        series = []
        if grad.dense:
            assert buffer is not None
            raw = self._raw_buffer() if self._converted else buffer
            series += numbers.dense_series(self._dense, raw)
        for place in grad.places:
            table = self.places.tables[place.table]
            series.append(numbers.Series(table, np.empty(place.rows * table.width, table.numpy_dtype)))
        count = sum(len(item.values) for item in series)
        numbers.parse_text(self._read_lines(source, "grad.txt", numbers.text_bytes_max(count), count), series, "grad.txt")
        if grad.dense:
            assert buffer is not None
            self._store_dense(raw, buffer)
        return [self._stored_rows(item) for item in series if item.table.kind == "sparse"]

    def _store_dense(self, raw: NDArray[np.uint8], buffer: NDArray[np.uint8]) -> None:
        for table, offset in zip(self._dense, self._offsets):
            values = numbers.view(raw, table)
            kept = np.frombuffer(buffer, table.storage_dtype, table.elements, offset) if self._converted else values
            numbers.store(numbers.Series(table, values), kept)

    @staticmethod
    def _stored_rows(series: numbers.Series) -> NDArray[Any]:
        table = series.table
        kept = np.empty(len(series.values), table.storage_dtype) if table.storage else series.values
        numbers.store(series, kept)
        return kept.reshape(-1, table.width)

    def _raw_buffer(self) -> NDArray[np.uint8]:
        if self._raw is None:
            self._raw = numbers.aligned(self.places.dense_bytes)
        return self._raw

    # -- rows

    def _named(self, request: Request, source: Source, by_number: str, by_key: str, sections: list[tuple[str, int]]) -> list[r.Rows]:
        """Which rows the sections mean, of those that have some, in their order."""
        if not any(rows for _table, rows in sections):
            return []
        numbered = iter(self._numbered(request, source, by_number))
        keyed = iter(self._keyed(source, by_key, sections))
        counts = [self.places.number(name) for name, rows in sections if rows]
        return [next(numbered if self.places.tables[number].index_bytes else keyed) for number in counts]

    def _numbered(self, request: Request, source: Source, name: str) -> list[r.Rows]:
        layout = self.places.gidx(request) if name == "gidx" else self.places.want(request)
        if not layout.places:
            return []
        if request.text:
            return self._numbered_text(source, f"{name}.txt", layout)
        check_size(name, source.size(name), layout.nbytes, self._info.cap_idx, request)
        raw = numbers.aligned(layout.nbytes)
        self._read_whole(source, name, raw, 0)
        found = []
        for place in layout.places:
            table = self.places.tables[place.table]
            ids = r.read_ids(raw[place.at : place.at + place.nbytes], table)
            r.check_ids(ids, table, name)
            found.append(r.Rows(place.table, ids))
        return found

    def _numbered_text(self, source: Source, name: str, layout: Layout) -> list[r.Rows]:
        count = sum(place.rows for place in layout.places)
        lines = numbers.lines_of(self._read_lines(source, name, numbers.text_bytes_max(count), count), count, name)
        found = []
        start = 0
        for place in layout.places:
            table = self.places.tables[place.table]
            ids = numbers.parse_numbers(lines[start : start + place.rows], start, table, name)
            r.check_ids(ids, table, name)
            found.append(r.Rows(place.table, ids))
            start += place.rows
        return found

    def _keyed(self, source: Source, name: str, sections: list[tuple[str, int]]) -> list[r.Rows]:
        wanted = self.places.keys(sections)
        if not wanted:
            return []
        count = sum(rows for _number, rows in wanted)
        if source.size(name) > r.key_bytes_max(count):
            head = np.zeros(r.key_bytes_max(count) + 1, np.uint8)
            self._read_whole(source, name, head, 0)
            raise r.why_too_long(head, count, name)
        text = np.frombuffer(self._read_lines(source, name, r.key_bytes_max(count), count), np.uint8)
        keys, ends = r.split_keys(text, count, name)
        found = []
        start = 0
        for number, rows in wanted:
            found.append(r.hashed(number, *r.cut_keys(keys, ends, start, rows)))
            start += rows
        return found

    def _check_keys(self, named: list[r.Rows]) -> None:
        """Within one request no two keys of a table may stand for one row."""
        by_table: dict[int, list[r.Rows]] = {}
        for rows in named:
            if rows.keys is not None:
                by_table.setdefault(rows.table, []).append(rows)
        for number, of_table in by_table.items():
            r.check_collisions(of_table, self.places.tables[number])

    # -- bytes

    @staticmethod
    def _read_lines(source: Source, name: str, most: int, count: int) -> bytes:
        size = source.size(name)
        check_text_size(name, size, most, count)
        text = bytearray(size)
        return bytes(memoryview(text)[: source.read_into(name, text)])

    @staticmethod
    def _read_whole(source: Source, name: str, into: NDArray[np.uint8], offset: int) -> None:
        found = source.read_into(name, into, offset)
        if found < len(into):
            raise RequestError(Code.SIZE, f"{name} shrank to {offset + found} bytes while it was read: leave it alone until the reply")


def _stored(places: Places) -> tuple[list[int], int]:
    """Where each dense table lies in a buffer of the servers' kinds of numbers, and its bytes (`JobSpec.stored_layout`)."""
    offsets = []
    end = 0
    for table in places.info.dense:
        offsets.append(rows_start(end))
        end = offsets[-1] + table.elements * table.storage_dtype.itemsize
    return offsets, end


class Part(NamedTuple):
    """A file that a request names: the bytes that take part and its full size, or lines of which all takes part."""

    name: str
    nbytes: int
    cap: int
    lines: int = 0  # of a text

    def bytes_of(self, size: int, request: Request) -> int:
        """How many bytes take part of a file of `size`.  Raises `RequestError` SIZE."""
        if self.lines:
            check_text_size(self.name, size, self.nbytes, self.lines)
            return size
        check_size(self.name, size, self.nbytes, self.cap, request)
        return self.nbytes


def parts_of(request: Request, places: Places) -> list[Part]:
    """The files that a request names."""
    info, grad, gidx, want = places.info, places.grad(request), places.gidx(request), places.want(request)
    dense = info.elements if grad.dense else 0
    found = []
    for name, layout, cap, lines in (
        ("grad", grad, info.cap_grad, dense + sum(place.rows * places.tables[place.table].width for place in grad.places)),
        ("gidx", gidx, info.cap_idx, sum(place.rows for place in gidx.places)), ("want", want, info.cap_idx, sum(place.rows for place in want.places)),
    ):  # fmt: skip
        if layout.nbytes:
            found.append(Part(f"{name}.txt", numbers.text_bytes_max(lines), 0, lines) if request.text else Part(name, layout.nbytes, cap))
    for name, sections in (("gkey", _pushed(request.sections)), ("wkey", _wanted(request.sections))):
        lines = sum(rows for _number, rows in places.keys(sections))
        if lines:
            found.append(Part(name, r.key_bytes_max(lines), 0, lines))
    return found


def check_text_size(name: str, size: int, most: int, lines: int) -> None:
    """Raises `RequestError` SIZE for a text that is longer than its lines can be: it is refused unread."""
    if size > most:
        raise RequestError(Code.SIZE, f"{name} has {size} bytes, {lines} lines need at most {most}; nothing was applied")


def _pushed(sections: tuple[Section, ...]) -> list[tuple[str, int]]:
    return [(section.table, section.rows) for section in sections]


def _wanted(sections: tuple[Section, ...]) -> list[tuple[str, int]]:
    return [(section.table, section.want) for section in sections]


def why_size(size: int, grad: Layout, places: Places) -> str:
    """What is wrong with the size of `grad`, as far as one can guess."""
    info, wanted = places.info, grad.nbytes
    what = f"{info.elements} elements of {info.dtype}" if grad.dense and not grad.places else _what(grad, places)
    text = f"grad has {size} bytes, {wanted} are declared ({what})"
    if size in (wanted + 8, wanted + 16):
        return f"{text}: record markers of Fortran; open the file with access='stream'"
    if size == 2 * wanted and info.dtype == "f32":
        return f"{text}: float64 instead of float32? declare the table as f64 or convert"
    if 2 * size == wanted and info.dtype == "f64":
        return f"{text}: float32 instead of float64? declare the table as f32 or convert"
    if size == 2 * wanted or (size > wanted and size % max(1, wanted) == 0):
        return f"{text}: was it appended with '>>'? overwrite it"
    return f"{text}; nothing was applied"


def _what(grad: Layout, places: Places) -> str:
    words = [f"{places.info.elements} dense elements"] if grad.dense and places.info.elements else []
    for place in grad.places:
        table = places.tables[place.table]
        words.append(f"{place.rows} rows of {table.width} {table.dtype} for table {table.name} at {place.at}")
    return ", ".join(words)
