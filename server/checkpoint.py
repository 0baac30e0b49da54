"""Checkpoints of jobs whose clock is kept here: from the cut to the pointer in the master's store, or to nothing.

    SaveBegun -> WriteAsk to every server of the job, until each range has said Wrote -> WriteManifest -> SaveEnd -> kept

One attempt a job, in memory: whoever keeps the clock next knows nothing of it.  A range that gets another primary ends
it, and so does any problem: its files are removed, the master hears why, training goes on.  Refuses to know files.
"""

from __future__ import annotations

from typing import Any

from ..core.effects import Log, Send
from ..core.limits import Limits
from ..wire import messages as m
from .effects import ManifestWritten, SaveBegun, TidySaves, WriteManifest
from .hosted import Hosted
from .link import MasterLink
from .saves import Saves

WRITING, COMPLETING, STORING = "writing", "completing", "storing"
PROBLEM_MAX = 500  # characters of a sentence that go to the master


class Attempt:
    """One checkpoint on its way.  `primaries` are those that lead at its cut: nobody else has it."""

    def __init__(self, hosted: Hosted, number: int, clock: int, due_us: int, wait_us: int) -> None:
        assert hosted.map is not None and hosted.clock is not None
        self.number = number
        self.clock = clock
        self.phase = WRITING
        self.primaries = {number: item.primary for number, item in hosted.map.ranges.items()}
        self.written: dict[int, m.Wrote] = {}
        self.cut: set[int] = set()  # ranges that have what belongs to it
        self.base = hosted.clock.saves.base
        self.document = _document(hosted, clock)
        self.request = 0
        self.due_us = due_us
        self.wait_us = wait_us


