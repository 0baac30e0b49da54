"""A channel by hand: the small process that `plugml channel NAME` leaves behind, and how it is told to end.

    plugml channel NAME --- fork, fork ---> keeper: register, attach, make, opened; holds keeper file and FIFOs
         prints exports  <---- pipe ------- {"exports": {...}} | {"error": ..., "exit_code": ...}
    plugml channel --close NAME  --- SIGTERM to the pid in <channel>/holder --->  keeper: exited, end, sweep
    the cluster goes down        --- the same, before its nodes are told to end

The keeper also ends when the job ends, and when the agent is gone for good (the program is answered GONE).
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import select
import shlex
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.errors import Code, NoClusterError, PlugmlError, UsageError, WorldError
from ..core.jobmap import FINISHED, RUNNING
from ..core.limits import Limits
from ..core.table import TableSpec
from ..shm_protocol.create import Channel, create_channel
from ..shm_protocol.info import environment, parse_info
from ..shm_protocol.root import channel_parts, is_kept
from . import effects as e
from . import words
from .agentlink import ANSWER_S, SOCKET, AgentLink, ask_once
from .host import host_name
from .plan import RunPlan
from .result import held, publish

HOLDER = "holder"
MESSAGE_BYTES_MAX = 1 << 20
CLOSE_LIMIT_S = ANSWER_S


class KeeperError(WorldError):
    """Why no channel was made; `exit_code` as the command should end."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


# -- the command's side -----------------------------------------------------------------------------------------------


def open_channel(plan: RunPlan, root: Path) -> dict[str, str]:
    """Leave a keeper behind; gives the variables of the program's environment.  Raises `PlugmlError`."""
    name = plan.spec.name
    if name in dict(_keepers(root)):
        raise UsageError(f"channel {name} is open already; close it by `plugml channel --close {name}`, or take another name")
    plan = plan.with_settings(command="by hand", host=host_name(), run=secrets.token_hex(8))
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(read_fd)
            _become_keeper(plan, root, write_fd)
        finally:  # no way back into the command's code
            os._exit(0)
    os.close(write_fd)
    os.waitpid(child, 0)
    with os.fdopen(read_fd, "rb") as pipe:
        line = pipe.readline(MESSAGE_BYTES_MAX)
    if not line:
        raise WorldError("the process that should keep the channel ended without a word; is memory short?")
    told = json.loads(line)
    if "error" in told:
        raise KeeperError(told["error"], told["exit_code"])
    exports: dict[str, str] = told["exports"]
    return exports


