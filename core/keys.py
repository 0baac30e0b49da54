"""Where a block or a row lies on the 64-bit ring: integer hashing that any language can repeat bit for bit.

Published test vectors (`tests/unit/test_keys.py` holds them too):

    mix(0) = 0xe220a8397b1dcdaf      mix(1) = 0x910a2dec89025cc1
"""

from __future__ import annotations

from typing import Any

import numpy as np

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3


def mix(number: int) -> int:
    """Scatter a 64-bit number (splitmix64; Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators")."""
    z = (number + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def name_hash(name: str) -> int:
    """Hash of a name's UTF-8 bytes: FNV-1a of 64 bits, then `mix`."""
    value = _FNV_OFFSET
    for byte in name.encode():
        value = ((value ^ byte) * _FNV_PRIME) & MASK
    return mix(value)


def table_hash(job: str, table: str) -> int:
    """Start of a table on the ring; two jobs' tables of one name lie apart."""
    return name_hash(f"{job}/{table}")


def block_key(start: int, block: int) -> int:
    """Key of block `block` of the dense table that starts at `start`: golden-ratio steps spread evenly."""
    return (start + block * GOLDEN) & MASK


def clock_key(job: str) -> int:
    """Key whose range's owner also keeps the job's clock."""
    return name_hash(f"{job}//clock")


def range_of(key: int, ranges: int) -> int:
    """Number of the key range that holds `key` when the ring is cut into `ranges` (a power of two) equal arcs."""
    return key >> (65 - ranges.bit_length()) if ranges > 1 else 0


# -- rows of sparse tables, many at once


def mix_all(numbers: Hashes) -> Hashes:
    """`mix` of each number of an array of uint64."""
    z = numbers + np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def row_hashes(rows: Hashes, table_start: int) -> Hashes:
    """Hash of each row of the table that starts at `table_start` on the ring (`table_hash`)."""
    return mix_all(rows ^ np.uint64(table_start))


def buckets_of(hashes: Hashes, buckets: int) -> Hashes:
    """The bucket of each row: the top bits of its hash.  `buckets` is a power of two; bucket b lies at `block_key(start, b)`."""
    if buckets == 1:
        return np.zeros(len(hashes), np.uint64)
    return hashes >> np.uint64(65 - buckets.bit_length())


def key_hashes(text: np.ndarray[Any, np.dtype[np.uint8]], ends: np.ndarray[Any, np.dtype[np.int64]]) -> Hashes:
    """`name_hash` of many keys that lie one behind the other in `text`; key i ends before byte `ends[i]`.

    A key's row number is its hash.  Works on one byte of all keys at a time.

    >>> int(key_hashes(np.frombuffer(b"axyz", np.uint8), np.array([1, 4]))[1]) == name_hash("xyz")
    True
    """
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1]
    lengths = ends - starts
    hashes = np.full(len(ends), _FNV_OFFSET, np.uint64)
    order = np.argsort(-lengths, kind="stable")
    left = np.searchsorted(-lengths[order], -np.arange(int(lengths.max(initial=0))), side="left")
    for byte, count in enumerate(left.tolist()):
        longer = order[:count]
        hashes[longer] = (hashes[longer] ^ text[starts[longer] + byte]) * np.uint64(_FNV_PRIME)
    return mix_all(hashes)
