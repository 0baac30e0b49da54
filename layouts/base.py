"""What every layout gives, and numbers of each kind as float64 and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError

Numbers = NDArray[np.float64]

#: Kinds of numbers that are shared; bf16 has no numpy type of its own.
KINDS = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "f64be": ">f8", "f32be": ">f4", "f16be": ">f2", "bf16": "<u2"}


class LayoutError(UsageError):
    """The file is not what its layout says, or not what it was before: one sentence for its user."""

    exit_code = 1


class Span(NamedTuple):
    """Numbers that lie one after the other: `elements` of `kind` from byte `start` on, under a name of the file's own."""

    name: str
    start: int
    elements: int
    kind: str

    @property
    def nbytes(self) -> int:
        return self.elements * np.dtype(KINDS[self.kind]).itemsize


@dataclass(slots=True, frozen=True)
class Content:
    """A model file that was read.  `numbers` has one float64 for each number, in an order that only names decide."""

    layout: str  # as its user writes it, e.g. "raw:f32,offset=20"
    data: bytes
    numbers: Numbers
    skeleton: tuple[Any, ...]  # equal in files whose numbers may be compared one by one
    spans: tuple[Span, ...] = ()
    more: Any = field(default=None, repr=False)  # the layout's own


def decode(data: bytes, spans: tuple[Span, ...]) -> Numbers:
    """The numbers of all spans, one after the other."""
    parts = []
    for span in spans:
        raw = np.frombuffer(data, KINDS[span.kind], span.elements, span.start)
        if span.kind == "bf16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(invalid="ignore"):  # a signalling NaN: judged with all others
            parts.append(raw.astype(np.float64))
    return np.concatenate(parts) if parts else np.zeros(0)


def encode(values: Numbers, kind: str) -> bytes:
    """The nearest numbers of a kind.  Raises `LayoutError` where one is too large for it."""
    with np.errstate(over="ignore", under="ignore"):
        if kind == "bf16":
            bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
            made = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            finite = (made & 0x7F80) != 0x7F80
        else:
            made = values.astype(KINDS[kind])
            finite = np.isfinite(made)
    if not np.all(finite):
        raise LayoutError(f"the shared value {values[np.argmin(finite)]:g} is too large for the file's {kind}")
    return made.tobytes()


def patched(content: Content, values: Numbers) -> bytearray:
    """The bytes with other numbers in the spans; a number that stays keeps its bytes, also those of -0.0."""
    out, at = bytearray(content.data), 0
    for span in content.spans:
        own, new = content.numbers[at : at + span.elements], values[at : at + span.elements]
        at += span.elements
        changed = np.flatnonzero(own != new)
        if not changed.size:
            continue
        place = np.frombuffer(out, KINDS[span.kind], span.elements, span.start)
        place[changed] = np.frombuffer(encode(new[changed], span.kind), KINDS[span.kind])
    return out
