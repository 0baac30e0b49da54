"""Acks to the keeper of a job's clock: one for all ranges here that a Close or a Roster has reached, not one for each.

Owns which ranges are still to apply it; who applies it says so.  A repeat is answered without it.
"""

from __future__ import annotations

from ..wire.messages import Close, CloseAck, Roster, RosterAck

Key = tuple[type[Close] | type[Roster], int]  # and the clocks that are closed then, or the roster's number


class Closings:
    """Who applies an entry that nobody expects here (the node took over with it in its log) is acked at once."""

    def __init__(self) -> None:
        self._left: dict[Key, set[int]] = {}
        self._done: dict[Key, list[int]] = {}

    def expect(self, key: Key, number: int) -> None:
        self._left.setdefault(key, set()).add(number)

    def came(self, key: Key, number: int) -> list[int]:
        """A range has applied it: the ranges to ack now."""
        left = self._left.get(key)
        if left is None or number not in left:
            return [number]
        left.discard(number)
        done = self._done.setdefault(key, [])
        done.append(number)
        if left:
            return []
        del self._left[key], self._done[key]
        return done

    def flush(self) -> list[tuple[Key, list[int]]]:
        """Ranges have come or gone: nobody is waited for any more."""
        done = list(self._done.items())
        self._left.clear()
        self._done.clear()
        return done


def ack(key: Key, job: int, epoch: int, token: int, ranges: list[int]) -> CloseAck | RosterAck:
    kind, number = key
    if kind is Close:
        return CloseAck(job, epoch, token, number, tuple(ranges))
    return RosterAck(job, epoch, token, number, tuple(ranges))
