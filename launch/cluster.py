"""A cluster on this host: masters (with their etcd), servers and agent as our children, started, watched, restarted and taken down.

    LocalCluster   a standing one (`plugml up`) or a private one (`plugml run`)
    Report         tells the master at once who has ended

Owns the children, the cluster's lock and file, and the notify socket by which children say that they are ready.
Decides nothing but restarts (`Patience`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

from ..core.errors import KeysError, WorldError
from ..core.limits import Limits
from ..runtime.keys import Trust
from ..runtime.network import Network
from ..runtime.node import node_name, now_us
from ..runtime.output import Piece
from ..runtime.process import Child, Exit, spawn
from ..shm_protocol.root import prepare_root
from ..wire.messages import Done, Message, NodeExit
from . import discovery, etcd, resize
from .daemon import ETCD, FROM_OUTSIDE, RARELY_US, Daemon, command, environment
from .discovery import ClusterFile
from .keeper import end_keepers
from .reach import admin_trust, make_cluster_keys

GRACE_S = 5.0  # for a child that was told to end
FOLLOWS_S = 1.0  # a server's end is told without what follows from it when no master has said that by then
WAIT_SAID_S = 10.0  # a wait says after this what it waits for
NOTIFY_BYTES_MAX = 4096
CREDENTIALS = struct.Struct("iII")  # pid, uid, gid of a sender

Say = Callable[[str], None]


class LocalCluster:
    """The masters that `file` names (several with an etcd member each), `servers` servers and an agent, all children of this process.

    `start` returns at once; `wait_ready` waits.  `stop` leaves nothing: no process, no socket, no root (and with
    `private` no state either; `keep_logs` is a directory that then gets the logs if one of the processes failed).
    `check` is called before each child is started: what it raises ends the start.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        file: ClusterFile,
        environ: Mapping[str, str],
        *,
        servers: int = 2,
        copies: int = 0,
        private: bool = False,
        keep_logs: Path | None = None,
        allow_disk: bool = False,
        verbose: bool = False,
        say: Say = lambda text: None,
        check: Callable[[], None] = lambda: None,
        limits: Limits = Limits(),
    ) -> None:
        self.loop = loop
        self.file = file._replace(pid=os.getpid(), keeper="run" if private else "up")
        #: Called with a sentence, and whether the cluster cannot go on.
        self.on_news: Callable[[str, bool], None] = lambda text, fatal: self._say(text)
        self.daemons = [Daemon(ETCD, id_) for id_ in etcd.members(len(file.masters))]
        self.daemons += [Daemon("master", id_) for id_ in file.masters]
        self.daemons += [Daemon("server", f"s{number}") for number in range(servers)]
        self.daemons.append(Daemon("agent", "a0"))
        self.ready: asyncio.Future[None] = loop.create_future()
        self._environ = environ
        self._servers = servers
        self._copies = copies
        self._private = private
        self._keep_logs = keep_logs
        self._failed = False  # a process of ours ended by itself
        self._allow_disk = allow_disk
        self._verbose = verbose
        self._say = say
        self._check = check
        self._limits = limits
        self._hold: discovery.Hold | None = None
        self._notify: socket.socket | None = None
        self._report: Report | None = None
        self._stopping = False
        self._ended = asyncio.Event()

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def root(self) -> Path:
        return self.file.root

    # -- start --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take the lock, make root and state, start every child.  Raises PlugmlError, with nothing left behind."""
        self._hold = discovery.Hold(self.file)
        try:
            for warning in prepare_root(self.root, allow_disk=self._allow_disk):
                self._say(warning)
            discovery.make_private(self.root / "ipc")
            self._hold.publish()
            if len(self.file.masters) > 1:
                discovery.make_private(self.file.state / etcd.DIRECTORY)
            self._notify = self._listen()
            self._report = Report(self.loop, self.file.masters, self._limits, admin_trust(self.file, {}))
            for daemon in self.daemons:
                self._check()
                self._spawn(daemon)
        except OSError as error:
            self._tidy()
            raise WorldError(f"cannot start cluster {self.name}: {error}") from error
        except BaseException:
            self._tidy()
            raise

    async def wait_ready(self) -> None:
        """Until every child has said that it is ready; says after 10 s, and every 10 s, whom it waits for."""
        while True:
            done, _ = await asyncio.wait([self.ready], timeout=WAIT_SAID_S)
            if done:
                await self.ready
                return
            late = [daemon.id for daemon in self.daemons if not daemon.ready]
            self._say(f"still waiting for {', '.join(late)} to be ready; the logs are in {self.file.logs}")

    def _spawn(self, daemon: Daemon) -> None:
        daemon.started_us = now_us()
        log = self.file.logs / f"{daemon.id}.log"
        for path in etcd.sockets(self.file, daemon.id) if daemon.role == ETCD else ():
            path.unlink(missing_ok=True)
        daemon.child = spawn(
            self.loop,
            command(daemon, self.file, log, self._servers, self._allow_disk, self._verbose, self._copies),
            env=environment(self._environ, self.root / "ipc" / "notify"),
            # No file system is kept busy, and no module of the user's directory is imported.
            cwd="/" if daemon.role != ETCD else str(etcd.home(self.file)),
            on_exit=lambda exit_: self._exited(daemon, exit_),
            on_stderr_piece=lambda piece: self._overheard(daemon, piece),
        )

    # -- what children say --------------------------------------------------------------------------------------------

    def _listen(self) -> socket.socket:
        """The address that children know as NOTIFY_SOCKET, the same words as for systemd.  The kernel says who speaks."""
        path = self.root / "ipc" / "notify"
        path.unlink(missing_ok=True)
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        channel.bind(os.fspath(path))
        self.loop.add_reader(channel.fileno(), self._notified)
        return channel

    def _notified(self) -> None:
        while self._notify is not None:
            try:
                text, credentials, _, address = self._notify.recvmsg(NOTIFY_BYTES_MAX, socket.CMSG_SPACE(CREDENTIALS.size))
            except BlockingIOError:
                return
            pid, uid, _ = CREDENTIALS.unpack(credentials[0][2]) if credentials else (0, -1, -1)
            fields = dict(line.partition("=")[::2] for line in text.decode(errors="replace").splitlines())
            if resize.FIELD in fields and address and uid == os.getuid():
                self._ordered(resize.wanted(fields[resize.FIELD]), fields.get(resize.TAKEN, "").split(","), address)
            for daemon in self.daemons:
                if daemon.child is not None and daemon.child.pid == pid:
                    daemon.node = fields.get("X_PLUGML_NODE", daemon.node)
                    daemon.served |= fields.get("X_PLUGML_SERVED") == "1"
                    if fields.get("READY") == "1":
                        self._is_ready(daemon)

    def _ordered(self, count: int | None, taken: list[str], address: str) -> None:
        """Somebody asks for so many servers (0 = asks only).  Those that go are empty by then: whoever ordered it has seen to that."""
        error = ""
        if count is None or not self.ready.done():
            error = f"cluster {self.name} is not ready yet" if count is not None else "that is no number of servers"
        elif count and not self._stopping:
            error = self._resize(count, taken)
        assert self._notify is not None
        try:
            self._notify.sendto(resize.answer([daemon.id for daemon in self._servers_kept()], error), address)
        except OSError:
            return  # whoever asked has gone, and may ask again

    def _servers_kept(self) -> list[Daemon]:
        kept = [daemon for daemon in self.daemons if daemon.role == "server" and not daemon.leaving]
        return sorted(kept, key=lambda daemon: int(daemon.id[1:]))

    def _resize(self, count: int, taken: list[str]) -> str:
        """Start or end servers until there are so many; gives what went wrong."""
        kept = self._servers_kept()
        names = {*taken, *(daemon.id for daemon in self.daemons if daemon.role == "server")}
        free = (name for number in range(resize.SERVERS_MAX * 2) if (name := f"s{number}") not in names)
        new = list(itertools.islice(free, max(0, count - len(kept))))
        try:
            if new and self.file.is_spread and self.file.security != "insecure":
                make_cluster_keys(self.file, new)
            for name in new:
                daemon = Daemon("server", name)
                self._spawn(daemon)
                self.daemons.append(daemon)
        except (OSError, KeysError) as error:
            return f"no more servers can be started: {error}"
        for daemon in kept[count:]:
            daemon.leaving = True
            if daemon.child is not None:
                daemon.child.stop(GRACE_S, daemon.ending)
            elif daemon.timer is not None:  # it was waiting to be started again
                daemon.timer.cancel()
                self.daemons.remove(daemon)
        self._servers = count
        return ""

    def _is_ready(self, daemon: Daemon) -> None:
        daemon.ready = True
        daemon.farewell()
        if daemon.lost:
            daemon.lost = False
            self.on_news(f"{daemon.title} is back" + (f" as {daemon.node}" if daemon.node not in ("", daemon.id) else ""), False)
        if all(other.ready for other in self.daemons) and not self.ready.done():
            self.ready.set_result(None)

    def _overheard(self, daemon: Daemon, piece: Piece) -> None:
        if self._verbose and piece.text:
            self._say(f"[{daemon.id}] {piece.text}")

    # -- when one ends ------------------------------------------------------------------------------------------------

    def _exited(self, daemon: Daemon, exit_: Exit) -> None:
        child, daemon.child = daemon.child, None
        if self._stopping:
            self._ended.set()
            return
        if daemon.leaving:
            self.daemons.remove(daemon)
            if self._report is not None and daemon.node:
                self._report.tell(daemon.node, exit_.status, lambda follows: None)
            return

        self._failed = self._failed or exit_.signum not in FROM_OUTSIDE
        wait_us = daemon.patience.wait_us(daemon.ready, daemon.served, now_us() - daemon.started_us, exit_.signum)
        node, daemon.node = daemon.node, ""
        daemon.ready, daemon.served, daemon.lost = False, False, True
        words = f"{daemon.title} ended ({exit_})" + self._last_words(child)
        if wait_us is None and any(other.ready and other.role == daemon.role for other in self.daemons):
            wait_us = RARELY_US  # the others do without it
        if wait_us is None or (not self.ready.done() and not exit_.signum):
            self._give_up(words)
            return
        daemon.farewell = farewell = self._farewell(words)
        if self._report is not None and node and daemon.role != "master":
            self._report.tell(node, exit_.status, farewell)
        if daemon.role == "server":  # whoever reads it wants to know what it has cost
            self.loop.call_later(FOLLOWS_S, farewell)
        else:
            farewell()
        daemon.timer = self.loop.call_later(wait_us / 1e6, self._restart, daemon)

    def _farewell(self, words: str) -> Callable[..., None]:
        """A function that says once that a daemon has ended, and what follows from it as far as a master has told."""
        unsaid = [words]

        def say(follows: str = "") -> None:
            if unsaid and not self._stopping:
                self.on_news("; ".join(filter(None, (unsaid.pop(), follows, "it is started again"))), False)

        return say

    def _restart(self, daemon: Daemon) -> None:
        daemon.timer = None
        try:
            self._spawn(daemon)
        except OSError as error:
            self._give_up(f"{daemon.title} cannot be started again: {error}")

    def _give_up(self, words: str) -> None:
        text = f"cluster {self.name} cannot go on: {words}; its log is in {self._keep_logs or self.file.logs}"
        if not self.ready.done():
            self.ready.set_exception(WorldError(text))
        self.on_news(text, True)

    @staticmethod
    def _last_words(child: Child | None) -> str:
        lines = child.stderr.tail.lines(1) if child is not None else []
        return f": {lines[0].removeprefix('plugml: ')}" if lines else ""

    # -- the end ------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close the channels by hand, tell every child to end, kill who does not within the grace, and remove what was made.

        May be called twice.
        """
        if self._hold is not None and not self._stopping:  # else the root is not, or not any more, ours
            closed = await end_keepers(self.root, GRACE_S)
            if closed:
                self._say(f"closed with the cluster: channel {', '.join(closed)}")
        self._stopping = True
        for daemon in self.daemons:
            if daemon.timer is not None:
                daemon.timer.cancel()
        # The etcd goes last: masters say there that they end.
        for group in ([d for d in self.daemons if d.role != ETCD], [d for d in self.daemons if d.role == ETCD]):
            for daemon in group:
                if daemon.child is not None:
                    daemon.child.stop(GRACE_S, daemon.ending)
            while any(daemon.child for daemon in group):
                self._ended.clear()
                await self._ended.wait()
        self._tidy()

    def _tidy(self) -> None:
        self._stopping = True
        for daemon in self.daemons:
            if daemon.child is not None:
                daemon.child.end_now()
        if self._report is not None:
            self._report.close()
            self._report = None
        if self._notify is not None:
            self.loop.remove_reader(self._notify.fileno())
            self._notify.close()
            self._notify = None
        if not self.ready.done():
            self.ready.cancel()
        if self._hold is not None:
            if self._failed and self._keep_logs is not None:
                self._save_logs(self._keep_logs)
            self._hold.withdraw(purge=self._private)
            self._hold = None

    def _save_logs(self, directory: Path) -> None:
        """The state goes away with the cluster, but the story of a failure stands nowhere else."""
        try:
            for log in sorted(self.file.logs.glob("*.log")):
                shutil.copyfile(log, directory / log.name)
        except OSError as error:
            self._say(f"the logs of cluster {self.name} could not be kept in {directory}: {error.strerror}")
        else:
            self._say(f"the logs of master, servers and agent are kept in {directory}")


class Report:
    """Tells every master of an exit, again until one has answered: then nobody waits for beats that cannot come."""

    def __init__(self, loop: asyncio.AbstractEventLoop, masters: Mapping[str, str], limits: Limits, trust: Trust) -> None:
        self._loop = loop
        self._masters = masters
        self._limits = limits
        self._network = Network(loop, node_name("u0"), None, self._on_message, limits, trust=trust)
        self._open: dict[int, tuple[NodeExit, Callable[[str], None]]] = {}
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        for id_, endpoint in masters.items():
            self._network.connect(id_, endpoint)

    def tell(self, node: str, status: int, told: Callable[[str], None]) -> None:
        """`told` hears the master's answer: what follows from the end, "" = nothing."""
        self._number += 1
        self._open[self._number] = NodeExit(self._number, node, status), told
        self._send()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._network.close(linger_ms=0)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for message, _ in self._open.values():
            for id_ in self._masters:
                self._network.send(id_, message)
        if self._open:
            self._timer = self._loop.call_later(self._limits.resend_us / 1e6, self._send)

    def _on_message(self, sender: str, message: Message) -> None:
        if isinstance(message, Done) and message.request in self._open:
            _, told = self._open.pop(message.request)
            told(message.text)
