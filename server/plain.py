"""Plain values that a peer or a file has given: each is checked before anybody believes it.  Raises `PeerError`.

Knows numbers, lists and mappings; not what they are for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..core.errors import Code, PeerError, RequestError, shown

INT_MAX = 1 << 62  # whoever counts on from there still fits into 64 bits
TEXT_MAX = 1 << 16

Made = TypeVar("Made")
Check = Callable[[Any], Any]


def whole(value: Any, low: int = 0, most: int = INT_MAX) -> int:
    if type(value) is not int or not low <= value <= most:
        raise PeerError(f"a copy has {shown(value)} where a number from {low} to {most} belongs")
    return value


def signed(value: Any) -> int:
    """A whole number of which -1 says that there is none."""
    return whole(value, -1)


def number(value: Any) -> float:
    """A finite number that is not negative; one that came as a whole number stays one."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise PeerError(f"a copy has {shown(value)} where a finite number belongs")
    found: float = value
    return found


def code(value: Any) -> int:
    """Of a refusal."""
    return whole(value, 1, max(Code))


def text(value: Any) -> str:
    if type(value) is not str or len(value) > TEXT_MAX:
        raise PeerError(f"a copy has {shown(value)} where a text belongs")
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise PeerError(f"a copy has {shown(value)} where true or false belongs")
    return value


def listed(value: Any) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise PeerError(f"a copy has {shown(value)} where a list belongs")
    items: Sequence[Any] = value
    return items


def record(value: Any, *checks: Check) -> tuple[Any, ...]:
    """So many values, each of its kind."""
    items = listed(value)
    if len(items) != len(checks):
        raise PeerError(f"a copy has {shown(value)} where {len(checks)} values belong")
    return tuple([check(item) for check, item in zip(checks, items)])


def pair(value: Any) -> tuple[int, int]:
    first, second = record(value, whole, whole)
    return first, second


def records(value: Any, *checks: Check) -> list[tuple[Any, ...]]:
    return [record(item, *checks) for item in listed(value)]


def once(found: Sequence[tuple[Made, Any]]) -> dict[Made, Any]:
    """A mapping from pairs, in which nothing comes twice."""
    made = dict(found)
    if len(made) != len(found):
        raise PeerError("a copy names something twice")
    return made


def placed(meta: Any, held: Mapping[tuple[int, int], Made], range_number: int, what: str) -> list[tuple[Made, tuple[int, ...]]]:
    """The parts of a dump, each with its row of five, which begins with its table and number: known ones, none twice."""
    rows = records(meta, whole, whole, whole, whole, whole)
    once([(row[:2], None) for row in rows])
    for row in rows:
        if row[:2] not in held:
            raise PeerError(f"a copy of range {range_number} has {what} {row[1]} of table {row[0]}, which does not lie there")
    return [(held[row[:2]], row) for row in rows]


def from_failure(why: RequestError | None) -> tuple[Any, ...]:
    return (int(why.code), why.text) if why is not None else ()


def failure(value: Any) -> RequestError | None:
    """What `from_failure` made."""
    if not listed(value):
        return None
    number, why = record(value, code, text)
    return RequestError(Code(number), why)


def field(meta: Any, name: str) -> Any:
    if type(meta) is not dict or name not in meta:
        raise PeerError(f"a copy has no {name!r}")
    return meta[name]
