"""Checkpoints on one server: what of messages and events concerns cuts here, the attempts of clocks kept here, and files read.

Owns who of the two is told.  What a cut is and what becomes of it is `saving` and `checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.effects import Log
from ..core.errors import PeerError, RequestError
from ..core.limits import Limits
from ..wire import messages as m
from .checkpoint import Checkpoints
from .effects import Cut, ManifestWritten, RangeRead, RangeWritten, SaveBegun, Warm
from .hosted import Hosted
from .link import MasterLink
from .memory import Memory
from .saving import Saving
from .traffic import Traffic


class SaveTraffic(Traffic):
    def __init__(self, name: str, link: MasterLink, limits: Limits, memory: Memory) -> None:
        super().__init__(name, link, limits, memory)
        self.saving = Saving()
        self.checkpoints = Checkpoints(link, limits)
        self._unread: list[RangeRead] = []  # of sparse jobs, until rows can be kept

    def _save_handlers(self) -> dict[type[Any], Callable[[str, Any], None]]:
        return {
            m.WriteAsk: self._on_write_ask, m.Wrote: self._on_wrote, RangeWritten: self._on_range_written,
            ManifestWritten: self._on_manifest_written, RangeRead: self._on_range_read,
        }  # fmt: skip

    def _save(self, effect: Cut | SaveBegun) -> None:
        hosted = self.jobs[effect.job]
        if type(effect) is Cut:
            self._emit(self.saving.on_cut(hosted, effect))
        elif type(effect) is SaveBegun:
            self._emit(self.checkpoints.begin(hosted, effect, self._now_us))

    def _on_clock(self, sender: str, message: Any) -> None:
        super()._on_clock(sender, message)
        if self.saving.waits and message.job in self.jobs:
            self._emit(self.saving.on_step(self.jobs[message.job]))

    def _on_write_ask(self, sender: str, ask: m.WriteAsk) -> None:
        hosted = self._led_by_clock(sender, ask)
        if hosted is not None:
            self._emit(self.saving.on_ask(hosted, ask))

    def _on_wrote(self, sender: str, wrote: m.Wrote) -> None:
        hosted = self.jobs.get(wrote.job)
        if hosted is not None:
            self._emit(self.checkpoints.on_wrote(hosted, sender, wrote, self._now_us))
            self._after_clock(hosted)

    def _on_range_written(self, sender: str, done: RangeWritten) -> None:
        self._emit(self.saving.on_written(self.jobs.get(done.job), done))

    def _on_manifest_written(self, sender: str, done: ManifestWritten) -> None:
        hosted = self.jobs.get(done.job)
        if hosted is not None:
            self._emit(self.checkpoints.on_manifest(hosted, done, self._now_us))
            self._after_clock(hosted)

    def _after_clock(self, hosted: Hosted) -> None:
        """Ticks that were held are entries now."""
        if hosted.keeps is not None:
            self._after(hosted.keeps)

    def _on_range_read(self, sender: str, read: RangeRead) -> None:
        """What a range of a job that goes on from a checkpoint starts from."""
        hosted = self.jobs.get(read.job)
        replica = hosted.replicas.get(read.range) if hosted is not None else None
        if hosted is None or replica is None or not replica.cold:
            return
        if hosted.sparse and not self._warmth.warm:
            self._unread.append(read)
            return
        problem = read.problem
        if read.dump is not None:
            try:
                self._emit(replica.warm(read.dump, self._now_us))
            except (PeerError, RequestError, MemoryError) as error:
                problem = str(error) or "there is no memory for it"
        if problem:
            text = f"range {read.range} cannot be restored from {hosted.spec.resume}: {problem}"
            self._effects += self.link.job_failed(read.job, text, self._now_us)
            return
        self._after(replica)
        if not any(other.cold for other in hosted.replicas.values()):
            self._effects.append(Log("restored", {"job": read.job, "ranges": len(hosted.replicas), "dir": hosted.spec.resume}))

    def _on_warm(self, sender: str, warm: Warm) -> None:
        super()._on_warm(sender, warm)
        unread, self._unread = self._unread, []
        for read in unread if not warm.problem else ():
            self._on_range_read("", read)
