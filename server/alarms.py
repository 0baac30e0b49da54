"""When which copy wants to be called: many of them, of which few are due, and most are put off before they are.

An alarm that is put off stays where it is and is looked at when its old time comes.  Knows only their times.
"""

from __future__ import annotations

import heapq

from .replica import Replica


class Alarms:
    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Replica]] = []  # (when, number, copy), the next one first
        self._number = 0  # tells those of one time apart

    def set(self, replica: Replica) -> None:
        """Look at the copy's own time anew."""
        due_us = replica.due_us
        if due_us is not None and (replica.alarm_us is None or due_us < replica.alarm_us):
            replica.alarm_us = due_us
            self._number += 1
            heapq.heappush(self.heap, (due_us, self._number, replica))

    def take(self, now_us: int) -> list[Replica]:
        """The copies that are due; each is to be `set` again once it was called."""
        due: list[Replica] = []
        put_off: list[Replica] = []
        while self.heap and self.heap[0][0] <= now_us:
            at_us, _, replica = heapq.heappop(self.heap)
            if replica.gone or replica.alarm_us != at_us:
                continue  # another alarm stands for it
            replica.alarm_us = None
            wanted_us = replica.due_us
            if wanted_us is not None:
                (due if wanted_us <= now_us else put_off).append(replica)
        for replica in put_off:
            self.set(replica)
        return due
