"""Programs under a scripted agent, from the command line: what `plugml conform` is made of, for one script.

    python -m plugml.shm_protocol.conform.play --table w=10,64 --report out.json -- ./trainer
    python -m plugml.shm_protocol.conform.play --table w=4 --fault restart@3:5 --fault repeat@4 -- ./trainer

It makes a channel per program, runs the programs with the environment of a plugged worker, serves them by the rules of
SPEC.md, and ends with the first exit code that is not 0.  The report (JSON) tells what it saw.  Faults: `faults.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...core.errors import UsageError
from ...core.job import JobSpec
from ...core.table import TableSpec
from . import faults
from .agent import ScriptedAgent


def table_spec(text: str, lr: float, optimizer: str) -> TableSpec:
    """`name=10,64[:dtype][:C|F]`."""
    name, _equals, rest = text.partition("=")
    shape, *words = rest.split(":")
    order = next((word for word in words if word in ("C", "F")), "C")
    dtype = next((word for word in words if word not in ("C", "F")), "f32")
    numbers_of = tuple(int(word) for word in shape.split(","))
    settings = {"lr": lr} if optimizer == "sgd" else {}
    return TableSpec(name, numbers_of, dtype=dtype, order=order, optimizer=optimizer, settings=settings)


def run(agent: ScriptedAgent, commands: Sequence[Sequence[str]], cwd: str | None = None) -> list[int]:
    """Run one program per worker, plugged into the agent's channels; returns their exit codes (minus the signal)."""
    with agent:
        programs = [
            subprocess.Popen(command, env=agent.environment(worker), stdin=subprocess.DEVNULL, cwd=cwd)
            for worker, command in enumerate(commands)
        ]
        watchers = [threading.Thread(target=_wait, args=(agent, worker, program)) for worker, program in enumerate(programs)]
        for watcher in watchers:
            watcher.start()
        for watcher in watchers:
            watcher.join()
    return [program.returncode for program in programs]


def _wait(agent: ScriptedAgent, worker: int, program: subprocess.Popen[bytes]) -> None:
    program.wait()
    agent.leave(worker)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    commands = ([options.command] if options.command else []) + [["sh", "-c", text] for text in options.worker]
    if not commands:
        parser.error("no program given: put it after --")
    try:
        agent = ScriptedAgent(_spec(options, len(commands)), options.fault, options.root, options.gen, options.clock)
    except UsageError as error:
        parser.error(str(error))
    codes = run(agent, commands)
    report = {**agent.report(), "codes": codes}
    if options.report:
        options.report.write_text(json.dumps(report, indent=1) + "\n")
    for remark in agent.remarks:
        print(f"play: {remark}", file=sys.stderr)
    bad = next((code for code in codes if code), 0)
    return 128 - bad if bad < 0 else bad


def _spec(options: argparse.Namespace, workers: int) -> JobSpec:
    if options.spec:
        return JobSpec.from_document(json.loads(options.spec.read_text()))
    tables = [table_spec(text, options.lr, options.optimizer) for text in options.table or ["w=4"]]
    tables = [table if options.init == "zeros" else replace(table, init=options.init) for table in tables]
    return JobSpec("fake", workers, tuple(tables), consistency=options.consistency, combine=options.combine)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="play", description=f"{__doc__}\n{faults.__doc__}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, help="channel root (default: a new directory under /dev/shm)")
    parser.add_argument("--spec", type=Path, help="job as JSON (JobSpec document) instead of --table and the like")
    parser.add_argument("--table", action="append", default=[], metavar="NAME=SHAPE[:DTYPE][:C|F]", help="e.g. w=10,64:f64")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--optimizer", default="sgd", choices=("sgd", "add", "assign"))
    parser.add_argument("--consistency", default="bsp", choices=("bsp", "asp"))
    parser.add_argument("--combine", default="mean", choices=("mean", "sum"))
    parser.add_argument("--init", default="zeros", choices=("zeros", "program"))
    parser.add_argument("--gen", type=int, default=1)
    parser.add_argument("--clock", type=int, default=0, help="clock to resume at")
    parser.add_argument("--fault", action="append", default=[], metavar="KIND@SEQ[:ARGUMENT]")
    parser.add_argument("--report", type=Path, help="write what happened as JSON")
    parser.add_argument("--worker", action="append", default=[], metavar="CMD", help="a further worker's command, by sh -c")
    parser.add_argument("command", nargs="*", help="the first worker's program, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
