"""The master as a process: the state store behind a thread of its own, so that no fsync ever delays a beat."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ..core.limits import Limits
from ..runtime.keys import NO_TCP, Trust
from ..runtime.log import LogFile
from ..runtime.node import Node, run_node
from .effects import StoreCas, StoreDone
from .machine import MasterMachine
from .store import SqliteStore, StateStore

DATABASE = "master.sqlite"


def run_master(
    id_: str,
    *,
    cluster: str,
    endpoint: str,
    state: Path,
    servers: int = 1,
    log: LogFile | None = None,
    limits: Limits = Limits(),
    trust: Trust = NO_TCP,
) -> int:
    """Run master `id_` of `cluster` at `endpoint` until it is told to end; gives the exit code.

    `state` is the directory of its store.  The first job waits a while for `servers` servers, see MasterMachine.
    """

    def make(node: Node) -> MasterMachine:
        store = SqliteStore(state / DATABASE)
        perform = StoreThread(node, store)
        node.at_end(perform.close)
        node.performers[StoreCas] = perform
        incarnation = f"{node.draw(0, 0xFFFFFFFF):08x}"
        return MasterMachine(id_, incarnation, cluster, limits, servers)

    return run_node(make, id_, endpoint, limits=limits, log=log, ready_on="ready", trust=trust)


class StoreThread:
    """Performs StoreCas in a thread, one after the other, and feeds the outcome back on the loop."""

    def __init__(self, node: Node, store: StateStore) -> None:
        self.node = node
        self.store = store
        self._thread = ThreadPoolExecutor(1, "store")

    def __call__(self, effect: StoreCas) -> None:
        self._thread.submit(self._swap, effect).add_done_callback(self._swapped)

    def close(self) -> None:
        """Finish the write under way, then let the store go."""
        self._thread.shutdown(wait=True)
        self.store.close()

    def _swap(self, effect: StoreCas) -> None:
        outcome, version, value, text = self.store.cas(effect.key, effect.version, effect.value)
        done = StoreDone(effect.key, outcome, version, value, text)
        self.node.loop.call_soon_threadsafe(self.node.feed, "", done)

    def _swapped(self, future: Future[None]) -> None:
        """An error in the thread ends the process as one in the loop would."""
        error = future.exception()
        if error is not None:
            context = {"message": "in the thread of the state store", "exception": error}
            self.node.loop.call_soon_threadsafe(self.node.loop.call_exception_handler, context)
