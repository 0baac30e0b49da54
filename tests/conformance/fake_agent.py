"""A scripted agent with plain numpy as its server: it drives any program through the good and the bad days of a channel.

    python -m tests.conformance.fake_agent --table w=10,64 --report out.json -- ./trainer
    python -m tests.conformance.fake_agent --table w=4 --fault restart@3:5 --fault repeat@4 -- ./trainer

It makes a channel per program, runs the programs with the environment of a plugged worker, serves them by the rules of
SPEC.md, and ends with the first exit code that is not 0.  The report (JSON) tells what it saw.

Faults are `kind@seq[:argument]`; seq `*` means every request:

    repeat@S         the reply to S is given twice
    stale@S          the reply to S-1 comes once more before the one to S
    slow@S:SECONDS   the reply comes late
    restart@S:K      the agent dies before its K-th store of request S (K from 1; `*` = before each in turn), another one
                     adopts the channel
    err@S:CODE       S is refused with that code, nothing is applied
    again@S          S is answered AGAIN first, and carried out when the program rings again
    stop@S           the stop rule fires at S: stop=1, and the step after it is answered STOP
    gone@S           the agent never comes back: the launcher answers GONE
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plugml.core.errors import Code, RequestError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import numbers
from plugml.shm_protocol.channel import AgentChannel, adopt, agent_number
from plugml.shm_protocol.create import Channel, create_channel
from plugml.shm_protocol.info import Info, environment, without
from plugml.shm_protocol.request import Reply, Request, format_reply, parse_request, seq_of
from plugml.shm_protocol.root import boot_id

from .fake_server import FakeServer

EVERY = -1
KINDS = ("repeat", "stale", "slow", "restart", "err", "again", "stop", "gone")


class Fault(NamedTuple):
    kind: str
    seq: int
    argument: str = ""

    @classmethod
    def parse(cls, text: str) -> Fault:
        kind, _at, rest = text.partition("@")
        seq, _colon, argument = rest.partition(":")
        if kind not in KINDS or not (seq == "*" or seq.isdigit()):
            raise SystemExit(f"fault {text!r}: use kind@seq[:argument] with kind one of {', '.join(KINDS)}")
        return cls(kind, EVERY if seq == "*" else int(seq), argument)


class Killed(BaseException):
    """The scripted death of the agent."""


class FakeAgent:
    """Serves the channels of one job in a thread.  `with FakeAgent(spec) as agent: ... agent.environment(0)`."""

    def __init__(
        self, spec: JobSpec, faults: Sequence[Fault | str] = (), root: Path | None = None, gen: int = 1, clock: int = 0
    ) -> None:
        self.spec = spec
        self.faults = [Fault.parse(fault) if isinstance(fault, str) else fault for fault in faults]
        self._own_root = root is None
        self.root = root or Path(tempfile.mkdtemp(prefix="plugml-fake-", dir="/dev/shm"))
        self.infos = [Info.of(spec, worker, gen, boot_id(), clock, number=1) for worker in range(spec.workers)]
        self.server = FakeServer(spec, self.infos[0])
        self.server.finished = [clock] * spec.workers
        self.server.closed = clock
        self.kept: list[Channel] = [create_channel(self.root, info) for info in self.infos]
        self._root_fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        self.channels: list[AgentChannel | None] = [adopt(self._root_fd, kept.name, agent_number()) for kept in self.kept]
        self.buffers = [numbers.aligned(info.cap_grad) for info in self.infos]
        self.running: dict[int, Iterator[None]] = {}
        self.lines: list[list[str]] = [[] for _ in self.infos]
        self.answered: list[bytes] = [b""] * spec.workers
        self.last_reply: list[bytes] = [b""] * spec.workers
        self.weights = [0.0] * spec.workers
        self.fired: list[str] = []
        self.remarks: list[str] = []
        self.deaths = 0
        self.byes: set[int] = set()
        self._bye_seq: dict[int, int] = {}
        self._stores: dict[tuple[int, int], int] = {}  # (worker, seq) -> stores of this agent's life
        self._kill_at: dict[tuple[int, int], int] = {}
        self._once: set[tuple[str, int, int]] = set()
        self.stopped_at: int | None = None
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._fds: dict[int, int] = {}
        self._thread = threading.Thread(target=self._serve, name="fake-agent")
        self._failure: BaseException | None = None

    # -- for the test

    def __enter__(self) -> FakeAgent:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        os.write(self._wake_w, b"q")
        self._thread.join()
        self.close()
        if self._failure:
            raise self._failure

    def close(self) -> None:
        for channel in self.channels:
            if channel is not None:
                channel.close()
        for kept in self.kept:
            kept.close()
        for fd in (self._root_fd, self._wake_r, self._wake_w):
            os.close(fd)
        if self._own_root:
            shutil.rmtree(self.root)

    def environment(self, worker: int = 0) -> dict[str, str]:
        """A whole environment for the program of `worker`."""
        directory = str(self.kept[worker].directory)
        out = str(self.root)
        count = self.spec.workers
        own = environment(self.infos[worker], directory, local_worker=worker, local_workers=count, out=out, plugml_version="0")
        return {**without(os.environ), **own}

    def leave(self, worker: int) -> None:
        """The program of `worker` has ended: nobody waits for it any more.  Any thread may call it."""
        os.write(self._wake_w, bytes([worker]) if worker < 100 else b"")

    def report(self) -> dict[str, Any]:
        server = self.server
        return {
            "param": {t.name: numbers.view(server.values, t).tolist() for t in self.infos[0].dense},
            "pushes": server.pushes,
            "clocks": server.finished,
            "closed": server.closed,
            "done_seq": [channel.done_seq if channel else None for channel in self.channels],
            "lines": self.lines,
            "bye": sorted(self.byes),
            "deaths": self.deaths,
            "fired": self.fired,
            "remarks": self.remarks,
            "counters": [channel.counters() if channel else None for channel in self.channels],
        }

    # -- the agent

    def _serve(self) -> None:
        poll = select.epoll()
        try:
            poll.register(self._wake_r, select.EPOLLIN)
            for worker in range(len(self.channels)):
                self._watch(poll, worker)
            self._loop(poll)
        except BaseException as failure:  # noqa: BLE001  the test thread raises it again
            self._failure = failure
            for worker, kept in enumerate(self.kept):
                channel = self.channels[worker]
                if channel is not None:
                    channel.abandon()
                    self.channels[worker] = None
                kept.retire()  # so that no program hangs
        finally:
            poll.close()

    def _watch(self, poll: select.epoll, worker: int) -> None:
        channel = self.channels[worker]
        assert channel is not None
        self._fds[channel.files.req_fd] = worker
        poll.register(channel.files.req_fd, select.EPOLLIN)

    def _loop(self, poll: select.epoll) -> None:
        while True:
            for fd, _events in poll.poll():
                if fd == self._wake_r:
                    for byte in os.read(fd, 4096):
                        if byte == ord("q"):
                            return
                        self.server.left.add(byte)
                        self.server.close()
                    continue
                worker = self._fds[fd]
                channel = self.channels[worker]
                if channel is None or not channel.drain_bell():
                    poll.unregister(fd)
                    continue
                self._guarded(poll, worker, lambda worker=worker: self._bell(worker, adopted=False))
            for worker in list(self.running):
                self._guarded(poll, worker, lambda worker=worker: self._go_on(worker))

    def _guarded(self, poll: select.epoll, worker: int, action: Any) -> None:
        """Do something as the agent; if the script kills it, be the next agent."""
        while True:
            try:
                action()
                return
            except Killed:
                channel = self.channels[worker]
                assert channel is not None
                poll.unregister(channel.files.req_fd)
                del self._fds[channel.files.req_fd]
                channel.abandon()
                self.running.pop(worker, None)
                self.deaths += 1
                self.answered[worker] = b""
                self.channels[worker] = adopt(self._root_fd, self.kept[worker].name, agent_number())
                self._watch(poll, worker)
                action = lambda: self._bell(worker, adopted=True)  # noqa: E731

    def _bell(self, worker: int, adopted: bool) -> None:
        channel = self.channels[worker]
        assert channel is not None
        if worker in self.running:
            return  # a bell during a request carries nothing
        line = channel.read_cmd()
        if line is None:
            return
        if line == self.answered[worker] and not line.startswith(b"hello"):
            return
        self.running[worker] = self._request(worker, channel, line, adopted)
        self._go_on(worker)

    def _go_on(self, worker: int) -> None:
        running = self.running.get(worker)
        if running is not None and next(running, True):
            self.running.pop(worker, None)

    def _request(self, worker: int, channel: AgentChannel, line: bytes, adopted: bool) -> Iterator[None]:
        """One request by the rules; each `yield` waits for the other workers."""
        done = channel.done_seq
        seq = seq_of(line)
        if seq == 0 and line.startswith(b"hello"):
            self._answer(worker, channel, line, Reply(True, 0, self.server.finished[worker], channel.result.version, done=done))
            return
        if adopted and seq == done:
            self._store(worker, seq, lambda: channel.reply(channel.repeat()))
            self.answered[worker] = line
            return
        if seq is not None and seq != done + 1:
            channel.count("refused_sequences")
            text = f"seq {seq} came, {done + 1} is the next one"
            channel.write_error(f"SEQ seq={seq}: {text}")
            self._answer(worker, channel, line, Reply(False, seq, self.server.finished[worker], code=Code.SEQ))
            return
        seq = done + 1 if seq is None else seq
        if not adopted or not self.lines[worker] or self.lines[worker][-1] != line.decode(errors="replace"):
            self.lines[worker].append(line.decode(errors="replace"))
        if self._fault("again", worker, seq):
            self._store(worker, seq, lambda: channel.reply(format_reply(Reply(False, seq, 0, code=Code.AGAIN))))
            return
        if self._fault("gone", worker, seq):
            channel.abandon()
            self.channels[worker] = None
            self.kept[worker].retire()
            return
        yield from self._carry_out(worker, channel, line, seq)

    def _carry_out(self, worker: int, channel: AgentChannel, line: bytes, seq: int) -> Iterator[None]:
        server, buffer = self.server, self.buffers[worker]
        store = lambda action: self._store(worker, seq, action)  # noqa: E731
        store(lambda: channel.set_current(seq))
        stop = False
        try:
            request = parse_request(line)
            channel.info.check(request)
            if request.seq > self._bye_seq.get(worker, request.seq):
                raise RequestError(Code.GONE, f"{request.verb} after bye: this worker has left the job")
            self._check_clock(worker, request)
            refusal = self._fault("err", worker, seq)
            if refusal:
                raise RequestError(Code[refusal.argument or "INTERNAL"], "the script says so")
            if self.stopped_at is not None and request.verb == "step" and seq > self.stopped_at:
                raise RequestError(Code.STOP, "the stop rule has fired")
            if request.pushes:
                channel.read_push(request.text, request.n is None, buffer)
                if request.verb == "init":
                    server.init(worker, seq, buffer)
                else:
                    server.push(worker, seq, request.clock, request.weight, buffer)
            store(lambda: None)  # an effect of its own: the servers have it
            if request.verb in ("step", "clock"):
                server.tick(worker, seq, request.clock)
            while request.verb in ("step", "pull", "pushpull") and not server.ready(server.finished[worker]):
                yield None
            if request.pulls:
                self._write_values(worker, channel, request, seq)
            if request.verb == "bye":
                self.byes.add(worker)
                self._bye_seq[worker] = seq
                server.left.add(worker)
                server.close()
            if self._fault("stop", worker, seq):
                stop, self.stopped_at = True, seq
            code, text = Code.OK, ""
        except RequestError as error:
            code, text = error.code, f"{error.code.name} seq={seq}: {error.text}"
            store(lambda: channel.write_error(text))
        late = self._fault("slow", worker, seq)
        if late:
            time.sleep(float(late.argument or 0.2))  # a slow agent is what the script asks for
        if code is Code.OK and request.pushes:
            self._check_untouched(worker, channel, request)
        finished = server.finished[worker]
        store(lambda: channel.write_result(seq, finished, server.version, int(code), stop=stop))
        store(lambda: channel.set_done(seq))
        n = channel.info.elements if code is Code.OK and request.pulls else None
        self._answer(worker, channel, line, Reply(code is Code.OK, seq, finished, server.version, n, code, stop=stop))

    def _check_untouched(self, worker: int, channel: AgentChannel, request: Request) -> None:
        """The push must still lie there as it was read: until the reply its file is ours."""
        again = numbers.aligned(channel.info.cap_grad)
        try:
            channel.read_push(request.text, request.n is None, again)
        except RequestError:
            again = np.zeros(0, np.uint8)
        if not np.array_equal(self.buffers[worker], again):
            self.remarks.append(f"worker {worker}: grad was touched between the ring and the reply of request {request.seq}")

    def _check_clock(self, worker: int, request: Request) -> None:
        finished = self.server.finished[worker]
        if request.seq <= self.server.ticked[worker]:
            return  # the agent died after the tick
        if request.verb in ("step", "clock", "push", "pull", "pushpull") and request.clock != finished:
            raise RequestError(Code.SEQ, f"clock {request.clock} came, worker {worker} is in clock {finished}")

    def _write_values(self, worker: int, channel: AgentChannel, request: Request, seq: int) -> None:
        values = self.server.values
        if request.text:
            self._store(worker, seq, lambda: channel.write_text(values))
            return
        half = values.nbytes // 2 // 64 * 64
        for start, stop in ((0, half), (half, values.nbytes)):
            self._store(worker, seq, lambda start=start, stop=stop: channel.write_param(start, values[start:stop]))

    def _answer(self, worker: int, channel: AgentChannel, line: bytes, reply: Reply) -> None:
        record = format_reply(reply)
        seq = reply.seq
        if self._fault("stale", worker, seq) and self.last_reply[worker]:
            channel.reply(self.last_reply[worker])
        self._store(worker, seq, lambda: channel.reply(record))
        if self._fault("repeat", worker, seq):
            channel.reply(record)
        self.last_reply[worker] = record
        self.answered[worker] = line

    def _store(self, worker: int, seq: int, action: Any) -> None:
        """One store, before which the script may kill the agent."""
        key = (worker, seq)
        self._stores[key] = self._stores.get(key, 0) + 1
        for fault in self.faults:
            if fault.kind != "restart" or fault.seq not in (seq, EVERY) or seq == 0:
                continue
            if fault.argument == "*":
                at = self._kill_at.get(key, 0) + 1
            else:
                at = int(fault.argument or 1) if key not in self._kill_at else 0
            if self._stores[key] == at:
                self._kill_at[key], self._stores[key] = at, 0
                self._tell(fault, worker)
                raise Killed
        action()

    def _fault(self, kind: str, worker: int, seq: int) -> Fault | None:
        for fault in self.faults:
            if fault.kind == kind and fault.seq in (seq, EVERY) and seq and (kind, worker, seq) not in self._once:
                self._once.add((kind, worker, seq))
                self._tell(fault, worker)
                return fault
        return None

    def _tell(self, fault: Fault, worker: int) -> None:
        self.fired.append(f"worker {worker}: {fault.kind}@{'*' if fault.seq == EVERY else fault.seq}:{fault.argument}")


def table_spec(text: str, lr: float, optimizer: str) -> TableSpec:
    """`name=10,64[:dtype][:C|F]`."""
    name, _equals, rest = text.partition("=")
    shape, *words = rest.split(":")
    order = next((word for word in words if word in ("C", "F")), "C")
    dtype = next((word for word in words if word not in ("C", "F")), "f32")
    numbers_of = tuple(int(word) for word in shape.split(","))
    settings = {"lr": lr} if optimizer == "sgd" else {}
    return TableSpec(name, numbers_of, dtype=dtype, order=order, optimizer=optimizer, settings=settings)


def run(agent: FakeAgent, commands: Sequence[Sequence[str]], cwd: str | None = None) -> list[int]:
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


def _wait(agent: FakeAgent, worker: int, program: subprocess.Popen[bytes]) -> None:
    program.wait()
    agent.leave(worker)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fake_agent", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    options = parser.parse_args(arguments)
    commands = ([options.command] if options.command else []) + [["sh", "-c", text] for text in options.worker]
    if not commands:
        parser.error("no program given: put it after --")
    if options.spec:
        spec = JobSpec.from_document(json.loads(options.spec.read_text()))
    else:
        tables = [table_spec(text, options.lr, options.optimizer) for text in options.table or ["w=4"]]
        tables = [table if options.init == "zeros" else replace(table, init=options.init) for table in tables]
        spec = JobSpec("fake", len(commands), tuple(tables), consistency=options.consistency, combine=options.combine)
    agent = FakeAgent(spec, options.fault, options.root, options.gen, options.clock)
    codes = run(agent, commands)
    report = {**agent.report(), "codes": codes}
    if options.report:
        options.report.write_text(json.dumps(report, indent=1) + "\n")
    for remark in agent.remarks:
        print(f"fake_agent: {remark}", file=sys.stderr)
    bad = next((code for code in codes if code), 0)
    return 128 - bad if bad < 0 else bad


if __name__ == "__main__":
    sys.exit(main())
