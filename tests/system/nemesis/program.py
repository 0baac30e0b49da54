"""A worker that counts itself and checks at every step what it may read: program.py SLACK RECORDS [CLOCKS]

SLACK is that of the job: 0 for bsp, -1 for asp.  Three tables:

    c   i64, add     element k holds the clocks that worker k has pushed; behind them lie MIXED sums of everybody's numbers
    t   i64, rows    of which each worker has some to itself, so that it knows what stands there
    m   f32, adam    only with bsp: every number depends on all that came before, in their order

RECORDS gets a record per step (clock, crc of m), and a line in RECORDS.bad for each read that must not have been.
"""

from __future__ import annotations

import struct
import sys
import time
import zlib

import numpy as np
from numpy.typing import NDArray

from plugml.client import attach

MIXED, ROWS, PUSHED, MODEL = 16, 200, 8, 4096
RECORD = struct.Struct("<qI4x")
PAUSE_S = 0.002


def mixed(worker: int, clock: int) -> NDArray[np.int64]:
    return (clock * 31 + worker * 7 + np.arange(MIXED)) % 11


def rows(worker: int, clock: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Which of the worker's rows it pushes in a clock, and what; one may come twice."""
    at = (np.arange(PUSHED) * np.arange(1, PUSHED + 1) + clock * 13) % ROWS
    return (worker * ROWS + at).astype(np.uint64), np.stack([at + clock % 5, at * 0 + worker + 1], axis=1)


def gradient(worker: int, clock: int, model: NDArray[np.float32]) -> NDArray[np.float32]:
    return (model - np.float32(0.1) * np.sin(np.arange(MODEL, dtype=np.float32) + np.float32(clock % 97) * (worker + 1))).astype(np.float32)


def main() -> None:
    slack, path, end = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1 << 40
    plug = attach()
    me, workers = plug.worker, plug.workers
    counts, model = np.zeros(workers + MIXED, np.int64), np.zeros(MODEL, np.float32)
    own = np.zeros((ROWS, 2), np.int64)
    dense = {"c": counts, "m": model} if slack == 0 else {"c": counts}
    plug.pull(dense)
    push = np.zeros(workers + MIXED, np.int64)
    push[me] = 1
    with open(f"{path}.{me}", "ab", buffering=0) as records, open(f"{path}.{me}.bad", "a", buffering=1) as bad:
        for clock in plug.clocks(end):
            if end == 1 << 40:
                time.sleep(PAUSE_S)
            push[workers:] = mixed(me, clock)
            keys, values = rows(me, clock)
            given = {"c": push, "t": (keys, values)} | ({"m": gradient(me, clock, model)} if slack == 0 else {})
            read = plug.step(given, dense, want={"t": keys})
            if plug.done:
                break
            done = clock + 1
            np.add.at(own, keys.astype(np.int64) - me * ROWS, values)
            if not np.array_equal(read["t"], own[keys.astype(np.int64) - me * ROWS]):
                bad.write(f"clock {clock}: rows {keys.tolist()} hold {read['t'].tolist()}, not {own[keys.astype(np.int64) - me * ROWS].tolist()}\n")
            for k in range(workers):
                least, most = (done, done) if k == me or slack == 0 else (0, 1 << 40) if slack < 0 else (done - slack, done + slack + 1)
                if not least <= counts[k] <= most:
                    bad.write(f"clock {clock}: {counts[k]} clocks of worker {k} are seen, and it must be {least} to {most}\n")
            records.write(RECORD.pack(clock, zlib.crc32(model)))


if __name__ == "__main__":
    main()
