"""The launcher's hands beside the programs: evaluations, the best model's files, private directories, memory, progress."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugml.cli.run import TOML_BYTES_MAX, read_toml
from plugml.core.errors import UsageError, WorldError
from plugml.launch import effects as e
from plugml.launch import host, private
from plugml.launch.environment import evaluation_environment, worker_environment
from plugml.launch.evaluation import Evaluations
from plugml.launch.guard import Guard
from plugml.launch.output import Screen, WorkerOutput
from plugml.launch.plan import RunPlan, make_plan
from plugml.launch.progress import Progress
from plugml.launch.result import claim
from plugml.shm_protocol.info import Info

HANG_S = 30.0
TEST = """
import os, sys
import numpy as np
assert "PLUGML_DIR" not in os.environ and os.environ["PLUGML_MODEL"] == sys.argv[1]
print("clock", os.environ["PLUGML_CLOCK"], "accuracy=%g" % np.load(sys.argv[1] + "/tables.npz")["w"].sum(), flush=True)
print("progress", file=sys.stderr)
open(sys.argv[1] + "/mine.txt", "w").close()
"""


def plan(directory: Path, **flags: Any) -> RunPlan:
    flags = {"tables": ["w=3"], "argv": ["./t"], "metric": "accuracy", "evaluate_every": 5, **flags}
    return make_plan({}, "job.toml", flags, str(directory))


class Bench:
    """Evaluations as the launcher has them, with a loop of its own."""

    def __init__(self, tmp_path: Path, **flags: Any) -> None:
        (tmp_path / "test.py").write_text(TEST)
        flags.setdefault("evaluate", f"{sys.executable} test.py {{model}}")
        self.plan, self.place = claim(plan(tmp_path, **flags))
        self.loop = asyncio.new_event_loop()
        self.guard = Guard.start()
        self.read_fd, self.write_fd = os.pipe()
        self.screen = Screen(self.write_fd, self.write_fd)
        self.events: list[Any] = []
        output = WorkerOutput(2, self.place.logs / "evaluate.log", self.screen, False, False, "eval")
        environ = {**os.environ, "PLUGML_DIR": "/old", "PLUGML_MODEL": "/old"}
        self.evaluations = Evaluations(self.loop, self.place, environ, 1.0, self.guard, output, self.feed, self.in_thread)

    def feed(self, event: Any) -> None:
        self.events.append(event)
        if self.loop.is_running():
            self.loop.stop()

    def in_thread(self, work: Callable[[], Any], then: Callable[[Future[Any]], None]) -> None:
        done: Future[Any] = Future()
        try:
            done.set_result(work())
        except (OSError, WorldError) as error:
            done.set_exception(error)
        self.loop.call_soon(then, done)

    def next(self) -> Any:
        if not self.events:
            limit = self.loop.call_later(HANG_S, self.loop.stop)
            self.loop.run_forever()
            limit.cancel()
        assert self.events, "no answer"
        return self.events.pop(0)

    def model(self, *numbers: float) -> str:
        self.evaluations.prepare()
        event = self.next()
        assert isinstance(event, e.ModelReady)
        (Path(event.directory) / "w.bin").write_bytes(np.array(numbers, "<f4").tobytes())
        return event.directory

    def evaluate(self, clock: int, *numbers: float) -> e.Evaluated:
        self.evaluations.evaluate(self.plan, e.Evaluate(self.model(*numbers), clock))
        event = self.next()
        assert isinstance(event, e.Evaluated)
        return event

    def close(self) -> None:
        self.evaluations.close()
        self.place.release()
        self.screen.close(HANG_S)
        self.guard.close()
        self.loop.close()
        os.close(self.write_fd)
        os.close(self.read_fd)


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**flags: Any) -> Bench:
        made.append(Bench(tmp_path, **flags))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_an_evaluation_reads_the_tables_and_its_number_is_read(bench: Callable[..., Bench]) -> None:
    b = bench()
    assert b.evaluate(5, 1, 2, 3).value == 6.0
    second = b.evaluate(10, 1, 1, 1)
    assert (second.clock, second.value) == (10, 3.0)
    b.evaluations.drop(e.DropModel(second.directory))
    assert not Path(second.directory).exists()
    log = (b.place.logs / "evaluate.log").read_text()
    assert "--- clock 5 ---\n" in log and "accuracy=6\n" in log and "--- clock 10 ---\n" in log and "progress\n" in log
    assert os.read(b.read_fd, 4096).startswith(b"[eval] clock 5 accuracy=6\n")


@pytest.mark.parametrize(
    ("command", "says", "tail"),
    [
        ("sh -c 'echo bad >&2; exit 3'", "exit code 3", ("bad",)),
        ("sh -c 'echo accuracy is good'", "it printed no number behind 'accuracy'", ("accuracy is good",)),
        ("sh -c 'kill -9 $$'", "killed by signal 9", ()),
        ("./nosuch", "not found", ()),
    ],
)
def test_an_evaluation_that_fails_says_how(bench: Callable[..., Bench], command: str, says: str, tail: tuple[str, ...]) -> None:
    got = bench(evaluate=command).evaluate(5, 1, 2, 3)
    assert got.value is None and says in got.text and got.tail == tail


def test_tables_that_are_not_whole_are_not_evaluated(bench: Callable[..., Bench]) -> None:
    assert "w.bin" in bench().evaluate(5, 1, 2).text


def test_an_evaluation_that_nobody_waits_for_ends(bench: Callable[..., Bench]) -> None:
    b = bench(evaluate="sleep 1000")
    b.evaluations.evaluate(b.plan, e.Evaluate(b.model(1, 2, 3), 5))
    b.loop.call_later(0.1, b.evaluations.end)
    assert "killed by signal 15" in b.next().text


def test_the_best_model_is_kept_whole_and_alone(bench: Callable[..., Bench]) -> None:
    b = bench(export="raw,csv")
    best = b.place.directory / "best"
    for clock, number in ((5, 1.0), (10, 2.0)):
        done = b.evaluate(clock, number, number, number)
        b.evaluations.keep_best(b.plan, e.KeepBest(done.directory, {"clock": clock, "value": done.value}))
        assert b.next() == e.BestKept(str(best), "")
        b.evaluations.drop(e.DropModel(done.directory))
        assert np.fromfile(best / "w.bin", "<f4").tolist() == [number] * 3
        assert json.loads((best / "result.json").read_text())["clock"] == clock
    assert sorted(path.name for path in best.iterdir()) == ["result.json", "w.bin", "w.csv"], "not what the command left there"
    assert not list(b.place.directory.glob(".plugml-model-*"))


def test_a_best_model_that_cannot_be_kept_says_why_and_leaves_the_one_before(bench: Callable[..., Bench]) -> None:
    b = bench()
    (b.place.directory / "best").write_text("a file")
    done = b.evaluate(5, 1, 2, 3)
    b.evaluations.keep_best(b.plan, e.KeepBest(done.directory, {}))
    kept = b.next()
    assert isinstance(kept, e.BestKept) and kept.text and (b.place.directory / "best").read_text() == "a file"


def test_what_a_killed_run_has_left_is_removed(bench: Callable[..., Bench]) -> None:
    b = bench()
    old = b.place.directory / ".plugml-model-old"
    old.mkdir()
    b.evaluate(5, 1, 2, 3)
    assert not old.exists()


# -- environments -----------------------------------------------------------------------------------------------------


def test_a_program_has_no_number_in_an_outer_world(tmp_path: Path) -> None:
    made = plan(tmp_path, evaluate="./e")
    outer = {"PMI_RANK": "1", "PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "77", "PLUGML_MODEL": "/m"}
    info = Info.of(made.spec, 0, 1, "0" * 32, 0)
    seen = worker_environment(outer, made, info, "/channel", 1, 0, "1")
    assert [name for name in outer if name in seen] == ["SLURM_JOB_ID"]
    judged = evaluation_environment({**outer, "PLUGML_DIR": "/old", "PLUGML_WORKER": "3"}, made, "/m odel", 7, 1)
    assert {name: value for name, value in judged.items() if name.startswith("PLUGML_")} == {"PLUGML_MODEL": "/m odel", "PLUGML_CLOCK": "7", "PLUGML_JOB": "t"}
    assert judged["OMP_NUM_THREADS"] == "1" and "SLURM_PROCID" not in judged


# -- private directories ----------------------------------------------------------------------------------------------


def test_a_private_directory_links_what_is_here_but_not_itself(tmp_path: Path) -> None:
    (tmp_path / "trainer").write_text("x")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").write_text("1")
    made, place = claim(plan(tmp_path, private_dir=True, evaluate="./e"))
    private.link_all(made, 0)
    start = Path(made.start_of(0))
    assert sorted(path.name for path in start.iterdir()) == ["data", "trainer"], "a link to the runs would lead in circles"
    assert (start / "data" / "x.csv").read_text() == "1"
    (start / "mine.txt").write_text("m")
    (tmp_path / "later").write_text("y")
    (tmp_path / "trainer").unlink()
    private.link_all(made, 0)
    assert sorted(path.name for path in start.iterdir()) == ["data", "later", "mine.txt"]
    private.unlink_all(made, 0)
    assert [path.name for path in start.iterdir()] == ["mine.txt"] and (tmp_path / "data").is_dir()
    private.link_all(made, 0)
    (start / "mine.txt").unlink()
    private.unlink_all(made, 0)
    private.unlink_all(made, 0)
    assert not start.exists()
    place.release()


# -- memory -----------------------------------------------------------------------------------------------------------


def test_memory_is_what_the_host_has_or_the_group_allows(tmp_path: Path) -> None:
    info, mine = tmp_path / "meminfo", tmp_path / "cgroup"
    info.write_text("MemTotal: 100 kB\nMemAvailable:   64 kB\n")
    mine.write_text("0::/a/b\n")
    group = tmp_path / "groups" / "a"
    group.mkdir(parents=True)
    assert host.free_memory(tmp_path / "groups", mine, info) == 64 << 10
    (group / "memory.max").write_text("50000\n")
    (group / "memory.current").write_text("45000\n")
    (group / "memory.stat").write_text("anon 5000\ninactive_file 30000\nactive_file 1000\n")
    assert host.free_memory(tmp_path / "groups", mine, info) == 36_000, "cached files can go"
    (group / "memory.max").write_text("max\n")
    assert host.free_memory(tmp_path / "groups", mine, info) == 64 << 10
    old = tmp_path / "groups" / "memory" / "c"
    old.mkdir(parents=True)
    mine.write_text("5:cpu,memory:/c\n")
    (old / "memory.limit_in_bytes").write_text("9000")
    (old / "memory.usage_in_bytes").write_text("4000")
    assert host.free_memory(tmp_path / "groups", mine, info) == 5_000


def test_optimizers_take_memory_too_and_a_limit_below_the_dense_tables_is_refused(tmp_path: Path) -> None:
    made = plan(tmp_path, tables=["w=1000:f64,optimizer=adam", "e=sparse,width=4"], memory="20kB", evaluate="./e")
    room = host.room(made, tmp_path)
    assert room.values == 3 * 8000
    with pytest.raises(UsageError, match="memory = 19.5 KiB, and the dense tables need 23.4 KiB"):
        host.check_space(room, made)
    with pytest.raises(WorldError, match="servers need 23.4 KiB for values and optimizers"):
        host.check_space(room._replace(memory_free=1000), made)


# -- progress, job.toml -----------------------------------------------------------------------------------------------


def test_progress_tells_the_metric_and_what_is_left() -> None:
    progress = Progress(Screen(), False, False, False, 0)
    progress.take(e.Picture({0: 0, 1: 0}, 0, 0, 2), 0)
    picture = e.Picture({0: 100, 1: 110}, 100, 0, 2, "accuracy 0.97 at clock 100", 310)
    line = progress.take(picture, 10_000_000)
    assert line.endswith("2 workers running, accuracy 0.97 at clock 100, 10 s, about 20 s left"), line
    assert progress.left_us(picture._replace(end_us=15_000_000), 10_000_000) == 5_000_000
    assert progress.left_us(picture._replace(goal=0), 10_000_000) is None


def test_a_job_file_is_a_file_of_some_size(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="/dev/zero: not a regular file"):
        read_toml("/dev/zero")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="fifo: not a regular file"):
        read_toml(str(tmp_path / "fifo"))
    (tmp_path / "big").write_bytes(b"#" * (TOML_BYTES_MAX + 1))
    with pytest.raises(UsageError, match="more than 1,048,576 bytes"):
        read_toml(str(tmp_path / "big"))
    (tmp_path / "job.toml").write_text("[job]\nname = 'x'\n")
    assert read_toml(str(tmp_path / "job.toml")) == {"job": {"name": "x"}}
