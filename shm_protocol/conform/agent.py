"""The scripted agent: channels of one job, a thread that serves them, deaths and adoptions as the script says.

    with ScriptedAgent(spec, ["restart@3:5"]) as agent:
        subprocess.run(command, env=agent.environment(0))
    agent.server.values, agent.lines, agent.remarks

It is launcher and agent at once: it makes the channels and keeps them.  What happens between a bell and its reply is
`talk.py`.
"""

from __future__ import annotations

import os
import select
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...core.job import JobSpec
from .. import numbers
from ..channel import AgentChannel, adopt, agent_number
from ..create import Channel, create_channel
from ..files import DiskFiles
from ..info import Info, environment, without
from ..root import boot_id, remove_channel
from .fakeroot import hold, new_root
from .faults import Fault, Killed, Script
from .server import PlainServer
from .talk import Talk
from .watch import Watch

_QUIT = b"q"
_LEAVE_MAX = 100  # workers whose end can be told: one byte each, below the letter above


class ScriptedAgent:
    """Serves the channels of one job in a thread.  `with ScriptedAgent(spec) as agent: ... agent.environment(0)`."""

    def __init__(
        self,
        spec: JobSpec,
        faults: Sequence[Fault | str] = (),
        root: Path | None = None,
        gen: int = 1,
        clock: int = 0,
    ) -> None:
        self.spec = spec
        self.script = Script(faults)
        self.infos = [Info.of(spec, worker, gen, boot_id(), clock, number=1) for worker in range(spec.workers)]
        self.server = PlainServer(spec, self.infos[0])
        self.server.finished = [clock] * spec.workers
        self.server.closed = clock
        self._own_root = root is None
        self.root = root or new_root()
        self.kept: list[Channel] = []
        self._root_fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self._own_root:
                hold(self._root_fd)
            for info in self.infos:
                self.kept.append(create_channel(self.root, info))
            self.talks = [
                Talk(worker, kept, adopt(self._root_fd, kept.name, agent_number()), self.server, self.script)
                for worker, kept in enumerate(self.kept)
            ]
        except BaseException:
            self._remove()
            raise
        self.deaths = 0
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.epoll()
        self._talk_of: dict[int, Talk] = {}
        self._thread = threading.Thread(target=self._serve, name="scripted-agent")
        self._failure: BaseException | None = None

    # -- for whoever runs the programs

    def __enter__(self) -> ScriptedAgent:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()
        self.close()
        if self._failure:
            raise self._failure

    def attend(self, watch: Watch) -> None:
        """From here on somebody looks on; to be said while no request is under way."""
        for talk in self.talks:
            talk.attend(watch)

    def stop(self) -> None:
        """Serve no more.  May be repeated."""
        if self._thread.is_alive():
            os.write(self._wake_w, _QUIT)
            self._thread.join()

    def close(self) -> None:
        """Remove the channels; after `stop`."""
        for channel in self.channels:
            if channel is not None:
                channel.close()
        self._poll.close()
        for fd in (self._wake_r, self._wake_w):
            os.close(fd)
        self._remove()

    def _remove(self) -> None:
        for kept in self.kept:
            kept.close()
            remove_channel(self._root_fd, kept.name)  # the script may have let go of it without that
        os.close(self._root_fd)
        if self._own_root:
            shutil.rmtree(self.root)

    def environment(self, worker: int = 0) -> dict[str, str]:
        """A whole environment for the program of `worker`."""
        directory = str(self.kept[worker].directory)
        out = str(self.root)
        count = self.spec.workers
        own = environment(self.infos[worker], directory, local_worker=worker, local_workers=count, out=out, plugml_version="0")
        return {**without(os.environ), **own}

    def leave(self, worker: int) -> None:
        """The program of `worker` has ended: nobody waits for it any more.  Any thread may call it."""
        os.write(self._wake_w, bytes([worker]) if worker < _LEAVE_MAX else b"")

    @property
    def channels(self) -> list[AgentChannel | None]:
        return [talk.channel for talk in self.talks]

    @property
    def lines(self) -> list[list[str]]:
        """The request lines that each worker sent, in order."""
        return [talk.lines for talk in self.talks]

    @property
    def remarks(self) -> list[str]:
        return [remark for talk in self.talks for remark in talk.remarks]

    @property
    def byes(self) -> set[int]:
        return {talk.worker for talk in self.talks if talk.said_bye}

    @property
    def fired(self) -> list[str]:
        return self.script.fired

    def report(self) -> dict[str, Any]:
        server = self.server
        return {
            "param": {t.name: numbers.view(server.values, t).tolist() for t in self.infos[0].dense},
            "rows": {t.spec.name: {row: t.rows[row].tolist() for row in sorted(t.rows)} for t in server.tables if t.spec.kind == "sparse"},
            "pushes": server.pushes,
            "clocks": server.finished,
            "closed": server.closed,
            "done_seq": [channel.done_seq if channel else None for channel in self.channels],
            "lines": self.lines,
            "bye": sorted(self.byes),
            "deaths": self.deaths,
            "fired": self.fired,
            "remarks": self.remarks,
            "counters": [channel.counters() if channel else None for channel in self.channels],
        }

    # -- the thread

    def _serve(self) -> None:
        try:
            self._poll.register(self._wake_r, select.EPOLLIN)
            for talk in self.talks:
                self._watch(talk)
            while self._turn():
                pass
        except BaseException as failure:  # noqa: BLE001  whoever made the agent raises it again
            self._failure = failure
            for talk in self.talks:
                talk.give_up()

    def _watch(self, talk: Talk) -> None:
        fd = _bell_of(talk)
        self._talk_of[fd] = talk
        self._poll.register(fd, select.EPOLLIN)

    def _turn(self) -> bool:
        """One round of bells and words from outside; False = the end was asked for."""
        for fd, _events in self._poll.poll(self._sleep_s()):
            if fd == self._wake_r:
                words = os.read(fd, 4096)
                for worker in words.replace(_QUIT, b""):
                    self.server.leave(worker)
                if _QUIT in words:
                    return False
                continue
            self._heard(fd)
        for talk in self.talks:
            self._guarded(talk, talk.go_on)
        return True

    def _heard(self, fd: int) -> None:
        talk = self._talk_of[fd]
        if talk.channel is None or not talk.channel.drain_bell():
            self._poll.unregister(fd)
            return
        self._guarded(talk, talk.bell)

    def _sleep_s(self) -> float:
        """Until the first request that waits for a while; -1 = until a bell."""
        ends = [talk.wake_at for talk in self.talks if talk.wake_at is not None]
        return max(0.0, min(ends) - time.monotonic()) if ends else -1

    def _guarded(self, talk: Talk, action: Callable[[], None]) -> None:
        """Do something as the agent; if the script kills it, be the next agent."""
        while True:
            try:
                action()
                return
            except Killed:
                fd = _bell_of(talk)
                self._poll.unregister(fd)
                del self._talk_of[fd]
                talk.killed()
                self.deaths += 1
                talk.adopted(adopt(self._root_fd, self.kept[talk.worker].name, agent_number()))
                self._watch(talk)
                action = lambda: talk.bell(adopted=True)  # noqa: E731


def _bell_of(talk: Talk) -> int:
    """The descriptor on which the worker's bell is heard."""
    assert talk.channel is not None and isinstance(talk.channel.files, DiskFiles)
    return talk.channel.files.req_fd
