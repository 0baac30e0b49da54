"""Amounts as people write them: bytes with a unit."""

from __future__ import annotations

import re

from ..core.errors import UsageError

_UNITS = {
    "": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_AMOUNT = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)\s*([A-Za-z]{0,3})\Z")


def parse_bytes(value: object, where: str) -> int:
    """`"2GiB"`, `"1.5 GB"`, or a number of bytes.

    >>> parse_bytes("2GiB", "memory"), parse_bytes("1.5 MB", "memory"), parse_bytes(4096, "memory")
    (2147483648, 1500000, 4096)
    """
    found = _AMOUNT.match(str(value).strip())
    unit = _UNITS.get(found.group(2).lower()) if found else None
    if found is None or unit is None:
        raise UsageError(f"{where} = {value!r}: write bytes with a unit, e.g. 500MB or 2GiB")
    nbytes = int(float(found.group(1)) * unit) if "." in found.group(1) else int(found.group(1)) * unit
    if not 1 <= nbytes <= 1 << 60:
        raise UsageError(f"{where} = {value!r}; from 1 byte to 1,048,576 TiB")
    return nbytes
