"""The golden files say in every language what `golden.json` says."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugml.client.client import Client
from plugml.client.files import parse_reply as client_reply
from plugml.core.errors import Code
from plugml.core.table import DTYPES
from plugml.shm_protocol import generate, numbers, page
from plugml.shm_protocol.info import Info, InfoTable, parse_info, without
from plugml.shm_protocol.request import (
    Reply,
    Request,
    Section,
    format_reply,
    format_request,
    parse_reply,
    parse_request,
)
from plugml.shm_protocol.twin import MemoryFiles, adopt_twin

from . import golden
from .compiled import RECIPES
from .languages import ENVIRONMENT, Toolchains

GOLDEN = golden.DIRECTORY
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "golden.json").read_text())
RECORDS = [(GOLDEN / "replies.bin").read_bytes()[at : at + 64] for at in range(0, (GOLDEN / "replies.bin").stat().st_size, 64)]
LINES = (GOLDEN / "requests.txt").read_bytes().splitlines()


@pytest.mark.parametrize("name", sorted(golden.files()))
def test_this_version_writes_the_golden_bytes(name: str) -> None:
    assert golden.files()[name] == (GOLDEN / name).read_bytes(), "the protocol has changed: see golden.py"


def test_nothing_else_lies_there() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(golden.files())


def test_the_page_reads_as_expected() -> None:
    whole = (GOLDEN / "ctl.bin").read_bytes()
    wanted = EXPECTED["ctl"]
    constant = page.read_constant(whole)._asdict()
    assert {**constant, "boot_id": constant["boot_id"].hex()} == wanted["constant"]
    assert page.read_moving(whole)._asdict() == wanted["moving"]
    assert page.read_result(whole, 41)._asdict() == wanted["result"]
    assert page.read_counters(whole) == wanted["counters"]
    assert [entry._asdict() for _at, entry in page.read_log(whole)] == wanted["log"]


def test_info_reads_as_expected() -> None:
    wanted = EXPECTED["info"]
    tables = tuple(InfoTable(**{**table, "shape": tuple(table["shape"])}) for table in wanted["tables"])
    assert parse_info((GOLDEN / "info.txt").read_text()) == Info(**{**wanted, "tables": tables})


@pytest.mark.parametrize("kept", [False, True], ids=["files", "pend"])
def test_a_push_of_rows_reads_as_expected(kept: bool) -> None:  # SPEC 2.11 2.12 2.14 3.12 3.13 3.14 3.17 3.19 7.17
    wanted = EXPECTED["rows"]
    info = parse_info((GOLDEN / "rows.info.txt").read_text())
    assert info == Info(**{**wanted["info"], "tables": tuple(InfoTable(**{**t, "shape": tuple(t["shape"])}) for t in wanted["info"]["tables"])})
    files = MemoryFiles(info)
    for name, file in (("grad", "rows.grad.bin"), ("gidx", "rows.gidx.bin"), ("gkey", "rows.gkey.txt"), ("want", "rows.want.bin")):
        files.contents[name][:] = b"" if kept else (GOLDEN / file).read_bytes()
    pend = (GOLDEN / "rows.pend.bin").read_bytes()
    files.contents["pend.0"][: len(pend)] = pend
    agent = adopt_twin(files, info, 1)
    into = numbers.aligned(agent.reader.stored_bytes)
    [(slot, line)] = agent.kept_pushes()
    request = parse_request(line)
    assert request._asdict() == {**wanted["request"], "sections": tuple(Section(*section) for section in wanted["request"]["sections"])}
    data = agent.read_kept(slot, request, into) if kept else agent.read_data(request, into)
    assert data.buffer is not None and data.buffer.view("<f4").tolist() == wanted["w"]
    e, f = data.rows
    assert (e.table, e.ids.tolist(), f.table, f.ids.tolist()) == (1, wanted["ids"], 2, [wanted["row_of_key"]])
    assert e.values is not None and f.values is not None and f.keys is not None
    assert (e.values.tolist(), f.values.tolist(), f.values.dtype) == (wanted["e"], wanted["f"], np.dtype("<f4"))
    assert f.keys.tobytes().decode() == wanted["key"]
    assert [rows.ids.tolist() for rows in data.wants] == [[7]]


@pytest.mark.parametrize(("line", "wanted"), list(zip(LINES, EXPECTED["requests"])), ids=[line.decode() for line in LINES])
def test_request_lines_read_and_write_as_expected(line: bytes, wanted: dict[str, Any]) -> None:
    request = Request(**{**wanted, "sections": tuple(Section(*section) for section in wanted["sections"])})
    assert parse_request(line) == request
    assert format_request(request) == line + b"\n"


@pytest.mark.parametrize(("record", "wanted"), list(zip(RECORDS, EXPECTED["replies"])), ids=[record.decode().strip() for record in RECORDS])
def test_replies_read_and_write_as_expected(record: bytes, wanted: dict[str, Any]) -> None:
    reply = Reply(**{**wanted, "code": Code[wanted["code"]]})
    assert format_reply(reply) == record
    dropped = {name: None for name in ("version", "n", "rows", "lag")} if reply.seq > 1 << 60 else {}
    assert parse_reply(record) == reply._replace(**dropped)
    read = client_reply(record)
    assert read is not None
    assert (read.ok, read.seq, read.clock, read.code.name, read.stop) == (reply.ok, reply.seq, reply.clock, wanted["code"], reply.stop)
    if not dropped:
        assert (read.version, read.lag or 0, read.done) == (reply.version or 0, reply.lag or 0, reply.done or 0)


def test_the_python_client_reads_info_as_expected() -> None:
    client = Client("", {})
    client._read_info((GOLDEN / "info.txt").read_text())
    wanted = EXPECTED["info"]
    assert (client.job, client.worker, client.workers) == (wanted["job"], wanted["worker"], wanted["workers"])
    for table, told in zip(client.tables, wanted["tables"], strict=True):
        assert (table.name, list(table.shape), table.order, table.offset, table.elements) == (
            told["name"], told["shape"], told["order"], told["offset"], told["elements"],
        )  # fmt: skip
        assert table.dtype == DTYPES[told["dtype"]]


@pytest.mark.parametrize("dtype", sorted(golden.ARRAYS))
def test_arrays_have_the_expected_bits_raw_and_as_text(dtype: str) -> None:  # SPEC 3.1 3.10
    cast = int if dtype == "i64" else float
    values = np.array([cast(text) for text in EXPECTED["arrays"][dtype]], DTYPES[dtype])
    assert (GOLDEN / f"{dtype}.bin").read_bytes() == values.tobytes()
    table = InfoTable("w", "dense", dtype, "C", 0, len(values), (len(values),))
    into = numbers.aligned(values.nbytes)
    numbers.parse_text((GOLDEN / f"{dtype}.txt").read_bytes(), numbers.dense_series([table], into), f"{dtype}.txt")
    assert into.tobytes() == values.tobytes()


def test_a_c_program_reads_the_page_as_expected(tmp_path: Path, require: Callable[[str], None]) -> None:  # SPEC 7.10 7.13 7.14
    require("gcc")
    wanted = EXPECTED["ctl"]
    names = list(wanted["moving"])
    source = tmp_path / "reader.c"
    source.write_text(
        '#include "plugml_shm.h"\n#include <stdio.h>\n#include <string.h>\nint main(int argc, char **argv)\n{\n'
        '    struct plugml_ctl page;\n    FILE *file = fopen(argv[1], "rb");\n'
        "    if (argc < 2 || !file || fread(&page, sizeof page, 1, file) != 1 || memcmp(page.magic, PLUGML_MAGIC, 8)) return 1;\n"
        + "".join(f'    printf("%lld\\n", (long long)page.{name});\n' for name in names)
        + "".join(f'    printf("%lld\\n", (long long)page.{name});\n' for name in ("gen", "n", "cap_grad", "cap_param", "worker"))
        + '    for (int i = 0; i < 17; i++) printf("%lld\\n", (long long)page.counters[i]);\n'
        '    for (int i = 0; i < 8; i++) printf("%lld\\n", (long long)page.result_odd[i]);\n    return 0;\n}\n'
    )
    program = tmp_path / "reader"
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Werror", f"-I{generate.HEADER.parent}", str(source), "-o", str(program)], check=True)
    printed = subprocess.run([program, GOLDEN / "ctl.bin"], check=True, capture_output=True, text=True).stdout.split()
    constant, result = wanted["constant"], wanted["result"]
    weight = struct.unpack("<q", struct.pack("<d", result["weight"]))[0]
    low = result["status"] | result["flags"] << 32
    assert [int(word) for word in printed] == [
        *(wanted["moving"][name] for name in names),
        *(constant[name] for name in ("gen", "n", "cap_grad", "cap_param", "worker")),
        *wanted["counters"].values(),
        *(result["seq"], result["clock"], result["version"], low, weight, result["pushes"], 0, 0),
    ]


def test_a_shell_reads_replies_line_by_line(require: Callable[[str], None]) -> None:  # SPEC 5.3 5.5
    require("dash")
    script = 'while read -r st s c rest; do echo "$st|$s|$c|$rest"; done'
    with open(GOLDEN / "replies.bin", "rb") as replies:
        printed = subprocess.run(["dash", "-c", script], stdin=replies, check=True, capture_output=True, text=True).stdout.splitlines()
    for text, wanted in zip(printed, EXPECTED["replies"], strict=True):
        state, seq, clock, rest = text.split("|")
        assert (state == "ok", int(seq), int(clock)) == (wanted["ok"], wanted["seq"], wanted["clock"])
        assert ("stop=1" in rest.split()) == wanted["stop"]


def test_r_reads_arrays_as_expected(require: Callable[[str], None]) -> None:
    require("Rscript")
    script = (
        'a <- commandArgs(TRUE); x <- readBin(a[1], "double", 100, size = 8, endian = "little");'
        'y <- readBin(a[2], "double", 100, size = 4, endian = "little"); z <- scan(a[3], quiet = TRUE);'
        'cat(sprintf("%.17g", c(x, y, z)), sep = "\\n")'
    )
    arguments = [str(GOLDEN / name) for name in ("f64.bin", "f32.bin", "f64.txt")]
    printed = subprocess.run(["Rscript", "-e", script, *arguments], check=True, capture_output=True, text=True).stdout.split()
    wanted = [float(text) for name in ("f64", "f32", "f64") for text in EXPECTED["arrays"][name]]
    assert [float(word) for word in printed] == [float(np.float32(value)) if 8 <= at < 16 else value for at, value in enumerate(wanted)]


@pytest.mark.parametrize("name", RECIPES)
def test_a_client_reads_page_info_and_replies_as_expected(name: str, tmp_path: Path, toolchains: Toolchains) -> None:
    """A channel of golden files, where each request is answered with the next golden record: hello, six others, bye."""
    (tmp_path / "ctl").write_bytes((GOLDEN / "ctl.bin").read_bytes())
    (tmp_path / "info").write_bytes((GOLDEN / "info.txt").read_bytes())
    for file in ("cmd", "grad", "param", "err"):
        (tmp_path / file).write_bytes(bytes(4096))
    for bell in ("req", "rep"):
        os.mkfifo(tmp_path / bell, 0o600)
    req, rep = (os.open(tmp_path / bell, os.O_RDWR) for bell in ("req", "rep"))
    lines: list[str] = []

    def answer() -> None:
        for record in (format_reply(Reply(True, 0, 17, done=0)), *RECORDS[1:7], format_reply(Reply(True, 7, 20))):
            if os.read(req, 1) == b"q":
                return
            lines.append((tmp_path / "cmd").read_bytes().partition(b"\n")[0].decode())
            os.write(rep, record)

    agent = threading.Thread(target=answer)
    agent.start()
    try:
        words = [*toolchains.language(name).drive, "who", *["ping"] * 6, "who", "bye"]
        done = subprocess.run(words, env={**without(os.environ), **ENVIRONMENT, "PLUGML_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    finally:
        os.write(req, b"q")
        agent.join()
        os.close(req)
        os.close(rep)

    assert (done.returncode, done.stderr) == (0, "")
    assert lines == ["hello 0 0", *(f"ping {seq} {clock}" for seq, clock in zip(range(1, 7), (17, 18, 18, 19, 20, 20))), "bye 7 20"]
    first, *told, last = (line.split() for line in done.stdout.splitlines())
    assert first == "who plugged=1 main=0 worker=2 of=4 clock=17".split() and last[-1] == "clock=20"
    wanted = [(f"clock={reply['clock']}", f"done={int(any(r['stop'] for r in EXPECTED['replies'][1 : at + 1]))}") for at, reply in enumerate(EXPECTED["replies"][:7])]
    assert [(words[3], words[4]) for words in told] == wanted[1:]
