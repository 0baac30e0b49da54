"""The golden files that every implementation must read alike, and how they came to be.

    python -m tests.conformance.golden [--write]

`golden/` holds a ctl page, info files, request lines, reply records, one array per dtype, and a push of rows: its files and
the copy in `pend.0`.  `golden.json` says what a reader must find in them.  They change only with the version of the protocol.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from plugml.core.errors import Code
from plugml.core.job import JobSpec
from plugml.core.keys import name_hash
from plugml.core.table import DTYPES, TableSpec
from plugml.shm_protocol import kept, numbers, page
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.request import Reply, Request, Section, format_reply, format_request, parse_request

DIRECTORY = Path(__file__).resolve().parent / "golden"
BOOT = "00112233445566778899aabbccddeeff"
SPEC = JobSpec(
    "digits", 4,
    (
        TableSpec("weights", (2, 3), order="F"),
        TableSpec("bias", (5,), dtype="f64"),
        TableSpec("counts", (2,), dtype="i64", optimizer="add"),
    ),
    seed=20,
)  # fmt: skip
INFO = Info.of(SPEC, 2, 3, BOOT, 17, number=9)
MOVING = page.Moving(41, 42, 17, 1234567890123, 0, page.BUSY, 111_222_333_444, 0x0123456789ABCDEF, 43, page.FLAG_STOP)
RESULT = page.Result(41, 17, 1234567890123, 0, page.FLAG_STOP, 2.5, 40)
LOG = (page.Logged(3, 1_700_000_000_000_000_000, 1_700_000_100_000_000_000, "SIZE seq=5: grad has 8 bytes"), page.Logged(1, 7, 7, "AGAIN"))
COUNTERS = {"requests": 41, "pushes": 40, "pulls": 39, "errors": 1, "bytes_pushed": 4800}

REQUESTS = (
    Request("hello", 0, 17), Request("init", 1, 17), Request("push", 2, 17, n=13, weight=37.0), Request("pull", 3, 17),
    Request("pushpull", 4, 17, weight=0.1), Request("step", 5, 17, text=True), Request("clock", 6, 18), Request("next", 7, 19),
    Request("ping", 8, 19), Request("bye", 9, 19), Request("step", 9223372036854775807, 9223372036854775807, n=13, weight=1e-300),
    Request("push", 10, 19, timeout_ms=500, unwaited=True, sections=(Section("users", 3, 0),)),
    Request("step", 11, 19, n=13, sections=(Section("users", 3, 2), Section("items", 0, 12))), Request("pull", 12, 20, sections=(Section("items", 0, 1),)),
)  # fmt: skip
REPLIES = (
    Reply(True, 0, 17, 5, done=41), Reply(True, 1, 18, 48, 13), Reply(True, 2, 18), Reply(True, 3, 19, 49, 13, lag=2, stop=True),
    Reply(True, 4, 20, 50, 13, rows=14), Reply(True, 5, 20, rows=1, lag=0), Reply(True, 6, 20, n=15),
    *(Reply(False, 10 + code, 19, code=code) for code in Code if code is not Code.OK),
    Reply(True, 9223372036854775807, 9223372036854775807, 18446744073709551615, 13, lag=3),
)  # fmt: skip
#: The example of SPEC.md 3: a dense table, rows named by numbers, rows named by keys.
ROWS = JobSpec(
    "rows", 1,
    (
        TableSpec("w", (10,)),
        TableSpec("e", (1000, 3), "sparse", index="u32", batch=4),
        TableSpec("f", (0, 2), "sparse", dtype="f64", index="str", batch=2, storage="f32"),
    ),
)  # fmt: skip
ROWS_INFO = Info.of(ROWS, 0, 1, BOOT, 0, number=1)
PUSH = Request("step", 5, 4, n=10, sections=(Section("e", 3, 1), Section("f", 1, 0)))
IDS = [999, 0, 999]
KEY = "größe"
#: The same bits in every language: ends of the ranges, signed zero, denormals, thirds.
ARRAYS: dict[str, list[Any]] = {
    "f32": [0.0, -0.0, 1.0, -2.5, float(np.float32(1 / 3)), 3.4028234663852886e38, 1.401298464324817e-45, 16777217.0],
    "f64": [0.0, -0.0, 1.0, -2.5, 1 / 3, 1.7976931348623157e308, 5e-324, 9007199254740993.0],
    "i64": [0, 1, -1, 9223372036854775807, -9223372036854775808, 9007199254740993, -42],
}


def files() -> dict[str, bytes]:
    """Every golden file by its name."""
    made = {
        "ctl.bin": ctl(),
        "info.txt": INFO.format().encode(),
        "requests.txt": b"".join(format_request(request) for request in REQUESTS),
        "replies.bin": b"".join(format_reply(reply) for reply in REPLIES),
    }
    for dtype, values in ARRAYS.items():
        array = np.array(values, DTYPES[dtype])
        optimizer = "add" if dtype == "i64" else "sgd"
        info = Info.of(JobSpec("j", 1, (TableSpec("w", (len(values),), dtype=dtype, optimizer=optimizer),)), 0, 1, BOOT, 0)
        made[f"{dtype}.bin"] = array.tobytes()
        made[f"{dtype}.txt"] = numbers.format_text([numbers.view(array, info.tables[0])])
    made |= rows()
    made["golden.json"] = (json.dumps(expected(), indent=1) + "\n").encode()
    return made


def rows() -> dict[str, bytes]:
    """The files of one push of rows, and its copy as an agent keeps it."""
    grad = bytearray(120)
    grad[:40] = np.arange(10, dtype="<f4").tobytes()
    grad[64:100] = (np.arange(9, dtype="<f4") / 4).tobytes()
    grad[104:] = np.array([0.5, -0.5], "<f8").tobytes()
    gidx, gkey, want = np.array(IDS, "<u4").tobytes(), f"{KEY}\n".encode(), np.array([7], "<u4").tobytes()
    parts = (bytes(grad), gidx, gkey, want, b"")
    head = kept.Kept(format_request(PUSH)[:-1], tuple(len(part) for part in parts))
    pend = bytearray(head.pack())
    for at, part in zip(head.offsets, parts):
        if part:
            pend.extend(bytes(at - len(pend)) + part)
    return {
        "rows.info.txt": ROWS_INFO.format().encode(), "rows.grad.bin": bytes(grad), "rows.gidx.bin": gidx, "rows.gkey.txt": gkey,
        "rows.want.bin": want, "rows.pend.bin": bytes(pend),
    }  # fmt: skip


def ctl() -> bytes:
    whole = bytearray(page.new_page(INFO.constant(1_600_000_000_000_000_000), MOVING))
    for number, (name, _about) in enumerate(page.COUNTER_NAMES):
        at = page.OFFSET["counters"] + 8 * number
        whole[at : at + 8] = page.WORD.pack(COUNTERS.get(name, 0))
    at = page.LOG_START
    for entry in LOG:
        record = page.pack_logged(entry)
        whole[at : at + len(record)] = record
        at += len(record)
    at = page.result_offset(RESULT.seq)
    whole[at : at + 64] = RESULT.pack()
    return bytes(whole)


def expected() -> dict[str, Any]:
    """What a reader must find, as plain values."""
    constant = INFO.constant(1_600_000_000_000_000_000)._asdict()
    return {
        "ctl": {
            "constant": {**constant, "boot_id": BOOT},
            "moving": MOVING._asdict(),
            "result": RESULT._asdict(),
            "counters": {name: COUNTERS.get(name, 0) for name, _about in page.COUNTER_NAMES},
            "log": [entry._asdict() for entry in LOG],
        },
        "info": {**INFO._asdict(), "tables": [table._asdict() for table in INFO.tables]},
        "rows": {
            "info": {**ROWS_INFO._asdict(), "tables": [table._asdict() for table in ROWS_INFO.tables]},
            "request": PUSH._asdict(), "ids": IDS, "key": KEY, "row_of_key": name_hash(KEY),
            "w": list(range(10)), "e": [[0.0, 0.25, 0.5], [0.75, 1.0, 1.25], [1.5, 1.75, 2.0]], "f": [[0.5, -0.5]],
        },
        "requests": [parse_request(format_request(request)[:-1])._asdict() for request in REQUESTS],
        "replies": [{**reply._asdict(), "code": reply.code.name} for reply in REPLIES],
        "arrays": {name: [repr(value) for value in values] for name, values in ARRAYS.items()},
    }


def main(arguments: list[str]) -> int:
    wrong = 0
    for name, data in files().items():
        path = DIRECTORY / name
        if "--write" in arguments:
            path.write_bytes(data)
        elif not path.is_file() or path.read_bytes() != data:
            print(f"{path} differs from what this version of the protocol writes", file=sys.stderr)
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
