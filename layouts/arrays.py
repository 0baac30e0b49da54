"""numpy's `.npy`: one array with a header that says what it is; arrays of objects are refused, they are pickles."""

from __future__ import annotations

import ast
import math
from typing import NamedTuple

import numpy as np

from .base import Content, LayoutError, Span, decode

MAGIC = b"\x93NUMPY"
_KINDS = {"f8": "f64", "f4": "f32", "f2": "f16"}


class Header(NamedTuple):
    descr: str
    fortran: bool
    shape: tuple[int, ...]
    start: int  # of the numbers

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        """"" for what is carried through: whole numbers, texts, truth values."""
        kind = _KINDS.get(self.descr[1:], "")
        return f"{kind}be" if kind and self.descr[0] == ">" else kind


def header_of(data: bytes, name: str = "") -> Header:
    """Read and check the header; `data` holds the whole array."""
    where = f"{name}: " if name else ""
    if data[:6] != MAGIC or len(data) < 12:
        raise LayoutError(f"{where}no npy file (it does not begin with its mark), or not complete")
    size = int.from_bytes(data[8:10] if data[6] == 1 else data[8:12], "little")
    begin = 10 if data[6] == 1 else 12
    try:
        said = ast.literal_eval(data[begin : begin + size].decode("utf-8").strip())
        descr, fortran, shape = said["descr"], said["fortran_order"], said["shape"]
        good = isinstance(shape, tuple) and isinstance(fortran, bool) and all(isinstance(n, int) and n >= 0 for n in shape)
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise LayoutError(f"{where}the header of the npy file cannot be read") from error
    if not good or not isinstance(descr, str):
        raise LayoutError(f"{where}records of several kinds are not shared: save one array of floats for each")
    if "O" in descr:
        raise LayoutError(f"{where}an array of Python objects (a pickle) is not shared: save arrays of floats")
    try:
        width = np.dtype(descr).itemsize
    except (TypeError, ValueError) as error:
        raise LayoutError(f"{where}the kind {descr!r} in the header is not known") from error
    found = Header(descr, fortran, shape, begin + size)
    if len(data) != found.start + found.elements * width:
        raise LayoutError(f"{where}{len(data):,} bytes where the header promises {found.start + found.elements * width:,}: the file is not complete")
    return found


def read(data: bytes, layout: str) -> Content:
    found = header_of(data)
    if not found.kind:
        raise LayoutError(f"an array of {found.descr}: plugml shares floats (f64, f32, f16), and whole numbers stay the program's own")
    spans = (Span("", found.start, found.elements, found.kind),)
    return Content(layout, data, decode(data, spans), ("npy", found.descr, found.fortran, found.shape), spans)
