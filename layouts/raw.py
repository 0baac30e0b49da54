"""A flat block of numbers, with bytes around it that are carried through: `f32`, `f64,offset=20`, `f32,offset=-4096`, `count=N`.

A negative offset counts from the end of the file: for formats whose head grows, as counters in it do.
"""

from __future__ import annotations

import numpy as np

from .base import KINDS, Content, LayoutError, Span, decode


def read(data: bytes, layout: str, kind: str, offset: int, count: int) -> Content:
    """`count` 0 = up to the end."""
    width = np.dtype(KINDS[kind]).itemsize
    start = len(data) + offset if offset < 0 else offset
    if not 0 <= start < len(data):
        raise LayoutError(f"the numbers begin at byte {offset:,}, and the file has {len(data):,} bytes")
    rest = len(data) - start
    if not count and rest % width:
        raise LayoutError(f"{rest:,} bytes from byte {start:,} on are no whole number of {kind}: say offset= or count=, or is the file not complete?")
    number = count or rest // width
    if number * width > rest:
        raise LayoutError(f"{number:,} numbers of {kind} from byte {start:,} on need {number * width:,} bytes, and there are {rest:,}: the file is not complete")
    spans = (Span("", start, number, kind),)
    # What lies before numbers that are counted from the end may grow; all else has its size.
    size = () if offset < 0 else (len(data),)
    return Content(layout, data, decode(data, spans), ("raw", kind, number, *size), spans)
