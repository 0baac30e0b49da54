"""Checkpoints: written late, beside the servers, now and then in vain, and looked at when the master says that one is kept.

The code that writes and reads them is the real one, in a directory in memory that lives as long as the run.  A checkpoint
that is kept must be whole, have every range at one clock (bsp) and, range by range, the very bits that the range had
there (I12); and it stays whole until a later one is kept.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from plugml.core.errors import PeerError, RequestError, WorldError
from plugml.core.jobmap import buckets, pieces
from plugml.runtime import checkpoints
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
from .process import Process
from .truth import Truth
from .weather import Plan
from .world import Violation, World

FULL = "No space left on device"
ROOM = 1 << 40
T = TypeVar("T")


class Disk:
    """One for all servers: the directory of checkpoints is reached by each of them under one path."""

    def __init__(self, world: World, plan: Plan, truth: Truth, copies: Copies) -> None:
        self.world = world
        self.plan = plan
        self.truth = truth
        self.copies = copies
        self.full = plan.disk_full
        self._home: Path | None = None
        self._busy_us: dict[str, int] = {}  # by process: until when its one thread writes
        self._kept: dict[int, int] = {}  # by job: number of the checkpoint that is kept

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

            def done() -> None:
                if process.alive and process.name == name:
                    event = work(effect)
                    if event is not None:
                        process.feed("", event)

            self.world.after(self._busy_us[name] - self.world.now_us, done)

        return begin

    def end(self) -> None:
        """What is kept is still there; then nothing is."""
        try:
            for job in self._kept:
                self._whole(job)
        finally:
            if self._home is not None:
                shutil.rmtree(self._home)
                self._home = None

    # -- the work of a thread

    def _place(self, path: str) -> str:
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="plugml-sim-", dir="/dev/shm"))
        return f"{self._home}{path}"

    def _is_full(self) -> bool:
        if not self.world.happens(self.full):
            return False
        self.world.fault("full disk", "")
        return True

    def _write(self, effect: WriteRange) -> RangeWritten:
        if self._is_full():
            return RangeWritten(effect.job, effect.range, effect.number, 0, 0, (), FULL)
        return savedisk.write(effect._replace(spec=replace(effect.spec, checkpoint_dir=self._place(effect.spec.checkpoint_dir))))

    def _complete(self, effect: WriteManifest) -> ManifestWritten:
        if self._is_full():
            return ManifestWritten(effect.job, effect.number, FULL)
        return savedisk.complete(effect._replace(root=self._place(effect.root)))

    def _tidy(self, effect: TidySaves) -> None:
        savedisk.tidy(effect._replace(root=self._place(effect.root)))

    def _read(self, effect: ReadRange) -> RangeRead:
        return savedisk.read(effect._replace(place=self._place(effect.place)))

    # -- what must hold

    def stored(self) -> None:
        """The state names other checkpoints."""
        state = self.truth.state
        for number, job in state.jobs.items() if state is not None else ():
            if job.saved.number > self._kept.get(number, 0):
                self._kept[number] = job.saved.number
                self._judge(number, self._whole(number))
                self.world.reached("a checkpoint is kept")

    def _whole(self, job: int) -> checkpoints.Manifest | None:
        """The one that the master names; None where the job is forgotten."""
        found = self.truth.job(job)
        if found is None or not found.saved.number:
            return None
        try:
            return checkpoints.whole(Path(self._place(found.spec.checkpoint_dir)) / checkpoints.folder(found.saved.number))
        except WorldError as error:
            raise Violation(f"checkpoint {found.saved.number} of job {job} is kept and is not whole: {error}") from error

    def _judge(self, job: int, manifest: checkpoints.Manifest | None) -> None:
        found = self.truth.job(job)
        if found is None or manifest is None:
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
