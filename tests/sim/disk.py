"""Checkpoints: written late, beside the servers, now and then in vain, and looked at when the master says that one is kept.

The code that writes and reads them is the real one, on a medium that forgets what was not synced (`medium`).  A checkpoint
that is kept must be whole, have every range at one clock (bsp) and, range by range, the very bits that the range had
there (I12); and it stays whole until a later one is kept, whoever loses power.  Where a bit has flipped, that is noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from plugml.core.errors import PeerError, RequestError, WorldError
from plugml.core.jobmap import buckets, pieces
from plugml.runtime import checkpoints
from plugml.runtime.solid import SyncError
from plugml.server import savedisk
from plugml.server.clock import ClockMachine
from plugml.server.effects import (
    ManifestWritten,
    RangeRead,
    RangeWritten,
    ReadRange,
    TidySaves,
    WriteManifest,
    WriteRange,
)
from plugml.server.memory import Memory, never_lent
from plugml.server.pool import Pool
from plugml.server.range import RangeMachine
from plugml.server.rangefiles import about, read_range

from .copies import Copies
from .medium import Died, Medium
from .process import Process
from .truth import Truth
from .weather import Plan
from .world import Violation, World

CALLS_MAX = 14  # of one piece of work before its trouble comes; most have about as many
ROOM = 1 << 40
T = TypeVar("T")


class Disk:
    """One for all servers: the directory of checkpoints is reached by each of them under one path, and each has a cache of its own.

    `spares(process)`: it must live; `breaks(process)`: its disk could not say that it holds what it was given, so it ends.
    """

    def __init__(self, world: World, plan: Plan, truth: Truth, copies: Copies, medium: Medium | None = None) -> None:
        """`medium`: what another run has left."""
        self.world = world
        self.plan = plan
        self.truth = truth
        self.copies = copies
        self.spares: Callable[[Process], bool] = lambda process: False
        self.breaks: Callable[[Process], None] = lambda process: process.crash()
        self.blows = True
        self.unreadable = False  # something that a job goes on from could not be read
        self._draw = Random(f"disk {world.seed}")
        self._medium = medium
        self._known = set(medium.flipped) if medium is not None else set()  # whoever has looked at the directory does not go on from these
        self._busy_us: dict[str, int] = {}  # by process: until when its one thread writes
        self._work: dict[str, deque[tuple[Callable[[Any], Any], Any]]] = {}  # by process: what that thread has to do
        self._spoiled: dict[tuple[int, int], Path] = {}  # by checkpoint that came to nothing: the damaged manifest that it needed
        self._kept: dict[int, checkpoints.Manifest] = {}  # by job: the checkpoint that is kept

    @property
    def medium(self) -> Medium:
        if self._medium is None:
            self._medium = Medium(self._draw)
        return self._medium

    def performers(self, process: Process) -> dict[type[Any], Callable[[Any], Any]]:
        works: tuple[tuple[type[Any], Callable[[Any], Any]], ...] = (
            (WriteRange, self._write), (WriteManifest, self._complete), (TidySaves, self._tidy), (ReadRange, self._read),
        )  # fmt: skip
        return {kind: self._performer(process, work) for kind, work in works}

    def _performer(self, process: Process, work: Callable[[Any], Any]) -> Callable[[Any], None]:
        """One thread for each process, which dies with it: what it has not done is never done."""

        def begin(effect: Any) -> None:
            name = process.name
            self._busy_us[name] = max(self.world.now_us, self._busy_us.get(name, 0)) + self.world.draw(*self.plan.write_us)
            self._work.setdefault(name, deque()).append((work, effect))

            def done() -> None:
                if process.alive and process.name == name:
                    self._work[name].popleft()
                    self._do(process, work, effect)

            self.world.after(self._busy_us[name] - self.world.now_us, done)

        return begin

    def _do(self, process: Process, work: Callable[[Any], Any], effect: Any) -> None:
        full = type(effect) in (WriteRange, WriteManifest) and self.blows and self.world.happens(self.plan.disk_full)
        if full:
            self.world.fault("full disk", "")
        try:
            with self.medium.work(process.node_id, ("full", 0) if full else self._trouble(process)):
                event = work(effect)
        except SyncError as error:
            self.world.note(process.name, "SYNC", str(error))
            self.breaks(process)
            return
        if self._happens(self.plan.flips):
            self.flip()
        if type(effect) is TidySaves:
            self.check()
        if event is not None:
            said = event.problem.replace(str(self.medium.home), "")  # the same in every run of a seed
            process.feed("", event._replace(problem=said) if said else event)

    def _happens(self, rate: float) -> bool:
        """Drawn apart: what else a seed draws does not depend on it."""
        return self.blows and rate > 0 and self._draw.random() < rate

    def _trouble(self, process: Process) -> tuple[str, int] | None:
        for kind, rate in (("write", self.plan.write_error), ("read", self.plan.read_error), ("sync", self.plan.sync_error)):
            if self._happens(rate) and not (kind == "sync" and self.spares(process)):
                self.world.fault(f"disk error: {kind}", process.name)
                return kind, self._draw.randrange(CALLS_MAX if kind == "read" else 4)
        return None

    def died(self, process: Process) -> None:
        """What its thread was doing is half done; and perhaps its whole host is gone, with all that it had not synced."""
        left = self._work.pop(process.name, None)
        if left and left[0][0] != self._read and self._happens(0.5):
            work, effect = left[0]
            try:
                with self.medium.work(process.node_id, ("die", self._draw.randrange(CALLS_MAX))):
                    work(effect)
            except (Died, SyncError):
                self.world.fault("death at work on the disk", process.name)
        if self._medium is not None and self._happens(self.plan.power_loss):
            self.world.fault("power loss", process.name)
            if self.medium.lose(process.node_id):
                self.world.reached("what was not synced is lost")
            self.check()

    def flip(self) -> None:
        path = self.medium.flip() if self._medium is not None else None
        if path is not None:
            self.world.fault("flipped bit on a disk", path.name)

    def check(self) -> None:
        """What is kept is still there."""
        for job, known in self._kept.items():
            manifest = self._whole(job, known.place)
            if manifest is not None and manifest != known:
                raise Violation(f"checkpoint {known.number} of job {job} is another one than was kept")

    def end(self) -> None:
        """What is kept is still there; then nothing is."""
        try:
            self.check()
        finally:
            self.close()

    def leave(self) -> None:
        """Another run has it now."""
        self._medium = None

    def kept(self, job: int) -> int:
        """Number of the checkpoint that the master names, 0 = none."""
        return self._kept[job].number if job in self._kept else 0

    def close(self) -> None:
        if self._medium is not None:
            self._medium.end()
            self._medium = None

    # -- the work of a thread

    def _place(self, path: str) -> str:
        return str(self.medium.path(path))

    def _write(self, effect: WriteRange) -> RangeWritten:
        return savedisk.write(effect._replace(spec=replace(effect.spec, checkpoint_dir=self._place(effect.spec.checkpoint_dir))))

    def _complete(self, effect: WriteManifest) -> ManifestWritten:
        done = savedisk.complete(effect._replace(root=self._place(effect.root)))
        before = self.medium.path(effect.root) / checkpoints.folder(effect.kept) / checkpoints.MANIFEST
        if done.problem and before in self.medium.flipped:
            if (effect.job, effect.number - 1) in self._spoiled and self._spoiled[effect.job, effect.number - 1] == before:
                raise Violation(f"checkpoint {effect.number} of job {effect.job} comes to nothing like the one before it: {done.problem}")
            self._spoiled[effect.job, effect.number] = before
        return done

    def _tidy(self, effect: TidySaves) -> None:
        savedisk.tidy(effect._replace(root=self._place(effect.root)))

    def _read(self, effect: ReadRange) -> RangeRead:
        done = savedisk.read(effect._replace(place=self._place(effect.place)))
        if done.problem and not (self.medium.failed or self.medium.flipped.keys() - self._known):
            raise Violation(f"range {effect.range} cannot be read, and nothing has happened to it: {done.problem}")
        self.unreadable = self.unreadable or bool(done.problem)
        return done

    # -- what must hold

    def stored(self) -> None:
        """The state names other checkpoints."""
        state = self.truth.state
        for number, job in state.jobs.items() if state is not None else ():
            if job.saved.number and (number not in self._kept or job.saved.number > self._kept[number].number):
                self._kept.pop(number, None)
                place = self.medium.path(job.spec.checkpoint_dir) / checkpoints.folder(job.saved.number)
                manifest = self._whole(number, place)
                if manifest is not None:
                    self._judge(number, manifest)
                    self._kept[number] = manifest
                    self.world.reached("a checkpoint is kept")

    def _whole(self, job: int, place: Path) -> checkpoints.Manifest | None:
        """What lies there; None where a bit of it has flipped."""
        needed = [place / checkpoints.MANIFEST]
        try:
            needed += [place.parent / name for name in checkpoints.read(place).files]
            manifest = checkpoints.whole(place)
        except WorldError as error:
            if any(path in self.medium.flipped for path in needed):
                self.world.reached("a flipped bit is noticed")
                return None
            raise Violation(f"checkpoint {place.name} of job {job} is kept and is not whole: {error}") from error
        if any(path in self.medium.flipped for path in needed[1:]):
            raise Violation(f"checkpoint {place.name} of job {job} has a flipped bit in it, and nobody notices")
        return manifest

    def _judge(self, job: int, manifest: checkpoints.Manifest) -> None:
        found = self.truth.job(job)
        if found is None:
            return
        if (manifest.number, manifest.clock) != (found.saved.number, found.saved.clock):
            raise Violation(f"checkpoint {found.saved.number} of job {job} is kept for clock {found.saved.clock}, and says {manifest.clock}")
        spec, root = manifest.spec, manifest.place.parent
        if sorted(found.seats) != manifest.document["ranges"]:
            raise Violation(f"checkpoint {manifest.number} of job {job} has ranges {manifest.document['ranges']}, there are {sorted(found.seats)}")
        for number in sorted(found.seats):
            name = checkpoints.range_file(manifest.number, number)
            if name not in manifest.files:
                raise Violation(f"checkpoint {manifest.number} of job {job} lacks range {number}")
            dump = read_range(root, name, about(spec, manifest.ring_ranges, number))
            if manifest.cut == "closed" and dump.meta["closed"] != manifest.clock:
                raise Violation(f"checkpoint {manifest.number} of job {job} is of clock {manifest.clock}, range {number} of {dump.meta['closed']}")
            self._compare(job, number, manifest, dump)

    def _compare(self, job: int, number: int, manifest: checkpoints.Manifest, dump: Any) -> None:
        """What it has of a range is what the range had then, bit for bit."""
        spec, ring = manifest.spec, manifest.ring_ranges
        clock = ClockMachine(job, number, spec, self.plan.limits, 0, 0) if dump.meta.get("clock") else None
        if clock is not None and spec.pieces:
            return  # the work list is that of the moment at which nobody doubts it any more
        held = RangeMachine(
            job, number, spec, _of_range(pieces(spec, ring), number), _of_range(buckets(spec, ring), number), Memory(never_lent), Pool(lambda: ROOM),
            self.plan.limits, 0, 0, clock,
        )  # fmt: skip
        try:
            held.load(dump)
        except (PeerError, RequestError) as error:
            raise Violation(f"checkpoint {manifest.number} of job {job}: range {number} cannot be loaded: {error}") from error
        there = self.copies.digest_at(job, number, held.version)
        if there is not None and there != held.digest():
            raise Violation(f"checkpoint {manifest.number} of job {job}: range {number} is not what it was at position {held.version}")


def _of_range(items: Sequence[T], number: int) -> list[T]:
    return [item for item in items if item.range == number]  # type: ignore[attr-defined]
