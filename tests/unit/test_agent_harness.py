"""A small world for the agent's tests: the real agent and servers, a scripted master, channels in memory, simulated time.

One message after the other, in order, unless a test interferes.  The agent may be killed before any of its effects; a
new one then finds the channels as the old one left them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from plugml.agent import effects as e
from plugml.agent.link import Identity
from plugml.agent.machine import AgentMachine
from plugml.core.effects import Connect, Disconnect, Log, Send, Stop
from plugml.core.errors import Code, RequestError
from plugml.core.job import JobSpec
from plugml.core.jobmap import LOST, RUNNING, Assignment, JobMap, ranges_used
from plugml.core.limits import Limits
from plugml.core.table import TableSpec
from plugml.server.effects import Turn, Warm, WarmUp
from plugml.server.link import Identity as ServerIdentity
from plugml.server.node import ServerMachine
from plugml.shm_protocol.channel import AgentChannel
from plugml.shm_protocol.info import parse_info
from plugml.shm_protocol.numbers import aligned
from plugml.shm_protocol.page import FLAG_STOP
from plugml.shm_protocol.request import Reply, parse_reply
from plugml.shm_protocol.twin import MemoryFiles, adopt_twin
from plugml.wire import codec
from plugml.wire import messages as m

BOOT = "0123456789abcdef0123456789abcdef"
RANGES = 16
STEPS_MAX = 200_000  # events of one world; no test needs a tenth of them


class Died(Exception):
    """The agent was killed."""


class Master:
    """As much of a master as an agent needs."""

    def __init__(self, servers: list[str]) -> None:
        self.servers = servers
        self.jobs: dict[int, JobMap] = {}
        self.attached: dict[tuple[str, int], int] = {}
        self.known: set[str] = set()
        self.token = 1
        self.ended: list[m.JobEnd] = []
        self.joins: dict[str, int] = {}  # launcher -> its first worker

    def on_message(self, sender: str, message: Any) -> list[tuple[str, Any]]:
        if isinstance(message, m.Register):
            self.known.add(sender)
            return [(sender, m.Registered(1, self.token, "test", True, ""))]
        if isinstance(message, m.Beat):
            return [(sender, m.BeatAck(1, self.token, sender in self.known))]
        if isinstance(message, m.JobAsk):
            return self._register(sender, message)
        if isinstance(message, m.MoreAsk):
            return [(sender, self.more_told(message))]
        if isinstance(message, m.AttachAsk):
            key = (sender, message.request)
            job = self.jobs[message.job]
            if key not in self.attached:
                gens = {**job.gens, message.worker: job.gens.get(message.worker, 0) + 1}
                self.jobs[message.job] = job._replace(gens=gens)
                self.attached[key] = gens[message.worker]
            return [(sender, m.AttachTold(message.request, 0, "", message.job, message.worker, self.attached[key]))]
        if isinstance(message, m.MapAsk):
            job = self.jobs.get(message.job)
            return [(sender, self.map_told(message.job))] if job is not None and job.token >= message.token else []
        assert isinstance(message, m.JobEnd), message
        self.ended.append(message)
        return [(sender, m.Done(message.request, 0, ""))]

    def _register(self, sender: str, ask: m.JobAsk) -> list[tuple[str, Any]]:
        spec = JobSpec.from_document(ask.document)
        for number, job in self.jobs.items():
            if job.spec.name == spec.name:
                return [(sender, m.JobTold(ask.request, 0, "", number))]
        spec = spec.with_blocks(len(self.servers), Limits(block_bytes_max=64, block_bytes_min=64))
        number = len(self.jobs) + 1
        self.token += 1
        used = ranges_used(spec, RANGES)
        ranges = {r: Assignment(1, (self.servers[i % len(self.servers)],)) for i, r in enumerate(used)}
        endpoints = {server: f"ipc://{server}" for server in self.servers}
        self.jobs[number] = JobMap(number, self.token, spec, RUNNING, "", RANGES, ranges, endpoints, {})
        return [*((server, self.map_told(number)) for server in self.servers), (sender, m.JobTold(ask.request, 0, "", number))]

    def more_told(self, ask: m.MoreAsk) -> m.MoreTold:
        number = next((number for number, job in self.jobs.items() if job.spec.name == ask.name), 0)
        if not number:
            return m.MoreTold(ask.request, Code.RANGE, f"no job {ask.name!r}", 0, 0, self.token)
        first = self.joins.get(ask.launcher) or self.jobs[number].workers
        if ask.workers and ask.launcher not in self.joins:
            self.joins[ask.launcher] = first
            self.change(number, joined=self.jobs[number].joined + ask.workers)
        return m.MoreTold(ask.request, 0, "", number, first, self.token)

    def map_told(self, number: int) -> m.MapTold:
        return m.MapTold(number, self.jobs[number].token, self.jobs[number].to_document())

    def change(self, number: int, **fields: Any) -> JobMap:
        """A new map of a job."""
        self.token += 1
        self.jobs[number] = self.jobs[number]._replace(token=self.token, **fields)
        return self.jobs[number]


class World:
    """One host, `servers` servers, one master.  Time stands still until nothing is left to deliver."""

    def __init__(self, servers: int = 2, limits: Limits = Limits()) -> None:
        self.limits = limits
        self.now_us = 1_000_000
        self.steps_left = STEPS_MAX
        names = [f"s{number}.0000000{number}" for number in range(servers)]
        self.master = Master(names)
        self.servers = {
            name: ServerMachine(ServerIdentity(name, "host", f"ipc://{name}", 1, "test", {"m0": "ipc://m0"}), limits) for name in names
        }
        self.files: dict[str, MemoryFiles] = {}
        self.queue: deque[tuple[str, str, Any]] = deque()  # sender, to, message
        self.sent: list[tuple[str, Any]] = []  # what the agent has sent
        self.told: list[dict[str, Any]] = []
        self.logs: list[Log] = []
        self.events: deque[tuple[str, Any]] = deque()
        self.performed = 0  # effects of the agent, over all its lives
        self.die_at = -1
        self.lives = 0
        self.interfere: Callable[[str, str, Any], Iterable[Any]] = lambda sender, to, message: (message,)
        self.master_away = False
        self.exports: dict[int, dict[str, bytearray]] = {}
        self.exported: dict[str, bytes] = {}
        self.start_agent()

    # -- the agent

    def start_agent(self) -> None:
        self.lives += 1
        name = f"a0.{self.lives:08x}"
        self.name = name
        self.agent = AgentMachine(Identity(name, "host", 1, "test", "test", BOOT, {"m0": "ipc://m0"}), self.limits)
        self.open: dict[str, AgentChannel] = {}
        self.buffers: dict[str, Any] = {}
        self.refused: set[str] = set()
        self.events.clear()
        for channel in sorted(self.files):
            if self.files[channel].kept:
                self.events.append(("", e.Found(channel)))
        for channel, files in self.files.items():
            if files.rung:
                self.events.append(("", e.Bell(channel)))

    def kill_agent(self) -> None:
        """kill -9: unread messages to it are lost, its channels stay."""
        self.queue = deque(item for item in self.queue if item[1] != self.name and item[0] != self.name)
        self.start_agent()

    def feed(self, sender: str, message: Any) -> None:
        self.events.append((sender, message))
        self._run_agent()

    def _run_agent(self) -> None:
        while self.events:
            self._step("the agent")
            sender, message = self.events.popleft()
            try:
                for effect in self.agent.on_message(sender, message, self.now_us):
                    self._perform(effect)
            except Died:
                self.kill_agent()
                continue
            self.agent.check()

    def _step(self, who: str) -> None:
        """One event more; a machine that keeps itself busy must fail a test, not hang it."""
        self.steps_left -= 1
        assert self.steps_left >= 0, f"{who} runs in circles: {STEPS_MAX} events in one test, at {self.now_us} us"

    def _perform(self, effect: Any) -> None:
        if self.performed == self.die_at:
            self.die_at = -1
            raise Died
        self.performed += 1
        performer = getattr(self, f"_do_{type(effect).__name__}")
        performer(effect)

    def _do_Send(self, effect: Send) -> None:
        self.sent.append((effect.to, effect.message))
        # Payloads travel by reference until they are encoded: encode now, as a socket does.
        frames = [bytes(frame) for frame in codec.encode(effect.message)]
        self._post(self.name, effect.to, codec.decode(frames))

    def _do_Connect(self, effect: Connect) -> None:
        pass

    def _do_Disconnect(self, effect: Disconnect) -> None:
        pass

    def _do_Log(self, effect: Log) -> None:
        self.logs.append(effect)

    def _do_Stop(self, effect: Stop) -> None:
        raise AssertionError(effect)

    def _do_Tell(self, effect: e.Tell) -> None:
        self.told.append(effect.document)

    def _do_OpenChannel(self, effect: e.OpenChannel) -> None:
        files = self.files.get(effect.channel)
        try:
            if files is None:
                raise RequestError(Code.PERM, f"{effect.channel} does not exist")
            info = parse_info(bytes(files.contents["info"]).decode())
            served = adopt_twin(files, info, self.lives)
        except RequestError as error:
            self.events.append(("", e.ChannelFailed(effect.channel, error.code, error.text)))
            return
        self.open[effect.channel] = served
        result = served.result
        clock = result.clock if result.seq else info.clock
        self.events.append((
            "",
            e.ChannelOpened(
                effect.channel, info.job, info.number, info.worker, info.gen, served.done_seq, served.cur_seq, clock,
                result.version, result.status, result.weight, result.pushes, info.elements, served.kept_pushes(), info.bell,
                bool(result.flags & FLAG_STOP), result.flags, served.sums.read(served.done_seq), served.files.size("data"),
            ),
        ))  # fmt: skip

    def _do_ReadCmd(self, effect: e.ReadCmd) -> None:
        try:
            self.events.append(("", e.CmdRead(effect.channel, self.open[effect.channel].read_cmd())))
        except RequestError as error:
            self.events.append(("", e.CmdRead(effect.channel, None, error.code, error.text)))

    def _do_ReadData(self, effect: e.ReadData) -> None:
        served = self.open[effect.channel]
        self._read(effect.channel, lambda: served.read_data(effect.request, aligned(served.reader.stored_bytes)))

    def _do_ReadKept(self, effect: e.ReadKept) -> None:
        served = self.open[effect.channel]
        self._read(effect.channel, lambda: served.read_kept(effect.slot, effect.request, aligned(served.reader.stored_bytes)))

    def _read(self, channel: str, read: Callable[[], Any]) -> None:
        try:
            data = read()
        except RequestError as error:
            self.events.append(("", e.DataRead(channel, code=error.code, text=error.text)))
            return
        self.events.append(("", e.DataRead(channel, data.buffer, data.rows, data.wants, data.crc)))

    def _do_KeepPush(self, effect: e.KeepPush) -> None:
        try:
            self.open[effect.channel].keep(effect.slot, effect.request)
            self.events.append(("", e.PushKept(effect.channel, effect.slot)))
        except RequestError as error:
            self.events.append(("", e.PushKept(effect.channel, effect.slot, error.code, error.text)))

    def _do_DropPush(self, effect: e.DropPush) -> None:
        if effect.channel in self.open:  # of one that was given up, nothing is stored any more
            self.open[effect.channel].drop(effect.slot)

    def _do_SetCurrent(self, effect: e.SetCurrent) -> None:
        self.open[effect.channel].set_current(effect.seq)

    def _do_SetState(self, effect: e.SetState) -> None:
        self.open[effect.channel].set_state(effect.state)

    def _do_WriteParam(self, effect: e.WriteParam) -> None:
        self._write(effect.channel, lambda served: served.write_param(effect.offset, effect.buffer))

    def _do_WriteText(self, effect: e.WriteText) -> None:
        self._write(effect.channel, lambda served: served.write_text(effect.buffer, effect.rows))

    def _do_WriteData(self, effect: e.WriteData) -> None:
        line = f"{effect.turn} {effect.piece} piece-{effect.piece} of {effect.path}\n".encode() if effect.path else b""
        self._write(effect.channel, lambda served: self.events.append(("", e.DataWritten(effect.channel, served.write_data(line)))))

    def _write(self, channel: str, write: Callable[[AgentChannel], None]) -> None:
        if channel in self.refused:
            return
        try:
            write(self.open[channel])
        except RequestError as error:
            self.refused.add(channel)
            self.events.append(("", e.ParamFailed(channel, error.code, error.text)))

    def _do_WriteResult(self, effect: e.WriteResult) -> None:
        if effect.channel not in self.refused:
            self.open[effect.channel].write_result(*effect[1:])

    def _do_WriteError(self, effect: e.WriteError) -> None:
        self.refused.discard(effect.channel)
        self.open[effect.channel].write_error(effect.text)

    def _do_SetDone(self, effect: e.SetDone) -> None:
        if effect.channel not in self.refused:
            self.open[effect.channel].set_done(effect.seq)

    def _do_Reply(self, effect: e.Reply) -> None:
        if effect.channel not in self.refused and not self.open[effect.channel].reply(effect.record):
            self.events.append(("", e.ReplyFailed(effect.channel, "64 KiB of replies are unread")))

    def _do_CloseChannel(self, effect: e.CloseChannel) -> None:
        served = self.open.pop(effect.channel, None)
        if served is not None:
            served.close(effect.state)
        if effect.sweep:
            self.files.pop(effect.channel, None)

    def _do_MakeExport(self, effect: e.MakeExport) -> None:
        self.exports.setdefault(effect.export, {})[effect.file] = bytearray(effect.nbytes)

    def _do_WriteExport(self, effect: e.WriteExport) -> None:
        data = memoryview(effect.buffer).cast("B")
        file = self.exports[effect.export][effect.file]
        file.extend(bytes(max(0, effect.offset - len(file))))
        file[effect.offset : effect.offset + len(data)] = data

    def _do_CutExport(self, effect: e.CutExport) -> None:
        del self.exports[effect.export][effect.file][effect.nbytes :]

    def _do_EndExport(self, effect: e.EndExport) -> None:
        files = self.exports.pop(effect.export, {})
        if effect.keep:
            self.exported = {name: bytes(data) for name, data in files.items()}
            self.events.append(("", e.ExportEnded(effect.export, sum(map(len, files.values())))))

    # -- the net

    def _post(self, sender: str, to: str, message: Any) -> None:
        for copy in self.interfere(sender, to, message):
            self.queue.append((sender, to, copy))

    def deliver_one(self) -> None:
        sender, to, message = self.queue.popleft()
        if to == self.name:
            self.feed(sender, message)
        elif to == "m0":
            if not self.master_away:
                for target, answer in self.master.on_message(sender, message):
                    self._post("m0", target, answer)
        elif to in self.servers:
            self._run_server(to, sender, message)

    def _run_server(self, name: str, sender: str, message: Any) -> None:
        events = deque([(sender, message)])
        while events:
            self._step(name)
            for effect in self.servers[name].on_message(*events.popleft(), self.now_us):
                if isinstance(effect, Turn):
                    events.append(("", effect))
                elif isinstance(effect, WarmUp):
                    events.append(("", Warm()))
                elif isinstance(effect, Send):
                    frames = [bytes(frame) for frame in codec.encode(effect.message)]
                    self._post(name, effect.to, codec.decode(frames))

    def settle(self, messages_max: int = 20_000) -> None:
        """Deliver until nothing moves at this instant."""
        self._tick_agent()
        for _ in range(messages_max):
            if self.events:
                self._run_agent()
            elif self.queue:
                self.deliver_one()
            else:
                return
        raise AssertionError("messages run in circles")

    def _tick_agent(self) -> None:
        deadline_us = self.agent.deadline_us()
        if deadline_us is not None and deadline_us <= self.now_us:
            try:
                for effect in self.agent.on_time(self.now_us):
                    self._perform(effect)
            except Died:
                self.kill_agent()
            self.agent.check()

    def run(self, seconds: float = 5.0, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass, event by event."""
        end_us = self.now_us + int(seconds * 1e6)
        self.settle()
        while not until():
            self._step("time")
            times = [self.agent.deadline_us(), *(server.deadline_us() for server in self.servers.values())]
            next_us = max(self.now_us + 1, min(t for t in times if t is not None))
            if next_us > end_us:
                self.now_us = end_us
                return False
            self.now_us = next_us
            for name, server in self.servers.items():
                due_us = server.deadline_us()
                if due_us is not None and due_us <= self.now_us:
                    for effect in server.on_time(self.now_us):
                        if isinstance(effect, Send):
                            self._post(name, effect.to, effect.message)
            self.settle()
        return True

    # -- launchers

    def ask(self, op: str, connection: int = 1, **fields: Any) -> dict[str, Any]:
        """One op of agent.sock, until it is answered."""
        number = len(self.told) + 1000
        for _ in range(3):  # a lost connection: the launcher asks again
            lives = self.lives
            self.feed("", e.Asked(connection, {"op": op, "id": number, **fields}))
            self.run(until=lambda lives=lives: self.lives != lives or any(d.get("id") == number for d in self.told))  # type: ignore[misc]
            answers = [d for d in self.told if d.get("id") == number]
            if answers:
                return answers[-1]
            assert self.lives != lives, f"{op} was not answered"
            self.run(1.0)
        raise AssertionError(f"{op} was not answered")

    def register(self, spec: JobSpec) -> dict[str, Any]:
        answer = self.ask("register", spec=spec.to_document())
        assert answer["ok"], answer
        return answer

    def plug(self, job: str, worker: int, connection: int = 1) -> Program:
        """attach, make the channel, opened."""
        answer = self.ask("attach", connection, job=job, worker=worker)
        assert answer["ok"], answer
        info = parse_info(answer["info"])
        self.files[info.directory_name] = MemoryFiles(info)
        opened = self.ask("opened", connection, job=job, worker=worker, gen=answer["gen"], dir=f"/elsewhere/{info.directory_name}")
        assert opened["ok"], opened
        return Program(self, info.directory_name, info.gen)


