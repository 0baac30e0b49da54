"""The launcher's hands: screen, logs, result, environment, host, guard and the line to the agent."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugml.core.errors import RootError, UsageError, WorldError
from plugml.launch import effects as e
from plugml.launch import host, words
from plugml.launch.agentlink import AgentLink
from plugml.launch.crew import Crew
from plugml.launch.environment import thread_note, thread_variables, threads_each, worker_environment
from plugml.launch.guard import Guard
from plugml.launch.main import SIGNALS
from plugml.launch.output import QUEUE_BYTES_MAX, Screen, WorkerOutput
from plugml.launch.plan import RunPlan, make_plan
from plugml.launch.progress import Progress
from plugml.launch.result import claim, held, publish, would_claim
from plugml.launch.saving import Saver
from plugml.launch.start import Early, EarlyEndError
from plugml.runtime.output import Splitter
from plugml.shm_protocol.info import Info

LIMIT_S = 30.0


def plan(directory: Path, **flags: Any) -> RunPlan:
    flags = {"tables": ["w=2,3"], "argv": ["./t"], "workers": 2, **flags}
    return make_plan({}, "job.toml", flags, str(directory))


# -- result -----------------------------------------------------------------------------------------------------------


def test_a_default_place_gets_a_suffix_and_an_empty_one_goes_away(tmp_path: Path) -> None:
    first_plan, first = claim(plan(tmp_path))
    second_plan, second = claim(plan(tmp_path))
    assert (first_plan.spec.name, second_plan.spec.name) == ("t", "t-2")
    assert first_plan.renamed("other").result == first_plan.result, "the place stays when the job has to take another name"
    assert first_plan.result == str(first.directory) != str(second.directory)
    (first.directory / "w0" / "mine").write_text("x")
    first.release()
    second.release()
    assert (tmp_path / "plugml-runs" / "t" / "w0" / "mine").exists() and not (tmp_path / "plugml-runs" / "t-2").exists()
    assert sorted(p.name for p in (tmp_path / "plugml-runs" / "t").iterdir()) == ["w0"]


def test_a_place_of_the_users_own_keeps_its_empty_directories(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    _, place = claim(plan(tmp_path, result=str(tmp_path)))
    place.release()
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_a_given_place_is_used_again_but_not_at_once(tmp_path: Path) -> None:
    _, place = claim(plan(tmp_path, name="mine"))
    with pytest.raises(UsageError, match="another run is using"):
        claim(plan(tmp_path, name="mine"))
    (place.directory / "result.json").write_text("{}")
    place.release()
    _, again = claim(plan(tmp_path, name="mine"))
    again.release()
    assert (tmp_path / "plugml-runs" / "mine" / "result.json").read_text() == "{}"


def test_a_place_that_cannot_be_written_is_refused_with_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another place with --result DIR"):
        claim(plan(tmp_path, result=str(tmp_path / "file" / "x")))


def test_a_result_without_a_run_is_refused_the_same_places(tmp_path: Path) -> None:
    made, place = claim(plan(tmp_path, tables=["w=2,3"]))
    with pytest.raises(UsageError, match="another run is using"), held(place.directory, made.spec.tables):
        pass
    place.release()

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "w.bin").write_text("mine")
    with pytest.raises(UsageError, match="no run has made it"), held(mine, made.spec.tables):
        pass
    assert [entry.name for entry in mine.iterdir()] == ["w.bin"]
    with pytest.raises(UsageError, match="choose another place with --result DIR"), held(mine / "w.bin" / "x", made.spec.tables):
        pass

    with pytest.raises(KeyError), held(tmp_path / "new" / "deep", made.spec.tables):
        raise KeyError
    assert not (tmp_path / "new").exists(), "nothing came into it"
    with held(tmp_path / "new", made.spec.tables):
        (tmp_path / "new" / "w.bin").write_text("saved")
        with pytest.raises(UsageError, match="another run is using"):
            would_claim(plan(tmp_path, result=str(tmp_path / "new"), tables=["v=2,3"]))
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["w.bin"]


def test_the_result_is_whole_or_not_there(tmp_path: Path) -> None:
    made, place = claim(plan(tmp_path, tables=["w=2,3,order=F", "file=2:i64,optimizer=add"]))
    scratch = Path(place.prepare(str(place.directory)))
    (scratch / "w.bin").write_bytes(np.arange(6, dtype="<f4").tobytes())
    (scratch / "file.bin").write_bytes(b"\1")
    with pytest.raises(WorldError, match="file.bin has 1 bytes, the table 16"):
        publish(made.spec.tables, scratch, place.directory, {})
    assert not (place.directory / "w.bin").exists()

    (scratch / "file.bin").write_bytes(np.array([7, 8], dtype="<i8").tobytes())
    saved = publish(made.spec.tables, scratch, place.directory, {"job": "t"})
    assert saved.files == ("w.bin", "file.bin", "tables.npz", "result.json") and not scratch.exists()
    with np.load(place.directory / "tables.npz") as tables:
        assert tables["w"].tolist() == [[0, 2, 4], [1, 3, 5]] and tables["file"].tolist() == [7, 8]
    document = json.loads((place.directory / "result.json").read_text())
    assert document["job"] == "t" and document["tables"][0]["finite"] is True and document["tables"][0]["bytes"] == 24
    place.release()


def test_every_file_of_the_result_has_the_launchers_mode(tmp_path: Path) -> None:
    """A cluster that was started with another umask neither opens a private model nor closes a shared one."""
    made, place = claim(plan(tmp_path, tables=["w=2,3"]))
    scratch = Path(place.prepare(str(place.directory)))
    (scratch / "w.bin").write_bytes(bytes(24))
    (scratch / "w.bin").chmod(0o644)
    before = os.umask(0o077)
    try:
        names = publish(made.spec.tables, scratch, place.directory, {}).files
    finally:
        os.umask(before)
    assert {(place.directory / name).stat().st_mode & 0o777 for name in names} == {0o600}
    place.release()


def test_a_full_disk_leaves_the_earlier_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, place = claim(plan(tmp_path))
    for number in (1, 2):
        scratch = Path(place.prepare(str(place.directory)))
        (scratch / "w.bin").write_bytes(np.full(6, number, "<f4").tobytes())
        if number == 2:
            monkeypatch.setattr("plugml.launch.result._sync", lambda path: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space"):
                publish(made.spec.tables, scratch, place.directory, {"run": number})
        else:
            publish(made.spec.tables, scratch, place.directory, {"run": number})
    assert np.fromfile(place.directory / "w.bin", "<f4")[0] == 1
    assert json.loads((place.directory / "result.json").read_text())["run"] == 1
    place.release()


# -- output -----------------------------------------------------------------------------------------------------------


def through_screen(tmp_path: Path, feed: Any) -> bytes:
    read_fd, write_fd = os.pipe()
    screen = Screen(write_fd, write_fd)
    outputs = [WorkerOutput(worker, tmp_path / f"w{worker}.log", screen, False, False) for worker in (0, 1)]
    feed(screen, outputs)
    got = bytearray()
    closer = subprocess.Popen(["true"])
    closer.wait()
    screen._ending = True
    with screen._changed:
        screen._changed.notify()
    while screen._thread.is_alive() or select.select([read_fd], [], [], 0)[0]:
        if select.select([read_fd], [], [], 0.05)[0]:
            got += os.read(read_fd, 1 << 20)
    for output in outputs:
        output.close()
    os.close(read_fd)
    os.close(write_fd)
    return bytes(got)


def test_prefixes_stand_at_the_beginning_of_lines_only(tmp_path: Path) -> None:
    chunks = [b"half", b" a line\nnext", b"\r20%\r40%\n", b"\xff\x00bad\n", b"x" * 100_000, b"\nend"]

    def feed(screen: Screen, outputs: list[WorkerOutput]) -> None:
        splitters = [Splitter(), Splitter()]
        for output in outputs:
            output.begin(1)
        for chunk in chunks:
            for output, splitter in zip(outputs, splitters):
                output.keep(chunk)
                for piece in splitter.feed(chunk):
                    output.show(1, piece)
        for output, splitter in zip(outputs, splitters):
            for piece in splitter.end():
                output.show(1, piece)

    shown = through_screen(tmp_path, feed)
    for line in shown.splitlines():
        assert line[:5] in (b"[w0] ", b"[w1] ") and b"[w" not in line[5:]
    assert b"[w0] half a line\n" in shown and b"[w1] 40%\n" in shown and b"20%" not in shown and b"[w0] end\n" in shown
    assert shown.count(b"x") >= 200_000
    assert (tmp_path / "w0.log").read_bytes() == b"".join(chunks), "the log is what the program wrote, byte for byte"


def test_a_full_screen_holds_the_programs_up_and_lets_them_go_on(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    screen = Screen(write_fd, write_fd)
    told: list[int] = []
    ready_r, ready_w = os.pipe()
    screen.on_room(lambda: (told.append(1), os.write(ready_w, b"x")))
    output = WorkerOutput(0, tmp_path / "log", screen, False, False)
    output.begin(1)
    sent = 0
    while output.keep(b""):
        output.show(1, Splitter().feed(b"y" * 8000 + b"\n")[0])
        sent += 8006
        assert sent < 4 * QUEUE_BYTES_MAX
    assert not told
    while not select.select([ready_r], [], [], 0)[0]:
        assert select.select([read_fd, ready_r], [], [], LIMIT_S)[0]
        if select.select([read_fd], [], [], 0)[0]:
            os.read(read_fd, 1 << 16)
    assert output.keep(b"")
    os.close(read_fd)  # from here on nobody reads
    screen.write(1, b"z" * 100_000)
    screen.close(LIMIT_S)
    assert isinstance(screen.failure(1), BrokenPipeError) and not screen._thread.is_alive()
    output.close()
    for fd in (write_fd, ready_r, ready_w):
        os.close(fd)


def test_a_pipe_that_somebody_made_non_blocking_loses_nothing() -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    screen = Screen(write_fd, write_fd)
    lines = [b"%d\n" % number for number in range(100_000)]
    for line in lines:
        screen.write(1, line)
    got = bytearray()
    while len(got) < len(b"".join(lines)) and select.select([read_fd], [], [], LIMIT_S)[0]:
        got += os.read(read_fd, 1 << 20)
    screen.close(LIMIT_S)
    assert bytes(got) == b"".join(lines) and screen.failure(1) is None
    os.close(read_fd)
    os.close(write_fd)


def test_a_failure_names_a_log_only_where_one_is_kept() -> None:
    """Empty logs are removed with the place."""
    loud = words.failure_lines(1, "here", ["./t"], 3, 1, "at clock 4", ("oh",), "", "/logs/w1.log")
    silent = words.failure_lines(1, "here", ["./t"], 3, 1, "at clock 4", (), "", "/logs/w1.log")
    assert "oh" in loud and "whole output: /logs/w1.log" in loud
    assert "it printed nothing" in silent and "w1.log" not in silent


def test_a_later_generation_goes_on_in_the_same_log(tmp_path: Path) -> None:
    def feed(screen: Screen, outputs: list[WorkerOutput]) -> None:
        outputs[0].begin(1)
        outputs[0].keep(b"one\n")
        outputs[0].begin(2)
        outputs[0].keep(b"two\n")

    through_screen(tmp_path, feed)
    assert (tmp_path / "w0.log").read_bytes() == b"one\n--- generation 2 ---\ntwo\n"


def test_progress_speaks_seldom_and_names_slow_and_fast() -> None:
    screen = Screen(os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_WRONLY))
    progress = Progress(screen, False, False, False, 0)
    lines = [progress.take(e.Picture({0: s * 10, 1: s * 10 + (s > 2)}, s, 1, 2), s * 1_000_000) for s in range(31)]
    said = [line for line in lines if line]
    assert 2 <= len(said) <= 4 and "slowest w0" in said[0] and "fastest w1" in said[0] and "1 restart" in said[0]
    assert "10.0 clocks/s" in said[-1] and "2 workers running" in said[-1]
    assert Progress(screen, False, True, False, 0).take(e.Picture({0: 5}, 5, 0, 1), 10**9) == ""
    screen.close(LIMIT_S)
    for fd in screen._fds.values():
        os.close(fd)


# -- environment and host ---------------------------------------------------------------------------------------------


def test_threads_share_the_cpus_unless_the_user_says_otherwise() -> None:
    assert [threads_each(2, n) for n in (1, 2, 3)] == [2, 1, 1] and threads_each(0.5, 1) == 1 and threads_each(7.9, 2) == 3
    assert thread_variables({"OMP_NUM_THREADS": "5"}, 2) == {}
    assert thread_variables({"MKL_NUM_THREADS": "5"}, 2) == {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}


def test_what_a_program_sees(tmp_path: Path) -> None:
    base = {
        "PATH": "/bin", "PLUGML_DIR": "/old", "PMI_RANK": "3", "OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "3", "SLURM_JOB_ID": "9",
        "RANK": "7", "PYTHONUNBUFFERED": "", "ODD": "a\nb",
    }  # fmt: skip
    made = plan(tmp_path, env=["A=1", "PATH=/mine"])
    info = Info.of(made.spec, 1, 2, "0" * 32, 5)
    got = worker_environment(base, made, info, "/chan", 2, 0, "0.1")
    assert got["PATH"] == "/mine" and got["A"] == "1" and got["ODD"] == "a\nb" and got["SLURM_JOB_ID"] == "9" and got["RANK"] == "7"
    assert not {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "WORLD_SIZE", "MASTER_ADDR"} & set(got)
    assert got["PLUGML_DIR"] == "/chan" and got["PLUGML_GEN"] == "2" and got["PLUGML_CLOCK"] == "5" and got["PYTHONUNBUFFERED"] == ""
    assert got["PLUGML_SEED"] == str(made.seed(1)) and got["PLUGML_OUT"] == made.out(1) and got["OMP_NUM_THREADS"] == "1"
    torch = worker_environment(base, plan(tmp_path, env=["torch"]), info, "/chan", 2, 4711, "0.1")
    assert (torch["RANK"], torch["WORLD_SIZE"], torch["MASTER_PORT"]) == ("1", "2", "4711")


def test_control_groups_of_both_kinds_limit_the_cpus(tmp_path: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.write_text("0::/a/b\n")
    (group / "cpu.max").write_text("max 100000\n")
    assert host.allowed_cpus(tmp_path, mine) == cpus
    (group.parent / "cpu.max").write_text("50000 100000\n")
    assert host.allowed_cpus(tmp_path, mine) == 0.5
    v1 = tmp_path / "cpu,cpuacct" / "c"
    v1.mkdir(parents=True)
    mine.write_text("7:memory:/c\n4:cpu,cpuacct:/c\n")
    (v1 / "cpu.cfs_quota_us").write_text("-1\n")
    (v1 / "cpu.cfs_period_us").write_text("100000\n")
    assert host.allowed_cpus(tmp_path, mine) == cpus
    (v1 / "cpu.cfs_quota_us").write_text("25000\n")
    assert host.allowed_cpus(tmp_path, mine) == 0.25
    assert host.allowed_cpus(tmp_path, tmp_path / "nothing") == cpus


@pytest.mark.parametrize(
    ("command", "exit_code", "says"),
    [
        ("nosuchprogram", 127, "not found in PATH"),
        ("./nosuch", 127, "No such file"),
        ("here", 127, "write ./ in front"),
        ("./here", 126, "is not executable"),
        ("./dir", 126, "is a directory"),
        ("./here/x", 127, "Not a directory"),
    ],
)
def test_a_trainer_that_cannot_be_started_is_named_before_anything_starts(tmp_path: Path, command: str, exit_code: int, says: str) -> None:
    (tmp_path / "here").write_text("#!/bin/sh\n")
    (tmp_path / "dir").mkdir()
    with pytest.raises(host.NotFoundError, match=says) as caught:
        host.check_programs(plan(tmp_path, argv=[command]), {"PATH": "/bin:/usr/bin"})
    assert caught.value.exit_code == exit_code


def test_braces_may_stand_in_the_program_itself(tmp_path: Path) -> None:
    for worker in (0, 1):
        (tmp_path / f"t{worker}").write_text("#!/bin/sh\n")
        (tmp_path / f"t{worker}").chmod(0o755)
    host.check_programs(plan(tmp_path, argv=["./t{worker}"]), {})
    with pytest.raises(host.NotFoundError, match="t2"):
        host.check_programs(plan(tmp_path, argv=["./t{worker}"], workers=3), {})
    with pytest.raises(UsageError, match="in1"):
        (tmp_path / "in0").write_text("x")
        host.check_programs(plan(tmp_path, argv=["./t{worker}"], stdin="in{worker}"), {})


def test_what_cannot_fit_is_refused_before_the_start(tmp_path: Path) -> None:
    huge = plan(tmp_path, tables=["w=14262238,128"])
    with pytest.raises(RootError, match=r"need \d\d\.\d GiB") as caught:
        host.check_space(host.room(huge, Path("/dev/shm"))._replace(root_free=1 << 20), huge)
    assert "1.0 MiB free" in str(caught.value) and caught.value.exit_code == 73
    with pytest.raises(UsageError, match="--result DIR"):
        host.check_space(host.room(huge, tmp_path)._replace(root_free=1 << 60, result_free=1 << 20, memory_free=1 << 60), huge)
    with pytest.raises(WorldError, match="servers need 6.8 GiB for values and optimizers"):
        host.check_space(host.room(huge, tmp_path)._replace(root_free=1 << 60, memory_free=1 << 30), huge)


def test_an_init_file_must_have_the_size_of_its_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        host.check_init_files(plan(tmp_path, tables=["w=2,init=file,path=w.bin"]))
    (tmp_path / "w.bin").write_bytes(b"1234")
    with pytest.raises(UsageError, match="has 4 bytes, the table 8"):
        host.check_init_files(plan(tmp_path, tables=["w=2,init=file,path=w.bin"]))


def test_piped_input_that_goes_to_nobody_is_noticed_and_not_read(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    assert host.stdin_note(read_fd) == ""
    os.write(write_fd, b"data")
    assert "--stdin FILE" in host.stdin_note(read_fd) and os.read(read_fd, 10) == b"data"
    (tmp_path / "f").write_bytes(b"data")
    with (tmp_path / "f").open("rb") as file:
        assert "--stdin FILE" in host.stdin_note(file.fileno())
        os.lseek(file.fileno(), 0, os.SEEK_END)
        assert host.stdin_note(file.fileno()) == ""
    with open(os.devnull, "rb") as file:
        assert host.stdin_note(file.fileno()) == ""
    os.close(read_fd)
    os.close(write_fd)
    assert host.stdin_note(read_fd) == ""


# -- signals before the run -------------------------------------------------------------------------------------------


def test_an_early_signal_is_noted_where_it_comes_and_answered_where_we_look() -> None:
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
        early = Early()
        os.kill(os.getpid(), signal.SIGHUP)
        early.check()
        assert early.hand_over(lambda signum: pytest.fail("nothing came")) is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(EarlyEndError, match="SIGTERM before the start") as caught:
            early.check()
        assert caught.value.exit_code == 143, "the first one counts"
        heard: list[int] = []
        early.hand_over(heard.append)
        assert heard == [signal.SIGTERM]
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


# -- guard ------------------------------------------------------------------------------------------------------------

GUARDED = """
import os, subprocess, sys, time
from plugml.launch.guard import Guard
guard = Guard.start()
child = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], process_group=0, stdout=subprocess.PIPE)
grandchild = int(child.stdout.readline())
guard.watch(child.pid)
guard.remove(sys.argv[1])
print(child.pid, grandchild, flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    """Wait for the end of a process that is not our child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], LIMIT_S)[0])
    finally:
        os.close(fd)


def test_the_guard_ends_what_a_killed_launcher_leaves(tmp_path: Path) -> None:
    (tmp_path / "root" / "deep").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    paths = [str(tmp_path / "root"), str(tmp_path / "kept")]
    launcher = subprocess.Popen([sys.executable, "-c", GUARDED, *paths], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert launcher.stdout is not None
    pids = [int(word) for word in launcher.stdout.readline().split()]
    launcher.kill()
    launcher.wait()
    launcher.stdout.read()  # also the guard has let go of it
    launcher.stdout.close()
    assert all(gone(pid) for pid in pids)
    for _ in range(int(LIMIT_S * 20)):
        if not (tmp_path / "root").exists():
            break
        select.select([], [], [], 0.05)
    assert not (tmp_path / "root").exists() and (tmp_path / "kept").exists()


def test_the_guard_ends_with_the_run() -> None:
    guard = Guard.start()
    child = subprocess.Popen(["sleep", "600"], process_group=0)
    guard.watch(child.pid)
    guard.forget(child.pid)
    guard.close()
    assert child.poll() is None and guard._process.poll() == 0
    child.kill()
    child.wait()


# -- the line to the agent --------------------------------------------------------------------------------------------


class Agent:
    """A scripted agent.sock: answers hello, and what the test says for the rest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[dict[str, Any]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.mute = False
        self.news = asyncio.Event()

    async def start(self) -> None:
        self.server = await asyncio.start_unix_server(self.serve, str(self.path))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while line := await reader.readline():
            document = json.loads(line)
            self.heard.append(document)
            self.news.set()
            if document["op"] == "hello" or not self.mute:
                self.say(writer, {"id": document["id"], "ok": True, "cluster": "c", "node": "a0.1", "job": 4})

    def say(self, writer: asyncio.StreamWriter, document: dict[str, Any]) -> None:
        writer.write(json.dumps(document).encode() + b"\n")

    async def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.close()
        self.writers.clear()
        self.path.unlink(missing_ok=True)


async def until(condition: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def test_questions_are_repeated_on_a_new_connection_and_register_comes_first(tmp_path: Path) -> None:
    async def story() -> None:
        got: list[Any] = []
        link = AgentLink(asyncio.get_running_loop(), tmp_path / "s", got.append)
        link.start()
        await until(lambda: any(isinstance(event, e.AgentDown) for event in got))
        first = Agent(tmp_path / "s")
        await first.start()
        await until(lambda: any(isinstance(event, e.AgentUp) for event in got))
        link.ask(e.Ask(1, "register", {"spec": {"name": "t"}}))
        await until(lambda: any(isinstance(event, e.Answer) and event.number == 1 for event in got))
        first.mute = True
        link.ask(e.Ask(2, "exited", {"job": "t"}))
        await until(lambda: first.heard[-1]["op"] == "exited")
        first.say(first.writers[0], {"event": "job", "job": "t", "state": "running"})
        await until(lambda: any(isinstance(event, e.AgentNews) for event in got))

        await first.stop()
        await until(lambda: isinstance(got[-1], e.AgentDown))
        second = Agent(tmp_path / "s")
        await second.start()
        await until(lambda: any(isinstance(event, e.Answer) and event.number == 2 for event in got))
        assert [document["op"] for document in second.heard] == ["hello", "register", "exited"]
        assert [event.number for event in got if isinstance(event, e.Answer)] == [1, 2]
        second.writers[0].write(b"not json\n")
        await until(lambda: isinstance(got[-1], e.AgentDown))
        link.close()
        await second.stop()

    asyncio.run(story())


def test_an_agent_of_another_version_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        got: list[Any] = []
        agent = Agent(tmp_path / "s")
        agent.say = lambda writer, document: writer.write(  # type: ignore[method-assign]
            json.dumps({"id": document["id"], "ok": False, "code": "VERSION", "text": "this agent speaks version 2"}).encode() + b"\n"
        )
        await agent.start()
        link = AgentLink(asyncio.get_running_loop(), tmp_path / "s", got.append)
        link.start()
        await until(lambda: bool(got))
        assert isinstance(got[0], e.AgentDown) and "speaks version 2" in got[0].text
        link.close()
        await agent.stop()

    asyncio.run(story())


def test_one_cpu_and_one_worker_are_not_several() -> None:
    assert thread_note({}, 1, 1).startswith("1 CPU for 1 worker: ") and thread_note({}, 2, 3).startswith("2 CPUs for 3 workers: ")


@pytest.mark.parametrize("name", ["w.bin", "tables.npz"])
def test_a_file_that_no_run_has_made_is_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    for take in (claim, would_claim):
        with pytest.raises(UsageError, match=f"{name} is there, and no run has made it: choose another place with --result DIR"):
            take(plan(tmp_path, result=str(tmp_path)))
    (tmp_path / "result.json").write_text(json.dumps({"files": [name, "result.json"]}))
    claim(plan(tmp_path, result=str(tmp_path)))[1].release()


def test_what_a_run_had_renamed_when_it_was_killed_is_no_strangers(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_text("ours")
    (tmp_path / ".saving-x").mkdir()
    (tmp_path / ".saving-x" / "result.json").write_text(json.dumps({"files": ["w.bin"]}))
    claim(plan(tmp_path, result=str(tmp_path)))[1].release()


@pytest.mark.parametrize(("state", "aside"), [("finished", True), ("stopped", False)])
def test_what_was_cut_short_does_not_cover_a_finished_result(tmp_path: Path, state: str, aside: bool) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"state": state, "files": []}))
    made, place = claim(plan(tmp_path, result=str(tmp_path)))
    place.release()
    saver = Saver(Crew(made, "here", "", lambda *_words, **_more: None, 0), lambda *_words, **_more: None, "")
    saver.begin("stopped")
    assert saver.place == (f"{tmp_path}/stopped" if aside else str(tmp_path))
    saver.begin("finished")
    assert saver.place == str(tmp_path)


@pytest.mark.parametrize(
    ("tail", "last_error", "status", "advised"),
    [
        (("ValueError: bad row",), "", 1, True),
        (("plugml.client.errors.ChannelError: SIZE: w has shape (9,)",), "", 1, False),
        ((), "NONFINITE at clock 3: element 0 of table w is nan", 2, False),
        ((), "NONFINITE at clock 3: element 0 of table w is nan", 127, True),
    ],
)
def test_what_plugml_refused_is_not_to_be_tried_alone(tail: tuple[str, ...], last_error: str, status: int, advised: bool) -> None:
    text = words.failure_lines(1, "here", ["./t"], status, 1, "at clock 4", tail, last_error, "/logs/w1.log")
    assert ("  try: " in text) == advised


def test_a_wait_for_a_worker_says_what_can_be_done() -> None:
    for spoke in (False, True):
        assert "plugml channel --close t.1" in words.wait_line("t", 3, 1, 10_000_000, spoke, "S", 77)


def test_the_first_line_of_progress_knows_the_rate() -> None:
    screen = Screen(os.open(os.devnull, os.O_WRONLY), os.open(os.devnull, os.O_WRONLY))
    line = Progress(screen, False, False, False, 0).take(e.Picture({0: 5}, 5, 0, 1), 5_000_000)
    screen.close(LIMIT_S)
    for fd in screen._fds.values():
        os.close(fd)
    assert "clock 5, 1.0 clocks/s" in line
