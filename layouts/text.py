"""Text with numbers between words.  The words are the skeleton: they must be the same in a file that is compared.

A number is taken for a float when it is written as one (point, exponent, hexadecimal) in the file that was given or in the
one that came back.  Whole numbers belong to the program: one that changed is carried through where it is surely a counter,
that is where the words around it are found nowhere else; anywhere else it may be a key in another order, and is refused.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .base import Content, LayoutError, Numbers

_NUMBER = re.compile(
    rb"(?<![\w.])[-+]?(?:0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][-+]?\d+|(?:\d+\.?\d*|\.\d+)(?:[eEdD][-+]?\d+)?"
    rb"|inf(?:inity)?|nan(?:\([^()\s]{0,32}\))?)(?![\w.])",
    re.IGNORECASE,
)
_FLOAT = re.compile(rb"[.eEdDpPnN]")
_DIGITS = 17  # that tell every float64 from its neighbours
_WORDS_MAX = 60  # of a file's own text in a sentence


class Words(NamedTuple):
    """`tokens` are the numbers as they are written, `between` what stands before each and after the last."""

    tokens: list[bytes]
    between: list[bytes]
    floats: NDArray[np.bool_]


def read(data: bytes, layout: str) -> Content:
    if b"\0" in data:
        raise LayoutError("zero bytes are in it: no text. Say where its numbers are, e.g. FILE:f32,offset=20")
    tokens, between, at = [], [], 0
    for match in _NUMBER.finditer(data):
        tokens.append(match.group())
        between.append(data[at : match.start()])
        at = match.end()
    between.append(data[at:])
    floats = np.array([bool(_FLOAT.search(token)) for token in tokens], dtype=np.bool_)
    if not tokens:
        raise LayoutError("no number is in it")
    numbers = np.array([value_of(token) for token in tokens])
    return Content(layout, data, numbers, ("text", len(tokens)), (), Words(tokens, between, floats))


def value_of(token: bytes) -> float:
    """Any way of writing that C, Fortran or Python has.

    >>> value_of(b"0x1.8p+1"), value_of(b"1.5D-01"), value_of(b".5")
    (3.0, 0.15, 0.5)
    """
    text = token.decode("ascii").lower()
    if "0x" in text:
        return float.fromhex(text) if len(text) < 64 else float("nan")
    if text.lstrip("+-").startswith("nan"):
        return float("nan")
    return float(text if "inf" in text else text.replace("d", "e"))


def matches(given: Content, taken: Content) -> NDArray[np.bool_]:
    """Which numbers are counters that changed.  Raises `LayoutError` where a number of one is not the same number in the other."""
    old, new = given.more, taken.more
    if len(old.tokens) != len(new.tokens):
        raise LayoutError(f"it has {len(new.tokens):,} numbers and had {len(old.tokens):,}: it is not complete, or it grows; models that grow cannot be shared yet")
    last = len(old.tokens)
    number = next((i for i, (a, b) in enumerate(zip(old.between, new.between)) if a != b and not _same(a, b, i == 0, i == last)), -1)
    if number >= 0:
        line = 1 + sum(part.count(b"\n") for part in new.between[:number])
        raise LayoutError(f"line {line}: {_shown(new.between[number])} stands where {_shown(old.between[number])} was; numbers are only compared where the words around them are the same (lines in any order that begin with a key: say FILE:lines)")
    whole = ~(old.floats | new.floats)
    counted: NDArray[np.bool_] = whole & (given.numbers != taken.numbers)
    moved = [int(i) for i in np.flatnonzero(counted)]
    if not moved:
        return counted
    contexts: dict[tuple[bytes, bytes, bool], int] = {}
    for i in range(len(new.tokens)):
        context = _context(new.between, i)
        contexts[context] = contexts.get(context, 0) + 1
    for i in moved:
        context = _context(new.between, i)
        if contexts[context] > 1 or not (re.search(rb"[A-Za-z]", context[0]) or _is_head(new, i)):
            raise LayoutError(
                f"{place_of(taken, i)}: the whole number {old.tokens[i].decode()} has become {new.tokens[i].decode()}. Is it a key in another order, or a weight? "
                "plugml shares what is written as a float (with a point or an exponent), and meets numbers by their place"
            )
    return counted


def _same(old: bytes, new: bytes, first: bool, last: bool) -> bool:
    """The same words on the same lines?  How many blanks are between them is no matter, and a last newline may have come."""
    was, now = ([line.split() for line in part.split(b"\n")] for part in (old, new))
    if last and now[-1:] == [[]] and len(now) == len(was) + 1:
        now.pop()
    return was == now and (first or last or _apart(old) == _apart(new))


def _apart(part: bytes) -> tuple[bool, bool]:
    """Do blanks part the words from the numbers on either side?"""
    return part[:1].isspace(), part[-1:].isspace()


def _context(between: list[bytes], i: int) -> tuple[bytes, bytes, bool]:
    """The words of the number's own line up to its neighbours, and whether it is the last one there."""
    after, newline, _ = between[i + 1].partition(b"\n")
    return b" ".join(between[i].rpartition(b"\n")[2].split()), b" ".join(after.split()), bool(newline)


def _is_head(words: Words, i: int) -> bool:
    """Does it stand before the first float of all, in a line without one?"""
    first = int(np.argmax(words.floats))
    return i < first and any(b"\n" in part for part in words.between[i + 1 : first + 1])


def place_of(content: Content, i: int) -> str:
    """For sentences: `line 1, behind 'seen '`."""
    words: Words = content.more
    line = 1 + sum(part.count(b"\n") for part in words.between[: i + 1])
    before = _context(words.between, i)[0]
    return f"line {line}" + (f", behind {_shown(before)}" if before else "")


def write(content: Content, values: Numbers) -> bytes:
    words: Words = content.more
    changed = np.flatnonzero(content.numbers != values)
    if not changed.size:
        return content.data
    tokens = list(words.tokens)
    for i in changed:
        tokens[i] = written(tokens[i], float(values[i]))
    parts = [part for pair in zip(words.between, tokens) for part in pair]
    return b"".join([*parts, words.between[-1]])


def written(token: bytes, value: float) -> bytes:
    """A value in the way of the number that it replaces, with no fewer digits, and so many that it reads back as itself.

    >>> written(b"1.50000e+00", 0.1), written(b"-2.5D0", 3.0), written(b"0x1p+0", 1.5), written(b"0", 0.25)
    (b'1.0000000000000001e-01', b'3.0000000000000000D+00', b'0x1.8000000000000p+0', b'0.25')
    >>> written(b"1.000", 2.0)
    b'2.000'
    """
    text = token.decode("ascii")
    if "x" in text.lower():
        return value.hex().encode()
    mark = re.search(r"[eEdD]", text)
    point = text.find(".")
    if mark:
        digits = max(mark.start() - point - 1 if point >= 0 else 0, _DIGITS - 1)
        return f"{value:.{digits}e}".replace("e", mark.group()).encode()
    if value != 0 and not 1e-5 <= abs(value) < 1e16:
        return repr(value).encode()
    return np.format_float_positional(value, unique=True, min_digits=len(text) - point - 1 if point >= 0 else 1).encode()


def _shown(words: bytes) -> str:
    text = words.decode("utf-8", "replace")
    return repr(text if len(text) <= _WORDS_MAX else text[:_WORDS_MAX] + "...")