class Checkpoints:
    def __init__(self, link: MasterLink, limits: Limits) -> None:
        self._attempts: dict[int, Attempt] = {}  # by job
        self._link = link
        self._limits = limits

    def begin(self, hosted: Hosted, begun: SaveBegun, now_us: int) -> list[Any]:
        """The clock has come to a cut."""
        keeps = hosted.keeps
        if keeps is None or not keeps.serves or keeps.clock is None:
            return []  # of the time of another keeper: it counts as settled
        if hosted.number in self._attempts:
            keeps.clock.saves.settle(begun.number, False, 0)
            text = f"checkpoint {self._attempts[hosted.number].number} is still being written"
            line = Log("checkpoint_skipped", {"job": begun.job, "number": begun.number, "text": text})
            return [line, *keeps.clock.notices(), *self._release(hosted, now_us)]
        wait_us = self._limits.resend_us
        attempt = self._attempts[hosted.number] = Attempt(hosted, begun.number, begun.clock, now_us + wait_us, wait_us)
        return self._ask(hosted, attempt)

    def _ask(self, hosted: Hosted, attempt: Attempt) -> list[Any]:
        servers = sorted({server for number, server in attempt.primaries.items() if number not in attempt.written})
        ask = m.WriteAsk(hosted.number, hosted.keeper[1], hosted.token, attempt.number, attempt.base, not hosted.closes)
        return [Send(server, ask) for server in servers]

    def on_wrote(self, hosted: Hosted, sender: str, wrote: m.Wrote, now_us: int) -> list[Any]:
        attempt = self._attempts.get(hosted.number)
        if attempt is None or attempt.phase != WRITING or wrote.number != attempt.number or attempt.primaries.get(wrote.range) != sender:
            return []
        if wrote.problem:
            return self._fail(hosted, attempt, wrote.problem, now_us)
        attempt.cut.add(wrote.range)
        if wrote.nbytes:
            attempt.written[wrote.range] = wrote
        freed = self._release(hosted, now_us) if len(attempt.cut) == len(attempt.primaries) else []
        if len(attempt.written) < len(attempt.primaries):
            return freed
        attempt.phase = COMPLETING
        files = {number: (wrote.nbytes, wrote.crc) for number, wrote in attempt.written.items()}
        earlier = tuple(sorted((before, number) for number, wrote in attempt.written.items() for before in wrote.refers))
        root = hosted.spec.checkpoint_dir
        return [*freed, WriteManifest(hosted.number, attempt.number, root, attempt.base, attempt.document, files, earlier)]

    @staticmethod
    def _release(hosted: Hosted, now_us: int) -> list[Any]:
        """Every range has its part of the cut: members that were held at it go on."""
        keeps = hosted.keeps
        if keeps is None or keeps.clock is None or not keeps.clock.saves.holding:
            return []
        effects: list[Any] = []
        for sender, tick in keeps.clock.saves.release():
            effects += keeps.on_clock(sender, tick, now_us)
        return effects

    def on_manifest(self, hosted: Hosted, done: ManifestWritten, now_us: int) -> list[Any]:
        attempt = self._attempts.get(hosted.number)
        if attempt is None or attempt.phase != COMPLETING or done.number != attempt.number:
            return []
        if done.problem:
            if hosted.clock is not None:
                hosted.clock.saves.base = 0  # perhaps what it refers to is damaged: the next one needs none of it
            return self._fail(hosted, attempt, done.problem, now_us)
        attempt.phase = STORING
        attempt.request, asked = self._link.ask_save(hosted.number, attempt.number, attempt.clock, hosted.spec.checkpoint_dir, "", now_us)
        return asked

    def on_done(self, jobs: dict[int, Hosted], done: m.Done, now_us: int) -> list[Any]:
        """The master has stored the pointer, or has refused to."""
        for job, attempt in self._attempts.items():
            if attempt.phase == STORING and attempt.request == done.request:
                hosted = jobs[job]
                return self._fail(hosted, attempt, done.text, now_us) if done.code else self._keep(hosted, attempt)
        return []

    def _keep(self, hosted: Hosted, attempt: Attempt) -> list[Any]:
        del self._attempts[hosted.number]
        spec = hosted.spec
        nbytes = sum(wrote.nbytes for wrote in attempt.written.values())
        fields = {"job": hosted.number, "number": attempt.number, "clock": attempt.clock, "bytes": nbytes, "dir": spec.checkpoint_dir}
        tidy = TidySaves(spec.checkpoint_dir, attempt.number, spec.checkpoint_keep)
        return [Log("checkpoint", fields), tidy, *self._settle(hosted, attempt)]

    def _fail(self, hosted: Hosted, attempt: Attempt, problem: str, now_us: int) -> list[Any]:
        """This one comes to nothing; the one before stays the last."""
        del self._attempts[hosted.number]
        place = hosted.spec.checkpoint_dir
        line = Log("checkpoint_failed", {"job": hosted.number, "number": attempt.number, "clock": attempt.clock, "text": problem})
        why = problem[:PROBLEM_MAX] or "?"
        told = self._link.ask_save(hosted.number, attempt.number, attempt.clock, place, why, now_us)[1]
        return [line, TidySaves(place, attempt.number, 0), *told, *self._settle(hosted, attempt, why), *self._release(hosted, now_us)]

    @staticmethod
    def _settle(hosted: Hosted, attempt: Attempt, problem: str = "") -> list[Any]:
        if hosted.clock is None:
            return []
        hosted.clock.saves.settle(attempt.number, not problem, attempt.clock, problem)
        return hosted.clock.notices()

    def on_map(self, hosted: Hosted, now_us: int) -> list[Any]:
        """A range has another primary, or the clock another keeper: nobody has that cut any more."""
        attempt = self._attempts.get(hosted.number)
        if attempt is None or attempt.phase == STORING or hosted.map is None:
            return []
        moved = [number for number, item in hosted.map.ranges.items() if attempt.primaries.get(number) != item.primary]
        if hosted.keeps is None:
            return self._fail(hosted, attempt, "the keeper of the clock has changed", now_us)
        return self._fail(hosted, attempt, f"{len(moved)} ranges have got another primary while it was written", now_us) if moved else []

    def forget(self, hosted: Hosted) -> list[Any]:
        """The job has ended.  A checkpoint that only waited for the master is whole, and stays."""
        attempt = self._attempts.pop(hosted.number, None)
        if attempt is None or attempt.phase == STORING:
            return []
        return [TidySaves(hosted.spec.checkpoint_dir, attempt.number, 0)]

    # -- time

    @property
    def due_us(self) -> int | None:
        if not self._attempts:
            return None
        return min((attempt.due_us for attempt in self._attempts.values() if attempt.phase == WRITING), default=None)

    def on_time(self, jobs: dict[int, Hosted], now_us: int) -> list[Any]:
        effects: list[Any] = []
        for job, attempt in self._attempts.items():
            if attempt.phase == WRITING and now_us >= attempt.due_us:
                attempt.wait_us = min(2 * attempt.wait_us, self._limits.resend_us_max)
                attempt.due_us = now_us + attempt.wait_us
                effects += self._ask(jobs[job], attempt)
        return effects


def _document(hosted: Hosted, clock: int) -> dict[str, Any]:
    """What the manifest says beside its files."""
    assert hosted.map is not None and hosted.clock is not None
    keeper = hosted.clock
    saves: Saves = keeper.saves
    workers = [list(row) for row in keeper.members.roster()]
    finished = [[row.worker, row.finished] for row in keeper.members.rows.values()]
    return {
        "clock": clock, "cut": saves.cut, "job": hosted.spec.to_document(), "ring_ranges": hosted.map.ring_ranges,
        "workers": workers, "finished": finished, "pieces": keeper.work.dump(), "initialised": keeper.claims.initialised,
        "ranges": sorted(hosted.map.ranges),
    }  # fmt: skip
