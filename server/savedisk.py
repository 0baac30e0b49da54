"""The hands of checkpoints: files of ranges and manifests, written and read in one thread beside the loop.

Each piece of work is answered by an event.  After a failed sync nobody knows what the disk holds: then this process ends.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.errors import WorldError
from ..runtime import checkpoints
from ..runtime.node import Node
from ..runtime.solid import SyncError
from .effects import ManifestWritten, RangeRead, RangeWritten, ReadRange, TidySaves, WriteManifest, WriteRange
from .rangefiles import about, read_range, write_range

EX_IOERR = 74  # exit code after a failed sync


def attach(node: Node) -> None:
    """Have the node perform what checkpoints ask for."""
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
    node.at_end(lambda: pool.shutdown(wait=False, cancel_futures=True))

    def perform(work: Callable[[Any], Any]) -> Callable[[Any], None]:
        def begin(effect: Any) -> None:
            job = pool.submit(work, effect)
            job.add_done_callback(lambda job: _soon(node, job))

        return begin

    for kind, work in ((WriteRange, write), (ReadRange, read), (WriteManifest, complete), (TidySaves, tidy)):
        node.performers[kind] = perform(work)


def _soon(node: Node, job: Future[Any]) -> None:
    if not job.cancelled() and not node.loop.is_closed():
        node.loop.call_soon_threadsafe(_done, node, job)


def _done(node: Node, job: Future[Any]) -> None:
    error = job.exception()
    if isinstance(error, SyncError):
        node.stop(EX_IOERR, f"{error}; this server ends, since nothing that was written since then can be trusted")
        return
    if error is not None:
        raise error
    if job.result() is not None:
        node.feed("", job.result())


def write(effect: WriteRange) -> RangeWritten:
    root = Path(effect.spec.checkpoint_dir)
    name = checkpoints.range_file(effect.number, effect.range)
    earlier = checkpoints.range_file(effect.kept, effect.range) if effect.kept else ""
    try:
        root.mkdir(parents=True, exist_ok=True)
        done = write_range(root, name, effect.dump, about(effect.spec, effect.ring_ranges, effect.range), earlier)
    except SyncError:
        raise
    except OSError as error:
        return RangeWritten(effect.job, effect.range, effect.number, 0, 0, (), f"{root} cannot be made: {error.strerror}")
    except (WorldError, MemoryError) as error:
        return RangeWritten(effect.job, effect.range, effect.number, 0, 0, (), str(error) or "there is no memory to write it")
    refers = tuple(sorted(checkpoints.number_of(other) for other in done.refers))
    return RangeWritten(effect.job, effect.range, effect.number, done.nbytes, done.crc, refers, "")


def read(effect: ReadRange) -> RangeRead:
    place = Path(effect.place)
    try:
        name = checkpoints.range_file(int(place.name), effect.range)
        dump = read_range(place.parent, name, about(effect.spec, effect.ring_ranges, effect.range))
    except ValueError:
        return RangeRead(effect.job, effect.range, None, f"{place} is no checkpoint: its name is no number")
    except (WorldError, MemoryError) as error:
        return RangeRead(effect.job, effect.range, None, str(error) or "there is no memory for it")
    return RangeRead(effect.job, effect.range, dump, "")


def complete(effect: WriteManifest) -> ManifestWritten:
    files = {checkpoints.range_file(effect.number, number): item for number, item in effect.files.items()}
    earlier = [checkpoints.range_file(*item) for item in effect.earlier]
    try:
        checkpoints.write_manifest(Path(effect.root), effect.number, effect.document, files, earlier, effect.kept)
    except SyncError:
        raise
    except WorldError as error:
        return ManifestWritten(effect.job, effect.number, str(error))
    return ManifestWritten(effect.job, effect.number, "")


def tidy(effect: TidySaves) -> None:
    root = Path(effect.root)
    if effect.keep:
        checkpoints.tidy(root, effect.number, effect.keep)
    else:
        checkpoints.discard(root, effect.number)