class Program:
    """The program's side of one channel."""

    def __init__(self, world: World, name: str, gen: int) -> None:
        self.world = world
        self.name = name
        self.gen = gen
        self.files = world.files[name]
        self.seq = 0
        self.clock = parse_info(bytes(self.files.contents["info"]).decode()).clock

    def write(self, line: str, grad: Any = None) -> None:
        if grad is not None:
            self.files.contents["grad"][:] = np.asarray(grad).tobytes()
        self.files.contents["cmd"][:] = (line + "\n").encode()

    def ring(self) -> None:
        self.files.rung += 1
        served = self.world.open.get(self.name)
        if served is not None:
            served.drain_bell()
            self.world.feed("", e.Bell(self.name))

    def say(self, line: str, grad: Any = None) -> None:
        self.write(line, grad)
        self.ring()

    def begin(self, verb: str, grad: Any = None, more: str = "") -> None:
        self.seq += 1
        self.say(f"{verb} {self.seq} {self.clock} {more}".rstrip(), grad)

    def replies(self) -> list[Reply]:
        """Take all replies out of the bell."""
        records, self.files.replies = list(self.files.replies), deque()
        return [parse_reply(record) for record in records]

    def answer(self, seconds: float = 5.0) -> Reply:
        """The reply to the newest request; earlier ones are passed over, as every client does."""
        found: list[Reply] = []

        def came() -> bool:
            found.extend(reply for reply in self.replies() if reply.seq == self.seq)
            return bool(found)

        assert self.world.run(seconds, came), f"no answer to {self.seq}: {self.err()}"
        self.clock = found[-1].clock
        return found[-1]

    def do(self, verb: str, grad: Any = None, more: str = "") -> Reply:
        self.begin(verb, grad, more)
        return self.answer()

    def param(self, dtype: str = "<f4") -> Any:
        return np.frombuffer(bytes(self.files.contents["param"]), dtype)

    def err(self) -> str:
        return bytes(self.files.contents["err"]).decode().strip()


