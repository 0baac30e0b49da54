"""How the result comes to its place: room, values, files, and another place where the first one does not take them.  Pure.

    PrepareResult -> export -> PublishResult        each may fail: once more in the rescue directory, then never
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.jobmap import FAILED, STOPPED
from . import effects as e
from .crew import Crew


class Saver:
    """`done`: there is nothing left to do; `saved` is the directory then, "" when nothing was, and `failure` says why.

    `rescued`: why the result goes to the rescue directory, "" when it does not.
    """

    def __init__(self, crew: Crew, ask: Callable[..., e.Ask], rescue: str) -> None:
        self.saved = ""
        self.files: tuple[str, ...] = ()
        self.failure = ""
        self.rescued = ""
        self.done = False
        self.place = ""
        self._crew = crew
        self._ask = ask
        self._rescue = rescue
        self._scratch = ""
        self._writing = False

    def begin(self, state: str) -> list[Any]:
        """What a failed run leaves must not be taken for a result, nor cover an earlier one; nor what was cut short a finished one."""
        plan = self._crew.plan
        aside = "/failed" if state == FAILED else "/stopped" if state == STOPPED and plan.finished_before else ""
        self.place = plan.result + aside
        return [e.PrepareResult(self.place)]

    def nobody_has_it(self, text: str) -> list[Any]:
        """The values are gone, or whoever could tell them."""
        self._rescue = ""
        return self.on_failed(text)

    def on_ready(self, event: e.ResultReady) -> list[Any]:
        self._scratch = event.scratch
        return [self._ask("export", dir=event.scratch)]

    def exported(self, event: e.Answer, document: dict[str, Any]) -> list[Any]:
        if event.code:
            return self.on_failed(f"{event.code}: {event.text}")
        self._writing = True
        return [e.PublishResult(self._scratch, self.place, document)]

    def cut(self) -> tuple[str, list[Any]]:
        """All ends now: what becomes of the result, in words, and what is to be cleared away.  Files that are being written are finished."""
        if self.saved:
            return "", []
        if self._writing:
            return ", when the result that is just being written is whole", []
        return ", nothing saved", [e.DiscardResult(self._scratch)] if self._scratch else []

    def on_saved(self, event: e.ResultSaved) -> list[Any]:
        self.saved, self.files, self.done, self._writing = event.directory, event.files, True, False
        self._crew.warnings += event.warnings
        return [e.Tell("warn", text) for text in event.warnings]

    def on_failed(self, why: str) -> list[Any]:
        """Try the rescue directory, once."""
        self.failure = f"the result could not be saved in {self.place}: {why}"
        self._writing = False
        self._crew.warnings.append(self.failure)
        out: list[Any] = [e.Tell("error", self.failure)]
        if self._scratch:
            out.append(e.DiscardResult(self._scratch))
            self._scratch = ""
        if self._rescue and not self._crew.deserted:
            self.rescued, self.place, self._rescue = self.failure, self._rescue, ""
            return [*out, e.Tell("warn", f"saving it in {self.place} instead"), e.PrepareResult(self.place)]
        self.done = True
        return out
