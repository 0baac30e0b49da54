"""A scripted agent that cannot be rung before the request is there: the order of a program's writes comes to light.

The FIFO `req` is full, so that a bell blocks the program (or is as good as rung, if it does not block).  The agent looks
at `cmd` instead; when a new line has come it waits until the program sleeps in its bell, takes what it has done until
then, and lets it ring.  Whoever rings before the line is there sleeps for ever, and whoever touches a file after the bell
does it under the agent's eyes.  After some requests the bell is as it should be.
"""

from __future__ import annotations

import fcntl
import os
import select
import time

from ..channel import AgentChannel
from .agent import ScriptedAgent
from .observer import LINGERED, Observer
from .talk import Talk

RING_WITHIN_S = 0.1  # a program that has written the line rings before; one that does not block is not waited for longer
_LOOK_S = 0.002
_PIPE_BYTES = 4096
_LATE_BELLS = 100  # more at once are of a program that rings without end; it is heard as it rings


class MuffledAgent(ScriptedAgent):
    """For one worker whose `Observer` it is given before it starts."""

    observer: Observer

    def muffle(self, observer: Observer) -> None:
        """Fill the bell; it is filled again before each answer."""
        self.observer = observer
        self.attend(observer)
        fcntl.fcntl(self.kept[0].req_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        observer.before_answer = self._fill
        self._fill()

    def _fill(self) -> None:
        """Nobody rings now: the program has not begun, or waits for its answer."""
        talk = self.talks[0]
        if talk.channel is None:
            return
        if self.observer.answered < LINGERED:
            self._muffle_again(talk.channel)
            return
        talk.channel.drain_bell()
        if self.observer.eye.fd in self._talk_of:
            self._poll.unregister(self.observer.eye.fd)
            del self._talk_of[self.observer.eye.fd]
            super()._watch(talk)

    def _muffle_again(self, channel: AgentChannel) -> None:
        """Also over bells that came late: a program that was not waited for long enough sleeps in one until there is room."""
        for _ in range(_LATE_BELLS):
            channel.drain_bell()
            try:
                os.write(self.kept[0].req_fd, bytes(_PIPE_BYTES))
            except BlockingIOError:  # the late bell has taken the room first
                continue
            return

    def _watch(self, talk: Talk) -> None:
        self._talk_of[self.observer.eye.fd] = talk
        self._poll.register(self.observer.eye.fd, select.EPOLLIN)

    def _heard(self, fd: int) -> None:
        if fd != self.observer.eye.fd:
            super()._heard(fd)
            return
        talk = self._talk_of[fd]
        self.observer.look()
        if talk.channel is None or self.observer.owes or not self.observer.line_has_come():
            return
        self._let_it_ring(talk)
        self._guarded(talk, talk.bell)

    def _let_it_ring(self, talk: Talk) -> None:
        """Until the program sleeps in its bell; then make room for it, and hear it."""
        end = time.monotonic() + RING_WITHIN_S
        while time.monotonic() < end and not (self.observer.group and self.observer.group.blocked_on_pipe("write")):
            time.sleep(_LOOK_S)  # the kernel tells of no process that it has fallen asleep
        assert talk.channel is not None
        self.observer.let_ring()
        talk.channel.drain_bell()
        select.select([self.kept[0].req_fd], [], [], RING_WITHIN_S / 2)
