"""Checks for the msgpack part of a message, built once from the type hints in `messages`.

A check takes what msgpack gave, returns the value to put into the message, and raises `ValueError` with a sentence for
everything else.  It knows types and ranges; what a number means is known to whoever gets the message.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args, get_origin

DEPTH_MAX = 32  # of nested documents: walks over them may recurse
INT_MAX = (1 << 63) - 1  # fits every language's signed 64 bits and numpy's int64

#: Fields whose numbers may be negative, and how far down.
LOWEST: dict[tuple[str, str], int] = {
    ("Standing", "stop_clock"): -1,
    ("Standing", "end"): -1,
    ("Roster", "members"): -1,
    ("NodeExit", "status"): -(1 << 31),
}

Check = Callable[[Any], Any]


def check_of(message: str, field: str, hint: Any) -> Check:
    """The check for one field of one message."""
    return _check(hint, LOWEST.get((message, field), 0))


def _check(hint: Any, low: int) -> Check:
    if hint is int:
        return _whole(low)
    if hint is float:
        return _weight
    if hint in (bool, str):
        return _exactly(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _many(_check(arguments[0], low))
    if origin is tuple:
        return _record(tuple(_check(argument, low) for argument in arguments))
    if origin is dict and arguments == (str, int):
        return _counters
    assert origin is dict and arguments == (str, Any), hint
    return _document


def _exactly(kind: type[Any]) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"is {type(value).__name__}, not {kind.__name__}")
        return value

    return check


def _whole(low: int) -> Check:
    def check(value: Any) -> int:
        if type(value) is not int:
            raise ValueError(f"is {type(value).__name__}, not int")
        if not low <= value <= INT_MAX:
            raise ValueError(f"is {value}; from {low} to {INT_MAX}")
        return value

    return check


def _weight(value: Any) -> float:
    """Every float in a body is a weight or a sum of weights."""
    if type(value) is not float and type(value) is not int:
        raise ValueError(f"is {type(value).__name__}, not float")
    if not 0 <= value < math.inf:  # false for NaN
        raise ValueError(f"is {value}, no weight")
    return float(value)


def _many(check: Check) -> Check:
    def check_all(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            raise ValueError(f"is {type(value).__name__}, not an array")
        return tuple([check(item) for item in value])

    return check_all


def _record(checks: tuple[Check, ...]) -> Check:
    def check_record(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) != len(checks):
            raise ValueError(f"holds something that is no record of {len(checks)}")
        return tuple([check(item) for check, item in zip(checks, value)])

    return check_record


def _counters(value: Any) -> dict[str, int]:
    if type(value) is not dict:
        raise ValueError(f"is {type(value).__name__}, not a mapping")
    for key, item in value.items():
        if type(key) is not str or type(item) is not int:
            raise ValueError("holds something that is no counter")
    return value


def _document(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError(f"is {type(value).__name__}, not a mapping")
    _plain(value, DEPTH_MAX)
    return value


def _plain(value: Any, depth: int) -> None:
    """Mappings with string keys and arrays, at most `depth` deep, of plain values: what can be packed again."""
    kind = type(value)
    if kind is not dict and kind is not tuple:
        return
    if depth == 0:
        raise ValueError(f"is nested more than {DEPTH_MAX} deep")
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise ValueError(f"has a key that is {type(key).__name__}, not str")
            _plain(item, depth - 1)
        return
    for item in value:
        _plain(item, depth - 1)
