"""One case, played: a channel, an agent with its script, the program under it, and what was seen until its end."""

from __future__ import annotations

import os
import select
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO, NamedTuple

from ...core.job import JobSpec
from ..info import without
from .agent import ScriptedAgent
from .cases import ANYHOW, BADLY, WELL, Case, Plain
from .group import Group, Used
from .muffled import MuffledAgent
from .observer import Breach, Observer, unread

LOOK_S = 0.05
STILL_S = 0.25  # after a last sign of life a program is looked at more closely
QUIET_S = 2.0  # a program that sleeps in a pipe so long, and nobody owes it anything, sleeps for ever
TAIL_BYTES = 2000
EVIDENT = frozenset({"4.2", "5.2"})  # what lies in the files tells more than the case in which it hangs


class Command(NamedTuple):
    """The program, and what its environment has beside its channel."""

    words: Sequence[str]
    environ: Mapping[str, str]
    cwd: str | None
    timeout_s: float
    steps: int = 0  # clocks after which the job's stop rule ends every case; 0 = never
    ops: tuple[str, ...] = ()  # of a driver, in cases that have none of their own
    cancel: threading.Event = threading.Event()  # set: whatever runs is ended


class Outcome(NamedTuple):
    """`why` says why the case proved nothing; empty = it did."""

    case: Case
    breaches: tuple[Breach, ...]
    reached: frozenset[str]
    why: str
    seconds: float
    code: int | None
    tail: str
    plain: Plain
    output: str = ""
    hung: bool = False
    pushes: int = 0
    values: Sequence[float] = ()  # of the first dense table, as the servers have it at the end


NOTHING = Plain({}, (), frozenset(), False, False)


def play(case: Case, command: Command, spec: JobSpec, plain: Plain = NOTHING) -> Outcome:
    """Play one case to its end."""
    if case.skip:
        return Outcome(case, (), frozenset(), case.skip, 0.0, None, "", NOTHING)
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        found = _play(case, command, spec, plain, output, errors)
    return found._replace(seconds=time.monotonic() - begin)


def _play(case: Case, command: Command, spec: JobSpec, plain: Plain, output: IO[bytes], errors: IO[bytes]) -> Outcome:
    kind = MuffledAgent if case.muffled else ScriptedAgent
    agent = kind(_job(case, command, spec), case.faults, gen=case.gen, clock=case.clock)
    try:
        observer = _prepare(case, agent, plain)
        try:
            environ = agent.environment(0) if case.channel else without(os.environ)
            ops = _write_ops(case.ops or command.ops, agent)
            group = Group(command.words, {**environ, **command.environ, **case.environ, **ops}, output, errors, command.cwd)
            observer.group = group
            try:
                hung = not _wait(group, observer, agent, command)
                both_ways = hung and group.opened_both_ways(agent.kept[0].directory / "rep")
                why_hung = observer.why_it_hangs(case.muffled and group.blocked_on_pipe("write")) if hung else None
            finally:
                group.close()
                agent.stop()
        finally:
            observer.close()
        asked = bool(observer.lines) or (not case.served and unread(agent.kept[0].req_fd) > 0)
        ended = Ended(group.program.returncode, hung, both_ways, why_hung, asked, bool(agent.fired) or not case.faults, _tail(errors))
        breaches, why = _judge(case, observer, ended)
    finally:
        agent.__exit__()
    output.seek(0)
    told = output.read().decode(errors="replace")
    pushes, values = sum(agent.server.pushes), _values(agent)
    return Outcome(case, *_sums(case, observer, breaches, why), 0.0, ended.code, ended.tail, _plain(observer), told, hung, pushes, values)


def _job(case: Case, command: Command, spec: JobSpec) -> JobSpec:
    tables = tuple(replace(table, init=case.init) for table in spec.tables) if case.init else spec.tables
    stop_clock = command.steps + case.clock if command.steps else 0
    return replace(spec, bell=case.bell, tables=tables, stop_clock=stop_clock)


def _write_ops(ops: Sequence[str], agent: ScriptedAgent) -> dict[str, str]:
    """What a driver is to do, in a file of its own."""
    if not ops:
        return {}
    path = agent.root / "ops"
    path.write_text("".join(f"{op}\n" for op in ops))
    return {"PLUGML_OPS": str(path)}


def _values(agent: ScriptedAgent) -> list[float]:
    table = next((table for table in agent.server.tables if table.spec.kind == "dense"), None)
    return [] if table is None else table.values.tolist()


class Ended(NamedTuple):
    """How the program ended.  `fired`: what the script held for it has come."""

    code: int
    hung: bool
    both_ways: bool
    why_hung: Breach | None
    asked: bool
    fired: bool
    tail: str


def _prepare(case: Case, agent: ScriptedAgent, plain: Plain) -> Observer:
    """The channel as the case wants it, and somebody who looks at it."""
    directory = agent.kept[0].directory
    channel = agent.channels[0]
    assert channel is not None
    for record in case.seeded:
        channel.reply(record)
    if case.served and not case.muffled:
        agent.__enter__()
    for seq in range(1, case.earlier + 1):
        _ping(agent, seq)
    observer = Observer(directory, agent.kept[0].info, case.blame, case.linger_s, plain.distinct)
    if isinstance(agent, MuffledAgent):
        agent.muffle(observer)
        agent.__enter__()
    else:
        agent.attend(observer)
    if case.alter is not None:
        case.alter(directory)
    observer.forget()
    return observer


