"""Text of which each line begins with a key: `word 0.1 0.2`, `17 -3.5e-2`.  Numbers are met by key, so lines may come in any order.

The words between the numbers of a line must stay; lines may not come or go: models that grow cannot be shared yet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import text
from .base import Content, LayoutError, Numbers

_NAMED = 3  # keys that a sentence names


class Lines(NamedTuple):
    """`order[i]` is the token that number i is, in the order of the file."""

    whole: Content  # the same file as plain text
    order: NDArray[np.int64]
    keys: dict[bytes, tuple[int, tuple[bytes, ...]]]  # first number of each key's line, and the words of the line


def read(data: bytes, layout: str) -> Content:
    whole = text.read(data, "text")
    words: text.Words = whole.more
    found: dict[bytes, tuple[list[int], tuple[bytes, ...]]] = {}
    token, at = 0, len(words.between[0])  # the next number, and where it begins
    start = 0
    for line in data.split(b"\n"):
        end = start + len(line)
        key = line.split(None, 1)[0] if line.strip() else b""
        behind = start + line.find(key) + len(key)
        tokens, literals, last = [], [], behind
        while token < len(words.tokens) and at < end:
            after = at + len(words.tokens[token])
            if at >= behind:
                tokens.append(token)
                literals.append(b" ".join(data[last:at].split()))
                last = after
            token += 1
            at = after + len(words.between[token])
        literals.append(b" ".join(data[last:end].split()))
        if key:
            if key in found:
                raise LayoutError(f"two lines begin with the key {_shown(key)}")
            found[key] = tokens, tuple(literals)
        start = end + 1
    order = np.array([i for key in sorted(found) for i in found[key][0]], dtype=np.int64)
    keys, first = {}, 0
    for key in sorted(found):
        keys[key] = first, found[key][1]
        first += len(found[key][0])
    if not order.size:
        raise LayoutError("no line has a number behind its key")
    return Content(layout, data, whole.numbers[order], ("lines",), (), Lines(whole, order, keys))


def matches(given: Content, taken: Content) -> NDArray[np.bool_]:
    """Which numbers are counters that changed.  Raises `LayoutError` where the keys or the words of a line are others."""
    old, new = given.more, taken.more
    if given.data.endswith(b"\n") and not taken.data.endswith(b"\n"):
        raise LayoutError("its last line has no end any more: it is not complete")
    for these, those, what in ((new.keys, old.keys, "new"), (old.keys, new.keys, "gone")):
        if others := sorted(key for key in these if key not in those):
            listed = ", ".join(map(_shown, others[:_NAMED])) + ", ..." * (len(others) > _NAMED)
            raise LayoutError(f"{len(others):,} of its keys {'is' if len(others) == 1 else 'are'} {what} ({listed}): it is not complete, or it grows; models that grow cannot be shared yet")
    counted = np.zeros(given.numbers.size, np.bool_)
    for key, (_first, words) in old.keys.items():
        if new.keys[key][1] != words:
            raise LayoutError(f"the line of key {_shown(key)} has other words or numbers than before")
    floats = old.whole.more.floats[old.order] | new.whole.more.floats[new.order]
    for key, (first, words) in old.keys.items():
        place = slice(first, first + len(words) - 1)
        moved = ~floats[place] & (given.numbers[place] != taken.numbers[place])
        if moved.any() and floats[place].any():
            raise LayoutError(f"the line of key {_shown(key)}: a whole number beside floats has changed; write weights with a point or an exponent")
        counted[place] = moved
    return counted


def write(content: Content, values: Numbers) -> bytes:
    lines: Lines = content.more
    all_values = lines.whole.numbers.copy()
    all_values[lines.order] = values
    return text.write(lines.whole, all_values)


def place_of(content: Content, number: int) -> str:
    """For sentences: the key of a number's line."""
    lines: Lines = content.more
    key = next(key for key, (first, words) in lines.keys.items() if first <= number < first + len(words) - 1)
    return f"key {_shown(key)}"


def _shown(key: bytes) -> str:
    return repr(key[:40].decode("utf-8", "replace"))
