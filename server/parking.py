"""Pulls that came too early: they wait in the range, at most so many; who was dropped asks again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..wire.messages import Pull


class Parked(NamedTuple):
    sender: str
    pull: Pull


Key = tuple[str, int, int]  # sender, worker, request


class Parking:
    """Pulls that wait for a push of their own stream lie by worker, those that wait for a close in one row."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pushes: dict[int, dict[Key, Parked]] = {}
        self._closes: dict[Key, Parked] = {}
        self.count = 0

    def park(self, sender: str, pull: Pull, for_push: bool) -> None:
        """Keep the pull until its own push or a close; the same request again takes the place of the one before it."""
        key = (sender, pull.worker, pull.request)
        row = self._pushes.get(pull.worker, {}) if for_push else self._closes
        if key not in row:
            if self.count >= self._most:
                self._drop_oldest()
            self.count += 1
        row = self._pushes.setdefault(pull.worker, {}) if for_push else self._closes
        row[key] = Parked(sender, pull)

    def take_for_push(self, worker: int) -> list[Parked]:
        """A push of the worker became visible: look at these again."""
        found = self._pushes.pop(worker, None)
        if not found:
            return []
        self.count -= len(found)
        return list(found.values())

    def take_for_close(self) -> list[Parked]:
        """A clock was closed: look at these again."""
        found = list(self._closes.values())
        self.count -= len(found)
        self._closes.clear()
        return found

    def take_if(self, unwanted: Callable[[Pull], bool]) -> list[Parked]:
        """Take out those that will not be answered with values."""
        found = []
        for row in (*self._pushes.values(), self._closes):
            for key in [key for key, parked in row.items() if unwanted(parked.pull)]:
                found.append(row.pop(key))
        self.count -= len(found)
        for worker in [worker for worker, row in self._pushes.items() if not row]:
            del self._pushes[worker]
        return found

    def __iter__(self) -> Iterator[Parked]:
        for row in self._pushes.values():
            yield from row.values()
        yield from self._closes.values()

    def _drop_oldest(self) -> None:
        for worker, row in self._pushes.items():
            del row[next(iter(row))]
            self.count -= 1
            if not row:
                del self._pushes[worker]
            return
        del self._closes[next(iter(self._closes))]
        self.count -= 1
