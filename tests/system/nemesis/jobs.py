"""The jobs that are trained meanwhile, and what must be true of them in the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import program
from .lab import START_S, TOP, Lab

WORKERS = 2
TABLES = {"c": f"c={WORKERS + program.MIXED}:i64,optimizer=add", "t": "t=sparse:i64,width=2,index=u64,optimizer=add"}
MODEL_TABLE = f"m={program.MODEL}:f32,optimizer=adam,lr=0.01"
END_S = 120.0  # a hang limit


class Job:
    def __init__(self, lab: Lab, name: str, consistency: str, host: str) -> None:
        self.lab, self.name, self.consistency, self.host = lab, name, consistency, host
        self.slack = {"bsp": 0, "asp": -1}.get(consistency) if ":" not in consistency else int(consistency.partition(":")[2])
        self.records = lab.directory / name
        self.result = lab.directory / f"{name}.result"
        self._checked = 0

    def start(self, checkpoints: Path | None) -> None:
        words = ["run", "-n", str(WORKERS), "--name", self.name, "--consistency", self.consistency, "--copies", "2", "--result", str(self.result)]
        words += ["--checkpoint-every", "300", "--checkpoint-dir", str(checkpoints)] if checkpoints is not None else []
        with (self.lab.directory / f"{self.name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                self.lab.command(self.host, *words, *self._tables(), "--", *self._program()), env=self.lab.environ(self.host),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _tables(self) -> list[str]:
        tables = [*TABLES.values(), *([MODEL_TABLE] if self.slack == 0 else [])]
        return [word for table in tables for word in ("--table", table)]

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "tests.system.nemesis.program", str(self.slack), str(self.records)]

    def steps(self) -> list[int]:
        """Of each worker, so far."""
        sizes = []
        for worker in range(WORKERS):
            path = Path(f"{self.records}.{worker}")
            sizes.append(path.stat().st_size // program.RECORD.size if path.exists() else 0)
        return sizes

    def bad_reads(self) -> list[str]:
        found = []
        for worker in range(WORKERS):
            path = Path(f"{self.records}.{worker}.bad")
            found += [f"{self.name}, worker {worker}, {line}" for line in path.read_text().splitlines()] if path.exists() else []
        return found

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def said(self) -> str:
        return (self.lab.directory / f"{self.name}.log").read_text(errors="replace")

    def kill(self) -> None:
        """If it is still there: nobody asks any more what it has done."""
        if not self.has_ended():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def end(self) -> list[str]:
        """Ctrl-C, as a user does it; gives what is wrong."""
        if not self.has_ended():
            self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return [f"{self.name}: the run does not end:\n{self.said()}"]
        return self._check() if code == 130 else [f"{self.name}: the run ended with {code}:\n{self.said()}"]

    def _check(self) -> list[str]:
        document: dict[str, Any] = json.loads((self.result / "result.json").read_text())
        clocks = [document["closed"]] * WORKERS if self.slack == 0 else [worker["clocks"] for worker in document["workers"]]
        wrong = [f"{self.name}, worker {k}: {worker['last_error']}" for k, worker in enumerate(document["workers"]) if worker["last_error"]]
        for k, (seen, counted) in enumerate(zip(self.steps(), clocks)):
            if not seen <= counted <= seen + 1 + max(0, self.slack or 0):
                wrong.append(f"{self.name}: worker {k} was told of {seen} steps, and {counted} count")
        with np.load(self.result / "tables.npz") as tables:
            wrong += self._differences("c", tables["c"], sums(clocks))
            wrong += self._differences("t", sorted_rows(tables["t/rows"], tables["t"]), row_sums(clocks))
        if self.slack == 0:
            wrong += self._compare(int(document["closed"]))
        return wrong

    def _differences(self, table: str, got: NDArray[np.int64], expected: NDArray[np.int64]) -> list[str]:
        if got.shape != expected.shape:
            return [f"{self.name}: table {table} has the shape {got.shape}, not {expected.shape}"]
        at = np.argwhere(got != expected)
        return [f"{self.name}: table {table} at {at[0].tolist()} holds {got[tuple(at[0])]}, not {expected[tuple(at[0])]} ({len(at)} differ)"] if len(at) else []

    def _compare(self, closed: int) -> list[str]:
        """The model at every clock, against a run that nothing happens to."""
        calm = self.lab.directory / f"{self.name}.calm"
        calm.mkdir()
        words = ["run", "-n", str(WORKERS), "--name", "calm", "--consistency", self.consistency, "--result", str(calm / "result"), *self._tables()]
        command = [sys.executable, "-m", "plugml", *words, "--", *self._program()[:-1], str(calm / "records"), str(closed)]
        environ = {name: value for name, value in self.lab.environ("calm").items() if name not in ("PLUGML_CLUSTER", "PLUGML_KEYS")}
        done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=TOP)
        if done.returncode:
            return [f"{self.name}: the run without faults ended with {done.returncode}:\n{done.stderr}"]
        wrong = []
        for worker in range(WORKERS):
            there, here = (np.fromfile(f"{path}.{worker}", np.dtype([("clock", "<i8"), ("crc", "<u4"), ("", "<u4")])) for path in (calm / "records", self.records))
            both = min(len(there), len(here))
            at = np.flatnonzero((there["clock"][:both] != here["clock"][:both]) | (there["crc"][:both] != here["crc"][:both]))
            if len(at):
                wrong.append(f"{self.name}, worker {worker}: from clock {at[0]} on the model is not that of the run without faults ({both} clocks)")
            if len(here) + 1 < closed or len(there) != closed:
                wrong.append(f"{self.name}, worker {worker}: {len(here)} and {len(there)} clocks are recorded of {closed}")
        return wrong


def sums(clocks: list[int]) -> NDArray[np.int64]:
    """Table c when each worker has pushed so many clocks, each once."""
    mixed = np.zeros(program.MIXED, np.int64)
    for worker, count in enumerate(clocks):
        at = np.arange(count)[:, None] * 31 + worker * 7 + np.arange(program.MIXED)
        mixed += (at % 11).sum(axis=0)
    return np.concatenate([np.array(clocks, np.int64), mixed])


def row_sums(clocks: list[int]) -> NDArray[np.int64]:
    """Table t as its rows, key first, in the order of the keys."""
    table = np.zeros((WORKERS * program.ROWS, 2), np.int64)
    seen = np.zeros(len(table), bool)
    for worker, count in enumerate(clocks):
        for clock in range(count):
            keys, values = program.rows(worker, clock)
            np.add.at(table, keys.astype(np.int64), values)
            seen[keys.astype(np.int64)] = True
    found = np.flatnonzero(seen)
    return np.column_stack([found, table[found]])


def sorted_rows(keys: NDArray[np.uint64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(keys)
    return np.column_stack([keys[order].astype(np.int64), values[order]])


def await_steps(jobs: list[Job], count: int) -> None:
    """Everybody has begun."""
    end = time.monotonic() + START_S
    while any(min(job.steps()) < count for job in jobs):
        for job in jobs:
            if job.has_ended() or time.monotonic() > end:
                raise RuntimeError(f"{job.name} does not begin:\n{job.said()}")
        time.sleep(0.05)