def _ping(agent: ScriptedAgent, seq: int) -> None:
    """A request of the channel's earlier program."""
    directory = agent.kept[0].directory
    (directory / "cmd").write_bytes(b"ping %d %d\n" % (seq, agent.infos[0].clock))
    with open(directory / "rep", "r+b", buffering=0) as rep, open(directory / "req", "r+b", buffering=0) as req:
        req.write(b"\n")
        rep.read(64)


def _wait(group: Group, observer: Observer, agent: ScriptedAgent, command: Command) -> bool:
    """Until the program ends; False: it hangs, or nobody wants to know any more."""
    poll = select.poll()
    poll.register(group.pidfd, select.POLLIN)
    news, since, quiet_since = -1, time.monotonic(), time.monotonic()
    used = Used(0, 0, 0)
    while not poll.poll(LOOK_S * 1000):
        now = time.monotonic()
        if command.cancel.is_set():
            return False
        if observer.news != news or (observer.owes and agent.channels[0] is not None):
            news, since = observer.news, now
        if now - since < STILL_S:
            quiet_since = now
            continue
        if now - since > command.timeout_s:
            return False
        before, used = used, group.used()
        if used[:2] != before[:2] or not group.asleep():
            quiet_since = now
        elif now - quiet_since > min(QUIET_S, command.timeout_s) and (group.blocked_on_pipe("read") or group.blocked_on_pipe("write")):
            return False
    return True


def _judge(case: Case, observer: Observer, ended: Ended) -> tuple[tuple[Breach, ...], str]:
    """Breaches of the whole case, and why it proved nothing."""
    found = tuple(observer.breaches)
    if ended.hung:
        assert ended.why_hung is not None
        if case.name == "vanish" and ended.both_ways:
            return found, "rep is opened for reading and writing, so that its end is never seen"
        if not case.served and ended.asked:
            return (Breach(case.rule, 1, "it rang the bell all the same, and waits for an answer"),), ""
        rule = ended.why_hung.rule if case.rule in ("9.7", "") or ended.why_hung.rule in EVIDENT else case.rule
        if case.bell == "sem" and "reply" not in observer.opened_first:
            rule = "2.15"
        return (*found, ended.why_hung._replace(rule=rule)), ""
    if found:
        return found, ""
    if case.bell == "sem":
        return _judge_semaphore(case, observer, ended)
    if not case.served:
        return _judge_unserved(case, ended)
    if not case.channel:
        return (() if ended.code == 0 else (Breach(case.rule, 0, _failed(ended)),)), ""
    if not ended.asked:
        return _judge_silent(case, ended)
    if not ended.fired:
        return (), "the program ended before"
    if case.end == WELL and ended.code != 0:
        return (Breach(case.rule, observer.seq, _failed(ended)),), ""
    if case.end == BADLY and ended.code == 0:
        return (Breach(case.rule, observer.seq, "it ended with 0, as if all were well"),), ""
    if case.end == ANYHOW and not case.rule and ended.code != 0:
        return (), "the program cannot do with a bell that is full"
    return (), ""


def _judge_silent(case: Case, ended: Ended) -> tuple[tuple[Breach, ...], str]:
    if case.name == "plain":
        seen = "it ended with 0 and rang no bell: did it run alone?" if ended.code == 0 else f"it rang no bell: {_failed(ended)}"
        return (Breach("5.1" if ended.code == 0 else "9.7", 0, seen),), ""
    if ended.code != 0 and case.end == WELL:
        return (Breach(case.rule, 0, _failed(ended)),), ""
    return (), "the program asked nothing"


def _judge_unserved(case: Case, ended: Ended) -> tuple[tuple[Breach, ...], str]:
    """The channel cannot be used: the program must see it, and fail."""
    if ended.asked:
        return (Breach(case.rule, 1, "it rang the bell all the same"),), ""
    if ended.code == 0:
        return (Breach(case.rule, 0, "it ended with 0, as if all were well"),), ""
    return (), ""


def _judge_semaphore(case: Case, observer: Observer, ended: Ended) -> tuple[tuple[Breach, ...], str]:
    """Refused at once, or served to the end."""
    if not ended.asked:
        if ended.code == 0:
            return (Breach("2.15", 0, "it ended with 0 and rang no bell"),), ""
        observer.reached.add("2.15")
        return (), "" if case.rule == "2.15" else "the program refuses bell=sem"
    observer.reached |= {"2.15", "5.12"}
    if case.end == BADLY and ended.code == 0:
        return (Breach("5.13", observer.seq, "it ended with 0 after GONE"),), ""
    if case.end == ANYHOW and ended.code != 0:
        return (Breach("5.12", observer.seq, _failed(ended)),), ""
    return (), ""


def _failed(ended: Ended) -> str:
    last = ended.tail.strip().splitlines()[-1:] or ["it said nothing"]
    how = f"signal {-ended.code}" if ended.code < 0 else str(ended.code)
    return f"it ended with {how}: {last[0][:200]}"


def _sums(case: Case, observer: Observer, breaches: tuple[Breach, ...], why: str) -> tuple[tuple[Breach, ...], frozenset[str], str]:
    reached = set(observer.reached)
    if not breaches and not why:
        reached |= {case.rule, *case.also} - {""}
    return breaches, frozenset(reached), why


def _plain(observer: Observer) -> Plain:
    digests = list(observer.digests.values())
    distinct = len(set(digests)) == len(digests)
    return Plain(dict(observer.verbs), tuple(observer.lines), frozenset(observer.opened), observer.said_hello, distinct)


def _tail(errors: IO[bytes]) -> str:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - TAIL_BYTES))
    return errors.read().decode(errors="replace")
