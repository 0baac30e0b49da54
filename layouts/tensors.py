"""safetensors: a JSON header, then the bytes of each tensor.  Tensors are met by name, wherever they lie; whole numbers are carried through."""

from __future__ import annotations

import json
import math
from typing import Any

from .base import Content, LayoutError, Span, decode

HEADER_BYTES_MAX = 100_000_000
_KINDS = {"F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16"}
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


def read(data: bytes, layout: str) -> Content:
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= HEADER_BYTES_MAX or len(data) < 8 + size:
        raise LayoutError("no safetensors file, or not complete: its header is longer than the file")
    try:
        said = json.loads(data[8 : 8 + size].decode("utf-8"))
        entries = sorted((name, _entry(entry)) for name, entry in said.items() if name != "__metadata__")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LayoutError("the header of the safetensors file cannot be read") from error
    end = 8 + size + max((stop for _name, (_kind, _shape, _start, stop) in entries), default=0)
    if end != len(data):
        raise LayoutError(f"{len(data):,} bytes where the header promises {end:,}: the file is not complete")
    spans = []
    for name, (kind, shape, start, stop) in entries:
        if kind not in _KINDS:
            continue
        if stop - start != math.prod(shape) * _BYTES[kind]:
            raise LayoutError(f"tensor {name!r} has {stop - start:,} bytes for the shape {list(shape)}")
        spans.append(Span(name, 8 + size + start, math.prod(shape), _KINDS[kind]))
    if not spans:
        raise LayoutError(f"no tensor of floats ({', '.join(_KINDS)}) is in it")
    skeleton = tuple((name, kind, shape) for name, (kind, shape, _start, _stop) in entries)
    return Content(layout, data, decode(data, tuple(spans)), ("safetensors", skeleton), tuple(spans))


def _entry(entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    shape, (start, stop) = tuple(int(n) for n in entry["shape"]), entry["data_offsets"]
    if not (isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop) or any(n < 0 for n in shape):
        raise ValueError
    return str(entry["dtype"]), shape, start, stop