def job(name: str = "digits", workers: int = 1, elements: int = 40, **fields: Any) -> JobSpec:
    """One f32 table in blocks of 16 elements, optimizer add, unless told otherwise."""
    table = {"optimizer": "add", "combine": "sum", **fields.pop("table", {})}
    return JobSpec(name, workers, (TableSpec("w", (elements,), **table),), **fields)


def lost(world: World, number: int, reason: str) -> None:
    """The master tells everybody that the job is lost."""
    world.master.change(number, state=LOST, reason=reason)
    for node in (world.name, *world.servers):
        world.queue.append(("m0", node, world.master.map_told(number)))


def test_a_step_goes_all_the_way_and_back() -> None:
    world = World()
    world.register(job())
    program = world.plug("digits", 0)
    for clock in range(3):
        reply = program.do("step", np.full(40, 2.0, "<f4"), "n=40")
        assert reply.ok and reply.clock == clock + 1 and reply.n == 40
        np.testing.assert_array_equal(program.param(), np.full(40, 2.0 * (clock + 1), "<f4"))
    answer = world.ask("exited", job="digits", worker=0, gen=1, how="finished")
    assert answer["ok"] and (answer["clocks"], answer["pushes"]) == (3, 3)
    assert world.ask("export", job="digits", dir="/out")["ok"]
    assert np.frombuffer(world.exported["w.bin"], "<f4").tolist() == [6.0] * 40


def test_a_machine_that_keeps_itself_busy_fails_the_test_and_does_not_hang_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.register(job())
    world.steps_left = 1_000
    monkeypatch.setattr(AgentMachine, "deadline_us", lambda agent: 0)
    with pytest.raises(AssertionError, match="runs in circles"):
        world.run(10.0)
    monkeypatch.setattr(AgentMachine, "on_message", lambda agent, sender, message, now_us: [e.OpenChannel("nowhere")])
    world.steps_left = 1_000
    with pytest.raises(AssertionError, match="the agent runs in circles"):
        world.feed("", e.Bell("nowhere"))
