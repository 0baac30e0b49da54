"""What one range shows: pulls when they may be answered, snapshots, scans; those that came too early wait here.

Answers come from what is applied, and only from the copy that leads.  Refuses to know how anything came to be applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.effects import Effects, Send
from ..core.errors import Code, RequestError
from ..wire import messages as m
from .contents import Contents
from .parking import Parked, Parking
from .streams import Streams


class Reads:
    """The half of a range that changes nothing."""

    def __init__(self, job: int, number: int, epoch: int, token: int, contents: Contents, parked_max: int) -> None:
        self.job, self.number = job, number
        self.epoch, self.token = epoch, token
        self.contents = contents
        self.version = 0  # log position of what is visible
        self.closed = 0  # clocks below this one are closed here
        self.streams = Streams()
        self.failure: RequestError | None = None  # why nothing can go on
        self._parking = Parking(parked_max)

    @property
    def rows(self) -> dict[int, tuple[int, int]]:
        """By worker: its incarnation, and the seq of its last push taken."""
        return self.streams.rows

    def read(self, sender: str, message: Any) -> Effects:
        """A Pull, PullAt, Scan or LastAsk."""
        found: Effects = _HANDLERS[type(message)](self, sender, message)
        return found

    def forget_parked(self) -> None:
        """Somebody else answers from here on; who waits asks again."""
        self._parking.take_if(lambda pull: True)

    def _on_last_ask(self, sender: str, ask: m.LastAsk) -> Effects:
        row_gen, last = self.rows.get(ask.worker, (0, 0))
        if ask.gen < row_gen:
            return [Send(sender, self._refuse(fenced(ask.worker, ask.gen, row_gen), ask.worker, ask.gen, 0))]
        return [Send(sender, self._last_told(ask.worker, ask.gen, last if ask.gen == row_gen else 0))]

    # -- pulls

    def _on_pull(self, sender: str, pull: m.Pull) -> Effects:
        return self._answer((Parked(sender, pull),))

    def _answer(self, asked: Sequence[Parked]) -> list[Any]:
        """Values to those who may see them, refusals to those who never will; the others wait (again)."""
        effects: list[Any] = []
        for sender, pull in asked:
            row_gen, last = self.rows.get(pull.worker, (0, 0))
            if pull.gen < row_gen:
                effects.append(Send(sender, self._refuse_pull(fenced(pull.worker, pull.gen, row_gen), pull)))
            elif self.failure is not None and (pull.worker != m.NOBODY or pull.closed > self.closed):
                effects.append(Send(sender, self._refuse_pull(self.failure, pull)))
            elif pull.after > (last if pull.gen == row_gen else 0):
                self._parking.park(sender, pull, for_push=True)
            elif pull.closed > self.closed:
                self._parking.park(sender, pull, for_push=False)
            else:
                effects.append(Send(sender, self._values(pull)))
        return effects

    def _values(self, pull: m.Pull) -> m.Values | m.Refuse:
        try:
            segments, payload = self.contents.show(pull.segments, pull.payload)
        except RequestError as refusal:
            return self._refuse_pull(refusal, pull)
        return m.Values(
            self.job, self.number, self.epoch, self.token, pull.request, self.version, self.closed, segments, payload
        )  # fmt: skip

    def _on_pull_at(self, sender: str, pull: m.PullAt) -> Effects:
        try:
            segments, payload = self.contents.show_kept(pull.at, self.closed, pull.segments)
        except RequestError as refusal:
            return [Send(sender, self._refuse(refusal, m.NOBODY, 0, 0, pull.request))]
        answer = m.Values(self.job, self.number, self.epoch, self.token, pull.request, self.version, pull.at, segments, payload)
        return [Send(sender, answer)]

    def _on_scan(self, sender: str, scan: m.Scan) -> Effects:
        try:
            segments, payload, follow = self.contents.scan(scan.at, self.closed, scan.cursor, scan.table, scan.bucket)
        except RequestError as refusal:
            return [Send(sender, self._refuse(refusal, m.NOBODY, 0, 0, scan.request))]
        answer = m.Scanned(
            self.job, self.number, self.epoch, self.token, scan.request, self.version, follow, scan.at or self.closed, segments, payload
        )  # fmt: skip
        return [Send(sender, answer)]

    def _fence_parked(self) -> list[Any]:
        """Refuse waiting pulls of incarnations that have a successor."""
        if not self._parking.count:
            return []
        return self._answer(self._parking.take_if(lambda pull: pull.gen < self.streams.gen(pull.worker)))

    # -- answers

    def _ack(self, worker: int, gen: int, seq: int) -> m.PushAck:
        behind = self.streams.behind(worker)
        return m.PushAck(self.job, self.number, self.epoch, self.token, worker, gen, seq, behind)

    def _last_told(self, worker: int, gen: int, seq: int) -> m.LastTold:
        return m.LastTold(self.job, self.number, self.epoch, self.token, worker, gen, seq)

    def _refuse(self, why: RequestError, worker: int, gen: int, seq: int, request: int = 0) -> m.Refuse:
        return m.Refuse(
            self.job, self.number, self.epoch, self.token, request, worker, gen, seq, int(why.code), why.text
        )  # fmt: skip

    def _refuse_pull(self, why: RequestError, pull: m.Pull) -> m.Refuse:
        return self._refuse(why, pull.worker, pull.gen, 0, pull.request)

    def check_parked(self, most: int) -> None:
        assert self._parking.count == len(list(self._parking)) <= most
        for _, pull in self._parking:
            gen, last = self.rows.get(pull.worker, (0, 0))
            visible = pull.after <= (last if gen == pull.gen else 0)
            assert pull.closed > self.closed or not visible, "a pull waits for nothing"


def fenced(worker: int, gen: int, newest: int) -> RequestError:
    return RequestError(Code.FENCED, f"generation {newest} of worker {worker} has taken the place of {gen}")


_HANDLERS: dict[type[Any], Any] = {
    m.Pull: Reads._on_pull,
    m.PullAt: Reads._on_pull_at,
    m.Scan: Reads._on_scan,
    m.LastAsk: Reads._on_last_ask,
}
