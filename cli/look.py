"""What numbers say when one looks at them: shape, lowest, highest, mean, what is not finite; and what raw bytes may be.

Owns no file: it is handed pieces, in order.  Never holds more than a piece.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]

#: Kinds of numbers that people may name for a raw file.
KINDS: dict[str, np.dtype[Any]] = {
    "f16": np.dtype("<f2"), "f32": np.dtype("<f4"), "f64": np.dtype("<f8"), "i64": np.dtype("<i8"), "u32": np.dtype("<u4"), "u64": np.dtype("<u8"),
}  # fmt: skip
SAMPLE_BYTES = 1 << 20
_TEXT = re.compile(rb"[\s0-9+\-.,;eEdDnNaAiIfFtTyY\"]*\Z")
_SANE = 0.99  # of the numbers in a sample, to believe in a kind
#: What arithmetic makes of 0/0 by the size of a number, and R's NA: other bits that read as no number are hardly meant.
_NO_NUMBER = {2: (0x7E00,), 4: (0x7FC00000,), 8: (0x7FF8 << 48, 0x7FF0 << 48 | 1954, 0x7FF8 << 48 | 1954)}
_DOUBTFUL = 0.75  # fewer than these, to doubt one that was declared
_BIG_ENDIAN = 'the numbers look big-endian; write them little-endian (R: writeBin(x, f, endian = "little"), Fortran: convert="little_endian")'


@dataclass
class Look:
    """One array, table or column of numbers, as far as it was looked at.  `low`, `high` and `mean` are of the finite ones."""

    name: str
    kind: str  # f64, u32, ...; empty where it is not numbers
    shape: tuple[int, ...] = ()
    order: str = "C"
    count: int = 0
    low: float | int | None = None
    high: float | int | None = None
    bad: int = 0
    first_bad: int = -1  # position in file order
    rows: int | None = None  # of a sparse table
    about: str = ""  # beside the numbers: "row numbers", "keys"
    total: float = 0.0

    def add(self, piece: Numbers) -> None:
        """The next numbers, flat, in file order."""
        if not len(piece):
            return
        if piece.dtype.kind == "f":
            if piece.dtype.itemsize not in (4, 8):
                with np.errstate(over="ignore"):
                    piece = piece.astype("f4" if piece.dtype.itemsize == 2 else "f8")
            finite = np.isfinite(piece)
            if not finite.all():
                if self.first_bad < 0:
                    self.first_bad = self.count + int(np.argmin(finite))
                self.bad += len(piece) - int(finite.sum())
                self.count += len(piece) - int(finite.sum())
                piece = piece[finite]
                if not len(piece):
                    return
        low, high = piece.min().item(), piece.max().item()
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        with np.errstate(over="ignore", invalid="ignore"):
            self.total += float(piece.sum(dtype=np.float64))
        self.count += len(piece)

    @property
    def mean(self) -> float | None:
        good = self.count - self.bad
        return self.total / good if good and math.isfinite(self.total) else None

    def place_of(self, position: int) -> str:
        """Indices of a position in file order, from 0.

        >>> Look("w", "f64", (2, 3), "F").place_of(2)
        '[0, 1]'
        """
        if len(self.shape) < 2 or position >= math.prod(self.shape):
            return str(position)
        indices = []
        for length in self.shape if self.order == "F" else reversed(self.shape):
            position, index = divmod(position, length)
            indices.append(index)
        return str(indices if self.order == "F" else indices[::-1])

    @property
    def finite(self) -> str:
        """In words."""
        if not self.kind.startswith(("f", "bf")):
            return ""
        if not self.bad:
            return "all finite" if self.count else ""
        return f"{self.bad:,} not finite, the first at {self.place_of(self.first_bad)}"

    def to_document(self) -> dict[str, Any]:
        return {
            "name": self.name, "kind": self.kind, "shape": list(self.shape), "order": self.order, "rows": self.rows, "about": self.about,
            "count": self.count, "min": self.low, "max": self.high, "mean": self.mean, "not_finite": self.bad,
            "first_not_finite": self.first_bad if self.bad else None,
        }  # fmt: skip


@dataclass
class Report:
    """What was seen at one place.  `problems` are what is not as it should be, `notes` all other sentences."""

    path: str
    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    files: list[tuple[str, int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Numbers that are not finite are a problem, wherever they are."""
        for look in self.looks:
            if look.bad:
                self.problems.append(f"{look.name}: {look.finite}")

    def to_document(self) -> dict[str, Any]:
        return {
            "path": self.path, "kind": self.kind, **self.facts, "tables": [look.to_document() for look in self.looks],
            "files": [{"name": name, "bytes": nbytes, "about": about} for name, nbytes, about in self.files],
            "notes": self.notes, "problems": self.problems,
        }  # fmt: skip


