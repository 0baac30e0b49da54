"""The master as a process: the state store behind threads of its own, so that no fsync and no etcd ever delays a beat."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ..core.limits import Limits
from ..runtime.keys import NO_TCP, Trust
from ..runtime.log import LogFile
from ..runtime.node import Node, run_node
from .effects import LEADER_KEY, OK, UNKNOWN, StoreCas, StoreDone, StoreRead
from .etcd import EtcdStore, Unsure
from .machine import MasterMachine
from .reach import CallBack
from .rival import RivalMaster
from .store import SqliteStore, StateStore

DATABASE = "master.sqlite"
SQLITE = "sqlite"


def run_master(
    id_: str,
    *,
    cluster: str,
    endpoint: str,
    state: Path,
    servers: int = 1,
    copies: int = 0,
    store: str = SQLITE,
    log: LogFile | None = None,
    limits: Limits = Limits(),
    trust: Trust = NO_TCP,
) -> int:
    """Run master `id_` of `cluster` at `endpoint` until it is told to end; gives the exit code.

    `store` is "sqlite" (a file in the directory `state`, for a lone master) or the address of an etcd (`etcd://...`) that
    it shares with others.  The first job waits a while for `servers` servers, and jobs that leave it open get
    `copies`, see MasterMachine.
    """

    def make(node: Node) -> MasterMachine | RivalMaster:
        incarnation = f"{node.draw(0, 0xFFFFFFFF):08x}"
        CallBack(node, trust)
        if store == SQLITE:
            StoreThreads(node, SqliteStore(state / DATABASE))
            return MasterMachine(id_, incarnation, cluster, limits, servers, copies)
        shared = EtcdStore(store, prefix_of(cluster))
        machine = RivalMaster(id_, incarnation, node.network.endpoint, cluster, limits, servers, copies)
        StoreThreads(node, shared, lambda: resign(shared, machine))
        return machine

    return run_node(make, id_, endpoint, limits=limits, log=log, ready_on="ready", trust=trust)


def prefix_of(cluster: str) -> str:
    """Before every key in a store that clusters may share."""
    return f"/plugml/{cluster}/"


def resign(store: StateStore, machine: RivalMaster) -> None:
    """A clean end says so: the others take over at once.  If it cannot be said they do so when no beat comes."""
    if not machine.leadership.reign:
        return
    try:
        value, version = store.read(LEADER_KEY)
        word = machine.last_word(value)
        if word:
            store.cas(LEADER_KEY, version, word)
    except Unsure:
        return


class StoreThreads:
    """Performs what is asked of the store in a thread for each key, in order, and feeds the outcome back on the loop.

    A large state that is being written holds up no beat of the leader's.
    """

    def __init__(self, node: Node, store: StateStore, last: Callable[[], None] = lambda: None) -> None:
        """`last` is done when the loop has ended and nothing is asked any more."""
        self.node = node
        self.store = store
        self._last = last
        self._threads: dict[str, ThreadPoolExecutor] = {}
        node.performers[StoreCas] = node.performers[StoreRead] = self
        node.at_end(self.close)

    def __call__(self, effect: StoreCas | StoreRead) -> None:
        thread = self._threads.get(effect.key)
        if thread is None:
            thread = self._threads[effect.key] = ThreadPoolExecutor(1, f"store-{effect.key}")
        thread.submit(self._ask, effect).add_done_callback(self._asked)

    def close(self) -> None:
        """Finish the writes under way, then let the store go."""
        for thread in self._threads.values():
            thread.shutdown(wait=True)
        try:
            self._last()
        finally:
            self.store.close()

    def _ask(self, effect: StoreCas | StoreRead) -> None:
        done = self._read(effect) if isinstance(effect, StoreRead) else self._swap(effect)
        self.node.loop.call_soon_threadsafe(self.node.feed, "", done)

    def _swap(self, effect: StoreCas) -> StoreDone:
        outcome, version, value, text = self.store.cas(effect.key, effect.version, effect.value)
        return StoreDone(effect.key, outcome, version, value, text, effect.number)

    def _read(self, effect: StoreRead) -> StoreDone:
        try:
            value, version = self.store.read(effect.key)
        except Unsure as error:
            return StoreDone(effect.key, UNKNOWN, 0, b"", str(error), effect.number)
        return StoreDone(effect.key, OK, version, value, "", effect.number)

    def _asked(self, future: Future[None]) -> None:
        """An error in a thread ends the process as one in the loop would."""
        error = future.exception()
        if error is not None:
            context = {"message": "in a thread of the state store", "exception": error}
            self.node.loop.call_soon_threadsafe(self.node.loop.call_exception_handler, context)
