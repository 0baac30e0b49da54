"""The exports that are asked for and not answered yet: each by its number, with who waits for it."""

from __future__ import annotations

from typing import Any

from ..core.errors import Code
from ..wire import messages as m
from . import effects as e
from .asked import Ticket, no, yes
from .export import Export
from .house import House
from .router import Job


class Exports:
    def __init__(self, house: House) -> None:
        self.house = house
        self.running: dict[int, tuple[Export, Ticket]] = {}

    def begin(self, ticket: Ticket, job: Job, place: str, at: int, now_us: int) -> list[Any]:
        number = self.house.new_request()

        def draw() -> int:
            request = self.house.new_request()
            self.house.by_request[request] = export
            return request

        export = Export(job, number, place, at, self.house.limits, draw, now_us)
        self.running[number] = (export, ticket)
        self.house.by_request[number] = export
        self.house.wake(export.due_us)
        return []

    def on_answer(self, export: Export, answer: m.Values | m.Scanned, now_us: int) -> list[Any]:
        if isinstance(answer, m.Scanned) and export.scans is not None and answer.request in export.scans.open:
            effects = export.on_answer(answer, now_us)
            if answer.request not in export.scans.open:
                self.house.by_request.pop(answer.request, None)
            return effects + self._conclude(export)
        return export.on_answer(answer, now_us) + self._conclude(export)

    def on_refuse(self, export: Export, refuse: m.Refuse) -> list[Any]:
        return export.fail(refuse.code, refuse.text) + self._conclude(export)

    def on_standing(self, job: Job, now_us: int) -> list[Any]:
        effects: list[Any] = []
        for export in self._of(job):
            effects += export.on_standing(now_us)
        return effects

    def on_map(self, job: Job, moved: frozenset[int]) -> list[Any]:
        effects: list[Any] = []
        ended = job.ended()
        for export in self._of(job):
            effects += export.on_map(moved) if ended is None else export.fail(*ended)
            effects += self._conclude(export)
        return effects

    def on_failure(self, job: Job) -> list[Any]:
        """Its clock stands: what waits for the next close waits in vain.  A snapshot is read all the same, and so is who asks from now on."""
        assert job.failure is not None
        effects: list[Any] = []
        for export in self._of(job):
            if not export.at:
                effects += export.fail(*job.failure) + self._conclude(export)
        return effects

    def on_hung(self, connection: int) -> list[Any]:
        """Nobody waits there any more: what was written goes."""
        effects: list[Any] = []
        for export, ticket in list(self.running.values()):
            if ticket.connection == connection:
                effects += export.fail(Code.GONE, "nobody waits for it any more")
                self._forget(export)
        return effects

    def on_event(self, event: e.ExportFailed | e.ExportEnded, now_us: int) -> list[Any]:
        """What became of its files."""
        if event.export not in self.running:
            return []
        export, ticket = self.running[event.export]
        if isinstance(event, e.ExportFailed):
            return export.fail(event.code, event.text) + self._conclude(export)
        self._forget(export)
        return yes(ticket, {"files": export.files, "bytes": event.nbytes, "clock": export.clock})

    def on_time(self, now_us: int) -> list[Any]:
        effects: list[Any] = []
        for export, _ticket in self.running.values():
            effects += export.on_time(now_us)
        return effects

    def deadline_us(self, latest_us: int) -> int:
        return min([latest_us, *(export.due_us for export, _ticket in self.running.values())])

    def _of(self, job: Job) -> list[Export]:
        return [export for export, _ticket in self.running.values() if export.job is job]

    def _conclude(self, export: Export) -> list[Any]:
        """Answer one that has failed."""
        if export.failure is None or export.number not in self.running:
            return []
        _export, ticket = self.running[export.number]
        self._forget(export)
        return no(ticket, *export.failure)

    def _forget(self, export: Export) -> None:
        del self.running[export.number]
        for request in [request for request, asker in self.house.by_request.items() if asker is export]:
            del self.house.by_request[request]