# -- what raw bytes may be --------------------------------------------------------------------------------------------


def guess(sample: bytes) -> str:
    """The kind of number that raw bytes most likely are, "" if none fits; a guess.

    >>> guess(np.linspace(-1, 1, 99).tobytes()), guess(np.linspace(-1, 1, 99, dtype="f4").tobytes()), guess(bytes(range(1, 250)))
    ('f64', 'f32', '')
    """
    words = np.frombuffer(sample[: len(sample) // 8 * 8], "<u4")
    if not len(words):
        return "f32" if len(sample) == 4 else ""
    if not words[0::2].any() and _sanity(sample, KINDS["f64"]) >= _SANE:
        return "f64"  # whole numbers as f64: the low halves are zero
    return next((kind for kind in ("f32", "f64", "i64") if _sanity(sample, KINDS[kind]) >= _SANE), "")


def doubts(sample: bytes, dtype: np.dtype[Any]) -> str:
    """Why these bytes are hardly numbers of that kind, "" if they may be."""
    if looks_like_text(sample):
        return "it looks like numbers in text; raw files hold binary ones (R: writeBin, C: fwrite, Python: array.tofile)"
    if dtype.itemsize > 1 and _sanity(sample, dtype) < _DOUBTFUL and _sanity(sample, dtype.newbyteorder(">")) >= _SANE:
        return _BIG_ENDIAN
    return ""


def may_be_swapped(sample: bytes) -> bool:
    """Small whole numbers as big-endian f64 look like whole numbers of i64."""
    return _sanity(sample, np.dtype(">f8")) >= _SANE


def looks_like_text(sample: bytes) -> bool:
    return len(sample) > 1 and bool(_TEXT.match(sample[:4096])) and b"\n" in sample[:4096] and any(48 <= byte <= 57 for byte in sample[:4096])


def size_doubts(size: int, wanted: int, head: bytes, tail: bytes) -> str:
    """What a wrong number of bytes may mean; `head` and `tail` are the first and last four.

    >>> size_doubts(24, 16, b"\\x10\\0\\0\\0", b"\\x10\\0\\0\\0")
    "it is 8 bytes longer: Fortran's record markers; open the file with access='stream'"
    """
    marker = (size - 8).to_bytes(4, "little", signed=False) if 8 <= size < 1 << 31 else b""
    if size == wanted + 8 and head == marker == tail:
        return "it is 8 bytes longer: Fortran's record markers; open the file with access='stream'"
    if size == 2 * wanted:
        return "it is twice as long: perhaps f64 numbers where f32 was declared"
    if 2 * size == wanted:
        return "it is half as long: perhaps f32 numbers where f64 was declared"
    if wanted and size % wanted == 0 and size:
        return f"it is {size // wanted} times as long: perhaps written several times, or appended to"
    return ""


def _sanity(sample: bytes, dtype: np.dtype[Any]) -> float:
    """The part of a sample that is a number which somebody may have meant, or what a computation makes that went wrong."""
    numbers = np.frombuffer(sample[: len(sample) // dtype.itemsize * dtype.itemsize], dtype)
    if not len(numbers):
        return 0.0
    if dtype.kind != "f":
        return float((np.abs(numbers.astype("f8")) < 2.0**48).mean())
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(numbers.astype("f8"))
        sane = (size == 0) | ((size > 1e-20) & (size < 1e20)) | np.isinf(size)
    if np.isnan(size).any():
        bits = numbers.view(dtype.str.replace("f", "u")) & ~(np.uint64(1) << np.uint64(8 * dtype.itemsize - 1))
        sane |= np.isin(bits, _NO_NUMBER[dtype.itemsize])
    return float(sane.mean())
