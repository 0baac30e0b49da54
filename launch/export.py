"""What a result may be written as: formats, the names inside them, numbers as text.  Pure; files are `export_files`.

    raw           NAME.bin, and of a sparse table NAME.idx (row numbers) or NAME.keys (a key a line)
    npz           tables.npz: NAME, and of a sparse table NAME/rows or NAME/keys
    safetensors   tables.safetensors: the same names
    csv           NAME.csv: a line of names, then a line for each row

A table's name holds no `/`, so that no table is called as another one's rows are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import UsageError, shown
from ..core.table import INDEXES, TableSpec, unknown_key

FORMATS = ("raw", "npz", "safetensors", "csv")
DEFAULT = ("raw", "npz")
NPZ, SAFETENSORS = "tables.npz", "tables.safetensors"
#: Numbers that are turned into text at once.
CELLS = 1 << 18
#: The longest text of a number, a comma behind it.
_CELL_BYTES = {"f32": 16, "f64": 25, "i64": 21}

Numbers = np.ndarray[Any, Any]


def parse_formats(words: object, where: str) -> tuple[str, ...]:
    """Formats as somebody listed them, in the order of FORMATS, each once.  Raises `UsageError`.

    >>> parse_formats(["csv", "raw", "csv"], "export"), parse_formats("npz,csv", "--export")
    (('raw', 'csv'), ('npz', 'csv'))
    """
    if isinstance(words, str):
        words = [word.strip() for word in words.split(",")]
    if not isinstance(words, (list, tuple)) or not words:
        raise UsageError(f"{where}: {shown(words)}; a list of {', '.join(FORMATS)}")
    for word in words:
        if not isinstance(word, str) or word not in FORMATS:
            raise unknown_key(word, FORMATS, where, "format")
    return tuple(name for name in FORMATS if name in words)


def check_names(tables: Sequence[TableSpec], formats: Collection[str]) -> None:
    """Refuse a name that a format keeps for itself, or under which it would give somebody another table.  Raises `UsageError`."""
    names = {table.name for table in tables}
    if "safetensors" in formats and "__metadata__" in names:
        raise UsageError("table '__metadata__': safetensors keeps that name for itself; call the table something else, or leave safetensors out")
    for name in sorted(names) if "npz" in formats else ():
        if name.endswith(".npy") and name.removesuffix(".npy") in names:
            raise UsageError(f"tables {name.removesuffix('.npy')!r} and {name!r}: numpy.load takes one for the other; call one something else, or leave npz out")


class Values(NamedTuple):
    """One table as it is saved: numbers in the program's dtype and shape.

    Of a sparse table the shape is (rows that exist, width), in order of their numbers `rows`, or of their `keys` (UTF-8, a
    newline behind each) by their bytes.
    """

    table: TableSpec
    array: Numbers
    rows: Numbers | None = None
    keys: Numbers | None = None

    @property
    def arrays(self) -> dict[str, Numbers]:
        """Everything of the table, by the names that npz and safetensors give it."""
        found = {self.table.name: self.array}
        if self.rows is not None:
            found[f"{self.table.name}/rows"] = self.rows
        if self.keys is not None:
            found[f"{self.table.name}/keys"] = self.keys
        return found


def raw_files(table: TableSpec) -> tuple[str, ...]:
    """Names of a table's raw files, as the agent writes them."""
    if table.kind == "dense":
        return (f"{table.name}.bin",)
    return (f"{table.name}.bin", f"{table.name}.keys" if table.index_name == "str" else f"{table.name}.idx")


def index_dtype(table: TableSpec) -> np.dtype[Any]:
    """Of the row numbers of a sparse table."""
    return np.dtype(f"<u{INDEXES[table.index_name]}")


def file_names(tables: Sequence[TableSpec], formats: Sequence[str]) -> list[str]:
    """Every file with values, in the order in which people are told of them."""
    names: list[str] = []
    if "raw" in formats:
        names += [name for table in tables for name in raw_files(table)]
    if "npz" in formats:
        names.append(NPZ)
    if "safetensors" in formats:
        names.append(SAFETENSORS)
    if "csv" in formats:
        names += [f"{table.name}.csv" for table in tables]
    return names


def room_bytes(tables: Sequence[TableSpec], formats: Sequence[str]) -> int:
    """Bytes that the result takes at most, as far as that is known before: rows of sparse tables come as they are pushed."""
    total = 0
    for table in tables:
        if table.kind == "dense":
            binary = len({"raw", "npz", "safetensors"}.intersection(formats)) or 1  # the agent's raw files come first
            turned = table.order == "F" and "safetensors" in formats
            total += (binary + turned) * table.nbytes
            total += _CELL_BYTES[table.dtype] * table.count if "csv" in formats else 0
    return total


# -- text -------------------------------------------------------------------------------------------------------------


def csv_head(values: Values) -> Iterator[bytes]:
    """The line of names, in pieces: `row` or `key` of a sparse table, c0, c1, ..."""
    columns = csv_columns(values)
    if values.rows is not None or values.keys is not None:
        yield b"key," if values.keys is not None else b"row,"
    for start in range(0, columns, CELLS):
        stop = min(columns, start + CELLS)
        yield b",".join(b"c%d" % column for column in range(start, stop)) + (b"," if stop < columns else b"\n")


def csv_columns(values: Values) -> int:
    """The last index runs along a line; one index alone runs down a column."""
    return int(values.array.shape[-1]) if values.array.ndim > 1 else 1


def csv_lines(block: Numbers, labels: Sequence[bytes] = ()) -> bytes:
    """Lines of numbers, with a label in front of each: the shortest text that reads back as the same bits.

    >>> csv_lines(np.array([[0.1, 1e30], [-0.0, np.nan]], "f4"), [b"7", b"9"])
    b'7,0.1,1e+30\\n9,-0.0,NaN\\n'
    """
    if not block.size:
        return b""
    rows = [b",".join(cells) for cells in _texts(block).tolist()]
    if labels:
        rows = [b"%b,%b" % pair for pair in zip(labels, rows, strict=True)]
    return b"\n".join(rows) + b"\n"


def csv_cells(numbers: Numbers) -> bytes:
    """Numbers with commas between them: a piece of a line that is too long to be made at once."""
    return b",".join(_texts(numbers).tolist())


def _texts(block: Numbers) -> Numbers:
    texts: Numbers = block.astype("S32")
    if block.dtype.kind == "f":
        odd = ~np.isfinite(block)
        if odd.any():  # as R writes them; C reads any case
            words = np.where(np.isnan(block[odd]), b"NaN", np.where(block[odd] > 0, b"Inf", b"-Inf"))
            texts[odd] = words
    return texts


def quoted(keys: Iterable[bytes]) -> list[bytes]:
    """Keys as CSV has texts (RFC 4180).

    >>> quoted([b'a', b'say "a"'])
    [b'"a"', b'"say ""a""\"']
    """
    return [b'"%b"' % key.replace(b'"', b'""') for key in keys]