def export_lines(variables: Mapping[str, str]) -> str:
    """For `eval`, in any POSIX shell."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def close_channel(name: str, root: Path, result: str = "") -> str:
    """End the channel of job `name`, or of one worker (`job.worker`); gives a sentence.  Raises `PlugmlError`.

    With a directory `result` the values of a channel by hand are saved there before; if they cannot be, it stays open.
    """
    job, worker, gen = _find(name, root)
    directory = root / f"{job}.{worker}.{gen}"
    pid = _holder(directory)
    fields = {"job": job, "worker": worker, "gen": gen, "how": "finished"}
    if pid:
        saved = _save(directory, root, result) if result else ""
        text = _end_keeper(pid, job)
        try:
            answer = asyncio.run(ask_once(root / SOCKET, "exited", fields))  # again: the agent remembers its last words
        except PlugmlError:
            return words.joined((text, saved))
        kept = "" if saved or answer.fields.get("pushes") == 0 else "its values are gone (--result DIR would have kept them)"
        return words.joined((f"{text} after {_done(answer)}" if not answer.code else text, saved or kept))

    if result:
        raise UsageError(f"worker {worker} of job {job} was started by `plugml run`, which saves the result: leave --result out")
    answer = asyncio.run(ask_once(root / SOCKET, "exited", fields))
    if answer.code:
        raise WorldError(f"channel {name}: {answer.code}: {answer.text}")
    return f"worker {worker} of job {job} is unplugged after {_done(answer)}: the others go on without it"


def _done(answer: e.Answer) -> str:
    """How far a worker came, as its agent says."""
    clocks, pushes = (int(answer.fields.get(key) or 0) for key in ("clocks", "pushes"))
    return f"{words.count(clocks, 'clock')} and {words.count(pushes, 'push')}"


def _save(directory: Path, root: Path, result: str) -> str:
    """The tables at the last closed clock, as `plugml run` leaves them; gives a sentence."""
    info = parse_info((directory / "info").read_text())
    place = Path(result).absolute()
    tables = tuple(
        TableSpec(table.name, table.shape, table.kind, table.dtype, table.order, optimizer="add", index=table.index_type) for table in info.tables
    )
    with held(place, tables):
        scratch = Path(tempfile.mkdtemp(prefix=".saving-", dir=place))
        try:
            answer = asyncio.run(ask_once(root / SOCKET, "export", {"job": info.job, "dir": str(scratch)}))
            if answer.code:
                raise WorldError(f"the values could not be saved, and the channel stays open: {answer.code}: {answer.text}")
            saved = publish(tables, scratch, place, {"job": info.job, "state": "saved", "clocks": int(answer.fields.get("clock") or 0)})
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return words.joined((f"result in {place}: {', '.join(saved.files)}", *saved.warnings))


def _find(name: str, root: Path) -> tuple[str, int, int]:
    """The newest channel that is meant."""
    found = [parts for entry in root.iterdir() if (parts := channel_parts(entry.name))]
    matching = [parts for parts in found if name in (parts[0], f"{parts[0]}.{parts[1]}")]
    if len({parts[:2] for parts in matching}) > 1:
        names = ", ".join(sorted({f"{job}.{worker}" for job, worker, _ in matching}))
        raise UsageError(f"job {name!r} has several channels: {names}; name one of them")
    if not matching:
        names = ", ".join(sorted({f"{job}.{worker}" for job, worker, _ in found})) or "none"
        raise UsageError(f"there is no channel {name!r} in {root}; there are: {names}")
    return max(matching, key=lambda parts: parts[2])


def _note_holder(directory: Path) -> None:
    fd = os.open(directory / HOLDER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(f"{os.getpid()}\n")


def _holder(directory: Path) -> int:
    """Pid of the keeper that `plugml channel` left, 0 when a launcher keeps the channel."""
    try:
        return int((directory / HOLDER).read_text())
    except (OSError, ValueError):
        return 0


async def end_keepers(root: Path, grace_s: float) -> list[str]:
    """The cluster goes down: close every channel by hand in `root` while its agent still answers; gives their jobs.

    A keeper that has not ended after the grace is killed: what it held is swept with the root.
    """
    loop = asyncio.get_running_loop()
    ends: dict[int, asyncio.Future[None]] = {}
    jobs = []
    for job, pid in _keepers(root):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        jobs.append(job)
        ended = ends[pidfd] = loop.create_future()
        loop.add_reader(pidfd, _set, ended)
        _signal(pidfd, signal.SIGTERM)
    try:
        if ends and (await asyncio.wait(ends.values(), timeout=grace_s))[1]:
            for pidfd, ended in ends.items():
                if not ended.done():
                    _signal(pidfd, signal.SIGKILL)
            await asyncio.wait(ends.values())
    finally:
        for pidfd in ends:
            loop.remove_reader(pidfd)
            os.close(pidfd)
    return jobs


def _keepers(root: Path) -> list[tuple[str, int]]:
    """Job and pid of every keeper in `root` that is alive: it holds its channel locked."""
    try:
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        found = []
        for name in sorted(os.listdir(root_fd)):
            parts = channel_parts(name)
            pid = _holder(root / name) if parts else 0
            if parts and pid and is_kept(root_fd, name):
                found.append((parts[0], pid))
        return found
    finally:
        os.close(root_fd)


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _signal(pidfd: int, signum: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signum)
    except ProcessLookupError:
        return  # it has just ended by itself


def _end_keeper(pid: int, job: str) -> str:
    try:
        pidfd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return f"the keeper of {job} was gone already; the agent sweeps what it left"
    with os.fdopen(pidfd, "rb") as ended:
        if not select.select([ended], [], [], CLOSE_LIMIT_S)[0]:
            raise WorldError(f"the keeper of {job} (process {pid}) does not end; the agent does not answer it, see `plugml status`")
    return f"channel {job} is closed"


# -- the keeper's side ------------------------------------------------------------------------------------------------


def _become_keeper(plan: RunPlan, root: Path, write_fd: int) -> None:
    """In the forked child: let go of terminal, session and standard streams, fork again, and keep."""
    os.setsid()
    if os.fork() != 0:
        return
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # `$(plugml channel ...)` waits until nobody holds its pipe
        os.dup2(nothing, fd)
    asyncio.run(Keeper(plan, root, write_fd).keep())


class Keeper:
    """Holds one channel of a job with one worker."""

    def __init__(self, plan: RunPlan, root: Path, pipe: int) -> None:
        self.plan = plan
        self.root = root
        self.limits = Limits()
        self._pipe = pipe
        self._number = 0
        self._run: dict[str, int] = {}  # names our run to the agent: a later one may have the job's name
        self._answers: dict[int, asyncio.Future[e.Answer]] = {}
        self._away: asyncio.TimerHandle | None = None

    async def keep(self) -> None:
        """Until it is told to end, the job ends, or the agent stays away."""
        loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._gone = False
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(signum, self._over.set)
        self._link = AgentLink(loop, self.root / SOCKET, self._on_event)
        self._on_event(e.AgentDown("not connected yet"))
        self._link.start()
        try:
            channel = await self._unless_over(self._open())
            if channel is None:
                raise KeeperError(f"no agent answers at {self.root}", NoClusterError.exit_code)
        except PlugmlError as error:
            self._say({"error": str(error), "exit_code": getattr(error, "exit_code", 1)})
            return
        with channel:
            _note_holder(channel.directory)
            directory = str(channel.directory)
            exports = environment(
                channel.info, directory, local_worker=0, local_workers=1, out=self.plan.directory, plugml_version=__version__
            )
            self._say({"exports": exports})
            await self._over.wait()
            await self._leave(channel)
        self._link.close()

    async def _open(self) -> Channel:
        spec = self.plan.spec
        self._run = {"run": int((await self._ask("register", spec=spec.to_document())).fields["job"])}
        attached = await self._ask("attach", job=spec.name, worker=0, **self._run)
        channel = create_channel(self.root, parse_info(attached.fields["info"]))
        try:
            await self._ask("opened", job=spec.name, worker=0, gen=channel.info.gen, dir=str(channel.directory))
        except PlugmlError:
            channel.close()
            raise
        return channel

    async def _leave(self, channel: Channel) -> None:
        """Close in order, unless nobody is there to hear it."""
        if self._gone:
            channel.retire()
            return
        job = self.plan.spec.name
        last = (("exited", {"job": job, "worker": 0, "gen": channel.info.gen, "how": "finished"}),
                ("end", {"job": job, "state": FINISHED, "reason": "closed by plugml channel --close"}))  # fmt: skip
        self._over.clear()
        for op, fields in last:
            try:
                await asyncio.wait_for(self._ask(op, **fields, **self._run), self.limits.explain_us / 1e6)
            except (PlugmlError, TimeoutError):
                continue  # the job has ended already, or its agent has: the channel is swept all the same

    async def _ask(self, op: str, **fields: Any) -> e.Answer:
        self._number += 1
        answered: asyncio.Future[e.Answer] = asyncio.get_running_loop().create_future()
        self._answers[self._number] = answered
        self._link.ask(e.Ask(self._number, op, fields))
        answer = await answered
        if answer.code:
            hint = f" (a channel of yours? plugml channel --close {self.plan.spec.name})" if answer.code == Code.COLLIDE.name else ""
            raise KeeperError(f"{op}: {answer.code}: {answer.text}{hint}", 2 if answer.code == Code.COLLIDE.name else 1)
        return answer

    async def _unless_over(self, work: Any) -> Any:
        """The outcome of `work`, None when the end came first."""
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(self._over.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        tasks[1].cancel()
        if not tasks[0].done():
            tasks[0].cancel()
            return None
        return tasks[0].result()

    def _on_event(self, event: Any) -> None:
        if isinstance(event, e.Answer):
            self._answers.pop(event.number).set_result(event)
        elif isinstance(event, e.AgentDown) and self._away is None:
            self._away = asyncio.get_running_loop().call_later(self.limits.gone_us / 1e6, self._given_up)
        elif isinstance(event, e.AgentUp) and self._away is not None:
            self._away.cancel()
            self._away = None
        elif isinstance(event, e.AgentNews):
            news = event.document
            ours = news.get("job") == self.plan.spec.name and news.get("run", self._run.get("run")) == self._run.get("run")
            if news.get("event") == "job" and ours and news.get("state") != RUNNING:
                self._over.set()

    def _given_up(self) -> None:
        self._gone = True
        self._over.set()

    def _say(self, document: dict[str, Any]) -> None:
        """The one message to the command, which waits for it."""
        try:
            os.write(self._pipe, json.dumps(document).encode() + b"\n")
        except BrokenPipeError:  # the command was interrupted: nobody has the channel
            self._over.set()
        os.close(self._pipe)
