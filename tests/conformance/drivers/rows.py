"""Does what its arguments say with rows of sparse tables, pieces of input and limits, and prints the outcome of each.

See test_clients_rows.py.  `rows.c`, `rows.R` and `rows.sh` do and print the same:

    rows:TABLE:KEY,KEY:CONSTANT    push constant + 10 i + j to element j of the i-th row, with the next request
    want:TABLE:KEY,KEY             its rows with the next request
    push pull pushpull step async  the request; `step:5` takes the dense tables along (5, 6, 7 ...), `pull:` too
    tick ping next timeout:MS bye; end: without bye
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

from plugml.client import ChannelError, attach

if "UNPAUSED" in os.environ:
    time.sleep = lambda seconds: None

plug = attach(mapped="-u" not in sys.argv)
pushed: dict[str, Any] = {}
wanted: dict[str, Any] = {}
limit: float | None = None


def keys_of(table: str, text: str) -> Any:
    words = text.split(",") if text else []
    if table in plug.sparse and plug.sparse[table].index_type == "str":
        return words
    return np.array([int(word) for word in words], np.uint64)


def numbers_of(row: np.ndarray) -> str:
    return ",".join(f"{number:.9g}" for number in row.tolist())


def do_request(verb: str, rest: list[str]) -> str:
    g: Any = dict(pushed)
    want = dict(wanted) if wanted else None
    pushed.clear()
    wanted.clear()
    dense = plug.tables[0] if plug.tables and rest else None
    w = np.zeros(dense.shape, dense.dtype) if dense else None
    if dense and rest[0]:
        g[dense.name] = float(rest[0]) + np.arange(dense.elements).reshape(dense.shape)
    got: Any = {}
    if verb == "step":
        got = plug.step(g or None, w, want=want, timeout=limit)
    elif verb == "pushpull":
        got = plug.pushpull(g or None, w, want=want, timeout=limit)
    elif verb == "pull":
        got = plug.pull(w, want=want, timeout=limit)
    else:
        plug.push(g or None, wait=verb == "push", timeout=limit)
    shown = f" w={numbers_of(w.ravel())}" if w is not None and verb not in ("push", "async") else ""
    for table in want or {}:
        if got:
            shown += f" {table}={';'.join(map(numbers_of, got[table]))}"
    return shown


def do_one(op: str) -> None:
    global limit
    verb, *rest = op.split(":")
    if verb == "rows":
        table, keys, constant = rest
        rows = keys_of(table, keys)
        width, dtype = (plug.sparse[table].width, plug.sparse[table].dtype) if table in plug.sparse else (1, np.dtype(float))
        pushed[table] = rows, (float(constant) + 10.0 * np.arange(len(rows))[:, None] + np.arange(width)).astype(dtype)
        return
    if verb == "want":
        wanted[rest[0]] = keys_of(rest[0], rest[1])
        return
    if verb == "timeout":
        limit = int(rest[0]) / 1000 if int(rest[0]) else None
        return
    stopped, shown, code = plug.stopped, "", "OK"
    outcome = "1" if plug else "0"
    try:
        if verb == "next":
            piece = plug.next()
            shown = f" {piece.number}:{piece.turn}:{piece.text}" if piece else " none"
        elif verb == "tick":
            plug.tick(timeout=limit)
        elif verb == "ping":
            plug.ping()
        else:
            shown = do_request(verb, rest)
        if stopped and verb in ("push", "async", "pushpull", "step", "tick"):
            outcome, code, shown = "S", "STOP", ""
    except ChannelError as error:
        outcome, code, shown = "E", error.code.name, ""
        print(f"clock {plug.clock}: {error}", file=sys.stderr)
    print(f"{op} {outcome} {code} clock={plug.clock} stopped={int(plug.stopped)} lag={plug.lag}{shown}", flush=True)


for argument in sys.argv[1:]:
    if argument == "bye":
        break
    if argument == "end":
        sys.exit()
    if argument != "-u":
        do_one(argument)
plug.bye()
