"""What signals to the launcher do to a run: the half of its machine that hears them.  Pure.

    SIGUSR1   a checkpoint, and go on
    SIGTERM   a checkpoint at the next clock, waited for as long as `grace`, then the orderly end: 75 with it, 143 without
    others    the orderly end;  any one again: the end at once

Owns what is asked of the clock meanwhile.  Refuses to know how programs are ended and results are saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.jobmap import STOPPED
from . import effects as e
from . import words
from .crew import Crew, Verdict
from .plan import RunPlan
from .saving import Saver
from .worker import RUNNING

CONNECTING, REGISTERING, TRAINING, ENDING, JUDGING, SAVING, CLOSING, DONE = (
    "connecting", "registering", "training", "ending", "judging", "saving", "closing", "done",
)  # fmt: skip
SIGKILL, SIGUSR1, SIGTERM = 9, 10, 15
EX_CHECKPOINTED = 75


class Interrupted:
    phase: str
    verdict: Verdict | None
    crew: Crew
    saver: Saver
    _ask: Callable[..., e.Ask]
    _up: bool
    lost: bool

    def interrupted(self) -> None:
        """Nothing has come yet."""
        self._signals = 0
        self._ends = False  # SIGTERM has come
        self._asked = False  # a checkpoint is on its way
        self._save_us: int | None = None  # SIGTERM waits for it until then

    @property
    def plan(self) -> RunPlan:
        raise NotImplementedError

    def _finish(self, now_us: int) -> list[Any]:
        raise NotImplementedError

    def _give_up_judging(self, now_us: int) -> list[Any]:
        raise NotImplementedError

    def _on_signalled(self, event: e.Signalled, now_us: int) -> list[Any]:
        if event.signum == SIGUSR1:
            return self._checkpoint()
        self._signals += 1
        self._ends = self._ends or event.signum == SIGTERM
        self._save_us, self.lost = None, False  # whoever ends it does not want it back
        name = words.signal_name(event.signum)
        running = self.crew.which(RUNNING)
        if self._signals > 1:
            told, cleared = self.saver.cut()
            self.verdict = Verdict(STOPPED, f"{name} again: ended at once{told}", 128 + event.signum)
            killed = [e.Signal(worker.number, worker.gen, SIGKILL) for worker in running]
            return [*killed, e.Tell("error", self.verdict.reason), *cleared, *self._finish(now_us)]
        if self.phase in (JUDGING, SAVING, CLOSING):
            return self._signalled_late(name, event.signum, now_us)
        if event.signum == SIGTERM and self.phase == TRAINING and self._up and running and self.plan.spec.checkpoint_dir and self.plan.joins is None:
            return self._checkpoint_first(now_us)
        grace = f" (SIGKILL after {words.span(self.plan.grace_us)})" if running else ""
        then = "saving the result" if self.plan.joins is None else "leaving the job, which goes on"
        text = f"{name}: stopping the workers{grace}, then {then}; once more ends at once"
        return [e.Tell("info", text), Verdict(STOPPED, f"stopped by {name}", 128 + event.signum)]

    def _signalled_late(self, name: str, signum: int, now_us: int) -> list[Any]:
        """All workers have ended: the result is saved as it would have been, but a run that got SIGTERM never ends with 0."""
        assert self.verdict
        text = f"{name}: all workers have ended already, this is the rest; once more ends at once"
        if signum == SIGTERM and self.verdict.exit_code == 0:
            self.verdict = self.verdict._replace(exit_code=128 + SIGTERM, reason=f"{self.verdict.reason}; {name} came before the end was saved")
            text += f" (exit code {self.verdict.exit_code}: that of {name})"
        return [e.Tell("info", text), *(self._give_up_judging(now_us) if self.phase == JUDGING else [])]

    def _least_code(self) -> int:
        """Of a run that finishes by itself: after SIGTERM never 0."""
        return 128 + SIGTERM if self._ends else 0

    # -- checkpoints

    def _checkpoint(self) -> list[Any]:
        """Asked for by SIGUSR1."""
        if self.phase != TRAINING or not self.plan.spec.checkpoint_dir or not self._up:
            return [e.Tell("info", "SIGUSR1: there is nothing now of which to make a checkpoint")]
        if self._asked:
            return [e.Tell("info", "SIGUSR1: a checkpoint is on its way already")]
        self._asked = True
        return [e.Tell("info", f"SIGUSR1: a checkpoint as soon as it can be, in {self.plan.spec.checkpoint_dir}"), self._ask("checkpoint")]

    def _checkpoint_first(self, now_us: int) -> list[Any]:
        """SIGTERM while programs train."""
        self._save_us = now_us + self.plan.grace_us
        text = f"SIGTERM: a checkpoint at the next clock (for at most {words.span(self.plan.grace_us)}), then stopping the workers; once more ends at once"
        asked = [] if self._asked else [self._ask("checkpoint")]
        self._asked = True
        return [e.Tell("info", text), *asked]

    def _checkpointed(self, event: e.Answer, now_us: int) -> list[Any]:
        """What became of it."""
        self._asked = False
        waited, self._save_us = self._save_us is not None, None
        place = self.plan.spec.checkpoint_dir
        if event.code:
            told: list[Any] = [e.Tell("warn", f"no checkpoint: {event.text}")]
            return [*told, self._without()] if waited and self.phase == TRAINING else told
        clock, number = int(event.fields.get("clock") or 0), int(event.fields.get("number") or 0)
        where = f"{place}/{number:06d}"
        what = f"checkpoint of clock {clock:,} in {where}"
        if not waited or self.phase != TRAINING:
            return [e.Tell("info", what)]
        reason = f"stopped by SIGTERM behind a checkpoint of clock {clock:,}; go on with --resume {where}"
        return [e.Tell("info", f"{what}: run again with --resume auto, or --resume {where}"), Verdict(STOPPED, reason, EX_CHECKPOINTED)]

    def _wait_no_longer(self, now_us: int) -> list[Any]:
        if self._save_us is None or now_us < self._save_us:
            return []
        self._save_us = None
        if self.phase != TRAINING:
            return []
        return [e.Tell("warn", f"no checkpoint within {words.span(self.plan.grace_us)}: ending without one"), self._without()]

    @staticmethod
    def _without() -> Verdict:
        return Verdict(STOPPED, "stopped by SIGTERM, without a checkpoint", 128 + SIGTERM)
