"""The Python client against the scripted agent: the arithmetic of a plugged program, and each of its bad days."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from plugml.client import ChannelError, Client, attach
from plugml.client import client as client_module
from plugml.client import errors as client_errors
from plugml.client import files as client_files
from plugml.core import errors
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import page
from plugml.shm_protocol.info import INFO_BYTES_MAX, VERSION
from plugml.shm_protocol.request import WEIGHT_MAX

from .fake_agent import FakeAgent, run

pytestmark = pytest.mark.usefixtures("no_leaks")
HANG_S = 60.0
TOP = Path(__file__).resolve().parents[2]
MODES = pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "plain"])
EACH_STORE = ("restart@*:*",)


def spec(shape: tuple[int, ...] = (3, 2), workers: int = 1, **more: Any) -> JobSpec:
    settings: dict[str, Any] = {"settings": {"lr": 0.1}, **more}
    if settings.get("optimizer", "sgd") != "sgd":
        settings.pop("settings")
    return JobSpec("py", workers, (TableSpec("w", shape, **settings),))


@pytest.fixture
def plugged() -> Iterator[Callable[..., tuple[Client, FakeAgent]]]:
    """`plugged(spec, faults, mapped=...)` gives a client attached to a running agent."""
    ends: list[Callable[[], object]] = []

    def make(job: JobSpec, *faults: str, mapped: bool = True, clock: int = 0) -> tuple[Client, FakeAgent]:
        agent = FakeAgent(job, faults, clock=clock)
        agent.__enter__()
        ends.append(lambda: agent.__exit__(None))
        client = attach(agent.environment(), mapped=mapped)
        ends.append(client.close)
        return client, agent

    yield make
    for end in reversed(ends):
        end()


def failed(action: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(ChannelError) as error:
        action()
    return error.value.code.name, error.value.text


# -- the same facts on both sides


def test_the_client_knows_the_same_constants_as_the_protocol() -> None:
    for name in ("MAGIC", "ABI_MAJOR", "ENDIAN_TAG", "PAGE_BYTES", "RECORD_BYTES"):
        assert getattr(client_files, name) == getattr(page, name), name
    assert client_files.PROTOCOL_VERSION == VERSION
    assert client_files.DONE_SEQ_AT == page.OFFSET["done_seq"]
    assert client_files.INFO_BYTES_MAX == INFO_BYTES_MAX
    assert client_module.WEIGHT_MAX == WEIGHT_MAX


def test_the_client_knows_the_same_codes_and_sentences() -> None:
    assert {code.name: int(code) for code in client_errors.Code} == {code.name: int(code) for code in errors.Code}
    for code in errors.Code:
        assert client_errors.MEANINGS[client_errors.Code(code)] == tuple(errors.MEANINGS[code])


def test_the_client_imports_numpy_and_nothing_else_that_must_be_installed(tmp_path: Path) -> None:
    for path in sorted((TOP / "clients" / "python").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1, f"{path.name} leaves its directory"
                continue
            else:
                continue
            for name in names:
                first = name.split(".")[0]
                assert first == "numpy" or first in sys.stdlib_module_names, f"{path.name} imports {name}"
        (tmp_path / "myplug").mkdir(exist_ok=True)
        (tmp_path / "myplug" / path.name).write_text(path.read_text())
    script = "import sys, myplug; assert not myplug.attach().step([1.0]); assert not any(m.startswith('plugml') for m in sys.modules)"
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PLUGML_DIR")}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environ, check=True)


# -- alone


def test_alone_every_call_is_a_no_op_that_says_so() -> None:  # SPEC 2.9
    w = np.ones(3)
    plug = attach({})
    assert not plug and not plug.plugged and plug.main() and (plug.worker, plug.workers) == (0, 1)
    for call in (lambda: plug.step(w, w), lambda: plug.push(w), lambda: plug.pull(w), lambda: plug.pushpull(w, w), lambda: plug.init(w)):
        assert call() is False
    assert not plug.tick() and not plug.ping()
    assert w.tolist() == [1, 1, 1]
    assert list(plug.clocks(3)) == [0, 1, 2]
    assert not plug.done and not plug.bye()
    with attach({"PLUGML_DIR": ""}) as again:
        assert not again.step(w, w)


def test_a_channel_that_is_not_there_is_an_error_and_never_alone(tmp_path: Path) -> None:  # SPEC 2.10
    code, text = failed(lambda: attach({"PLUGML_DIR": str(tmp_path / "gone")}))
    assert code == "GONE" and "does not exist" in text
    assert failed(lambda: attach({"PLUGML_DIR": str(tmp_path)}))[0] == "PERM"
    (tmp_path / "ctl").write_bytes(bytes(4096))
    assert failed(lambda: attach({"PLUGML_DIR": str(tmp_path)}))[0] == "VERSION"


def test_another_version_of_the_channel_is_refused() -> None:  # SPEC 2.3
    with FakeAgent(spec()) as agent:
        info = agent.kept[0].directory / "info"
        info.chmod(0o600)
        info.write_text(info.read_text().replace("version=1", "version=2"))
        assert failed(lambda: attach(agent.environment())) == ("VERSION", "the channel speaks version 2, this client 1")


# -- training


def descend(plug: Client, w: np.ndarray, steps: int, lr: Any) -> None:
    """Gradient descent on |w - target|^2 / 2, alone or plugged."""
    target = np.arange(w.size, dtype=w.dtype).reshape(w.shape) / w.dtype.type(3)
    for _clock in plug.clocks(steps):
        g = w - target
        if not plug.step(g, w):
            w -= lr * g


@MODES
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_one_worker_is_bit_identical_to_the_program_alone(plugged: Any, mapped: bool, order: str, dtype: str) -> None:
    numpy_type = np.float32 if dtype == "f32" else np.float64
    alone, together = np.zeros((3, 5), numpy_type), np.zeros((3, 5), numpy_type)
    descend(attach({}), alone, 40, numpy_type(0.1))
    plug, agent = plugged(spec((3, 5), dtype=dtype, order=order), mapped=mapped)
    assert plug.pull(together)
    descend(plug, together, 40, numpy_type(0.1))
    assert together.tobytes() == alone.tobytes()
    assert plug.bye()
    assert (agent.server.pushes, agent.server.finished, agent.byes) == ([40], [40], {0})
    assert agent.remarks == []


@MODES
def test_an_agent_that_dies_before_every_store_changes_nothing(plugged: Any, mapped: bool) -> None:  # SPEC 5.4 6.10 7.6 7.8 9.4
    alone, together = np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)
    descend(attach({}), alone, 12, np.float32(0.1))
    plug, agent = plugged(spec(), *EACH_STORE, "repeat@3", "stale@5", "again@7", "slow@9:0.05", mapped=mapped)
    descend(plug, together, 12, np.float32(0.1))
    assert together.tobytes() == alone.tobytes()
    assert agent.server.pushes == [12] and agent.deaths >= 12 * 6


@MODES
def test_whole_numbers_are_counted_exactly(plugged: Any, mapped: bool) -> None:
    plug, agent = plugged(spec((2,), dtype="i64", optimizer="add"), mapped=mapped)
    total = np.zeros(2, np.int64)
    for clock in plug.clocks(5):
        plug.step(np.array([clock, 1 << 60 if clock == 0 else -1]), total)
    assert total.tolist() == [10, (1 << 60) - 4]
    assert failed(lambda: plug.step(np.array([0.5, 1.0]), total)) == ("RANGE", "g for table w: float64 cannot become int64")


@MODES
def test_two_workers_of_unequal_weight_meet_at_each_clock(mapped: bool) -> None:  # SPEC 4.9
    job = spec((4,), workers=2, dtype="f64")
    results: dict[int, np.ndarray] = {}
    weights = (3.0, 1.0)

    def work(worker: int) -> None:
        with attach(agent.environment(worker), mapped=mapped) as plug:
            assert plug.main() == (worker == 0) and (plug.worker, plug.workers) == (worker, 2)
            w = np.zeros(4)
            for _clock in plug.clocks(10):
                plug.step(w - worker, w, weight=weights[worker])
            results[worker] = w

    with FakeAgent(job) as agent:
        threads = [threading.Thread(target=work, args=(worker,)) for worker in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
    serial = np.zeros(4)
    for _clock in range(10):
        serial -= 0.1 * (3.0 * (serial - 0) + 1.0 * (serial - 1)) / 4.0
    assert results[0].tobytes() == results[1].tobytes()
    np.testing.assert_allclose(results[0], serial, rtol=1e-12)
    assert agent.byes == {0, 1}


SEVERAL = JobSpec(
    "several", 1,
    (
        TableSpec("w", (3, 2), order="F", optimizer="add"),
        TableSpec("b", (2,), dtype="f64", optimizer="add"),
        TableSpec("n", (1,), dtype="i64", optimizer="add"),
    ),
)  # fmt: skip


@MODES
def test_several_tables_by_name_in_order_and_in_place(plugged: Any, mapped: bool) -> None:
    plug, _agent = plugged(SEVERAL, mapped=mapped)
    w, b, n = np.zeros((3, 2), np.float32), np.zeros(2), np.zeros(1, np.int64)
    g = np.arange(6.0).reshape(3, 2)
    assert plug.step({"b": [0.5, 0.25], "w": g, "n": [7]}, {"w": w, "n": n})
    assert (w.tolist(), n.tolist(), b.tolist()) == (g.tolist(), [7], [0, 0])
    assert plug.step([g, [1, 1], [1]], (w, b, n))
    assert (w.tolist(), n.tolist(), b.tolist()) == ((2 * g).tolist(), [8], [1.5, 1.25])
    plug.grad("w")[...] = -g
    plug.grad("b")[:] = 0
    plug.grad("n")[:] = 2
    assert plug.step()
    assert plug.param("w").tolist() == g.tolist() and plug.param("n").tolist() == [10]
    assert [table.name for table in plug.tables] == ["w", "b", "n"]
    assert not plug.param("w").flags.writeable and plug.param("w").flags.f_contiguous


def test_a_matrix_lies_in_the_order_that_was_declared(plugged: Any) -> None:  # SPEC 2.7
    plug, agent = plugged(SEVERAL)
    plug.step({"w": np.arange(6.0).reshape(3, 2), "b": np.zeros(2), "n": [0]})
    raw = np.frombuffer((agent.kept[0].directory / "param").read_bytes()[:24], "<f4")
    assert raw.tolist() == [0, 2, 4, 1, 3, 5]
    w = np.zeros(6, np.float32)  # flat: in the order of the file
    plug.pull({"w": w})
    assert w.tolist() == [0, 2, 4, 1, 3, 5]


def test_arrays_of_any_layout_are_taken_and_filled(plugged: Any) -> None:
    plug, _agent = plugged(spec((3, 2), optimizer="add"))
    wide = np.zeros((3, 4), np.float32)
    assert plug.step(np.asfortranarray(np.arange(6.0).reshape(3, 2)), wide[:, ::2])
    assert wide.tolist() == [[0, 0, 1, 0], [2, 0, 3, 0], [4, 0, 5, 0]]
    doubles, flat = np.zeros((3, 2)), np.zeros(12, np.float32)
    plug.pull(doubles)
    plug.pull(flat[::2])
    assert doubles.ravel().tolist() == flat[::2].tolist() == [0, 1, 2, 3, 4, 5]
    assert not flat[1::2].any()


@pytest.mark.parametrize(
    ("g", "w", "code", "words"),
    [
        (np.zeros(5), None, "SIZE", "g for table w has shape (5,), the table has (3, 2): make them agree: the job declares --table w=3,2, this array needs --table w=5"),
        (np.zeros((2, 3)), None, "SIZE", "g for table w has shape (2, 3), the table has (3, 2): make them agree: the job declares --table w=3,2, this array needs --table w=2,3"),
        (np.zeros((3, 2), complex), None, "RANGE", "g for table w: complex128 cannot become float32"),
        (np.zeros((3, 2)), np.zeros(4), "SIZE", "w for table w has shape (4,), the table has (3, 2): make them agree: the job declares --table w=3,2, this array needs --table w=4"),
        (np.zeros((3, 2)), [0] * 6, "PERM", "w for table w must be a numpy array that can be written"),
        (np.zeros((3, 2)), np.zeros((3, 2), int), "RANGE", "w for table w: float32 cannot become int64"),
        ({"v": np.zeros(6)}, None, "RANGE", "there is no table 'v'; known are w"),
        ({}, None, "SIZE", "g lacks the tables w: a dense push holds all of them"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_before_anything_is_asked(plugged: Any, g: Any, w: Any, code: str, words: str) -> None:
    plug, agent = plugged(spec())
    assert failed(lambda: plug.step(g, w)) == (code, words)
    assert agent.lines == [[]] and plug.clock == 0


def test_weights_are_checked_and_kept_to_the_last_bit(plugged: Any) -> None:
    plug, agent = plugged(spec())
    for weight in (-0.5, -1, float("nan"), float("inf"), 2.0**54):
        assert failed(lambda weight=weight: plug.step(np.zeros((3, 2)), weight=weight))[0] == "RANGE"
    weight = 1 / 3
    plug.step(np.zeros((3, 2)), weight=weight)
    plug.push(np.zeros((3, 2)), weight=np.float32(0.5))
    assert agent.lines == [[f"step 1 0 n=6 w={weight!r}", "push 2 1 n=6 w=0.5"]]


# -- clocks


def test_the_single_requests(plugged: Any) -> None:
    plug, agent = plugged(spec((2,), optimizer="add"), clock=0)
    w = np.full(2, 3.0, np.float32)
    assert plug.init(w) and w.tolist() == [3, 3]
    assert plug.push([1, 2]) and plug.push([1, 2]) and plug.clock == 0
    assert plug.tick() and plug.clock == 1
    assert plug.pull(w) and w.tolist() == [4, 5]  # the mean of two pushes
    assert plug.ping() and plug.pushpull([0, 0], w) and plug.clock == 1
    assert plug.version == agent.server.version
    assert [line.split()[:3] for line in agent.lines[0]] == [
        ["init", "1", "0"], ["push", "2", "0"], ["push", "3", "0"], ["clock", "4", "0"], ["pull", "5", "1"], ["ping", "6", "1"], ["pushpull", "7", "1"],
    ]  # fmt: skip


def test_a_restarted_program_goes_on_at_the_job_s_clock(plugged: Any) -> None:
    plug, agent = plugged(spec(), clock=17)
    assert plug.clock == 17
    assert [clock for clock in plug.clocks(19) if plug.step(np.zeros((3, 2)))] == [17, 18]
    assert agent.lines[0][0].startswith("step 1 17 ")


def test_a_second_program_in_the_same_channel_takes_up_the_count(plugged: Any) -> None:
    first, agent = plugged(spec())
    for _clock in first.clocks(3):
        first.step(np.zeros((3, 2)))
    second = attach(agent.environment())
    assert second.clock == 3
    second.step(np.ones((3, 2)))
    assert failed(lambda: first.step(np.ones((3, 2)), weight=2.0))[0] == "SEQ"  # it did not know
    assert first.step(np.ones((3, 2))) and first.clock == 5  # it has asked
    second.close()
    assert agent.server.pushes == [5]


def test_a_loop_without_a_step_is_told(plugged: Any) -> None:
    plug, _agent = plugged(spec())
    clocks = plug.clocks(5)
    assert next(clocks) == 0
    assert failed(lambda: next(clocks)) == ("SEQ", "clock 0 was not ended: call step() or tick() once in each turn of the loop")


def test_the_stop_rule_ends_the_loop(plugged: Any) -> None:  # SPEC 6.7
    plug, agent = plugged(spec(), "stop@4")
    done = [clock for clock in plug.clocks(100) if plug.step(np.ones((3, 2)))]
    assert done == [0, 1, 2, 3] and plug.done
    w = np.full((3, 2), 9.0, np.float32)
    assert plug.step(np.ones((3, 2)), w)  # answered STOP: plugged, so no update of our own
    assert w.tolist() == [[9, 9]] * 3 and agent.server.pushes == [4]


# -- bad days


@pytest.mark.parametrize("code", [code for code in client_errors.Code if code.name not in ("OK", "AGAIN", "STOP")])
def test_each_code_is_an_exception_that_says_what_to_do(plugged: Any, code: client_errors.Code) -> None:  # SPEC 8.1 8.2 6.9
    plug, agent = plugged(spec(), f"err@2:{code.name}")
    plug.step(np.ones((3, 2)))
    with pytest.raises(ChannelError) as error:
        plug.step(np.ones((3, 2)))
    assert error.value.code is code
    assert str(error.value) == f"{code.name}: the script says so. {client_errors.MEANINGS[code][1]}"
    if code in client_errors.FATAL:
        assert failed(lambda: plug.step(np.ones((3, 2))))[0] == code.name
        assert agent.server.pushes == [1]
    else:
        assert plug.clock == 1 and plug.step(np.ones((3, 2))) and plug.clock == 2
        assert agent.server.pushes == [2]


def test_nan_is_named_and_nothing_is_applied(plugged: Any) -> None:
    plug, agent = plugged(spec())
    g = np.zeros((3, 2))
    g[1, 1] = np.nan
    assert failed(lambda: plug.step(g)) == ("NONFINITE", "element 3 of table w is nan; nothing was applied")
    assert agent.server.pushes == [0] and plug.step(np.ones((3, 2)))


def test_a_lost_agent_is_gone_for_good(plugged: Any) -> None:
    plug, _agent = plugged(spec(), "gone@2")
    plug.step(np.ones((3, 2)))
    for _again in range(2):
        assert failed(lambda: plug.step(np.ones((3, 2))))[0] == "GONE"


def test_agent_and_launcher_gone_together_is_gone() -> None:  # SPEC 5.7
    agent = FakeAgent(spec())
    agent.__enter__()
    plug = attach(agent.environment())
    agent.__exit__(None)
    code, _text = failed(lambda: plug.step(np.ones((3, 2))))
    assert code == "GONE"
    plug.close()


def test_a_closed_handle_says_so(plugged: Any) -> None:
    plug, _agent = plugged(spec())
    assert plug.bye() and not plug.bye()
    assert failed(plug.ping) == ("SEQ", "the handle is closed: bye() and close() are the last calls")


def test_the_context_manager_says_bye_only_at_a_good_end(plugged: Any) -> None:
    plug, agent = plugged(spec())
    with pytest.raises(ZeroDivisionError), plug:
        1 / 0  # noqa: B018
    assert agent.byes == set()
    again = attach(agent.environment())
    with again:
        again.step(np.ones((3, 2)))
    assert agent.byes == {0}


def test_a_forked_child_neither_says_bye_nor_asks(plugged: Any) -> None:  # SPEC 9.9
    plug, agent = plugged(spec())
    plug.step(np.ones((3, 2)))
    script = (
        "import os, sys, numpy as np\nfrom plugml.client import attach, ChannelError\n"
        "plug = attach()\npid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n        plug.step(np.ones((3, 2)))\n"
        "    except ChannelError as error:\n        assert error.code.name == 'PERM', error\n"
        "    else:\n        os._exit(1)\n"
        "    plug.bye()\n    sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "plug.step(np.ones((3, 2)))\n"
    )
    environ = {**agent.environment(), "PYTHONPATH": str(TOP)}
    subprocess.run([sys.executable, "-c", script], env=environ, check=True, timeout=HANG_S)
    assert agent.byes == set() and agent.server.pushes == [2]


@MODES
def test_a_program_that_closes_all_descriptors_finds_the_files_again(plugged: Any, mapped: bool, tmp_path: Path) -> None:  # SPEC 9.10 5.6
    _plug, agent = plugged(spec(), mapped=mapped)
    precious = tmp_path / "precious"
    precious.write_text("thesis")
    script = (
        f"import os, numpy as np\nfrom plugml.client import attach\nplug = attach(mapped={mapped})\nw = np.zeros((3, 2))\n"
        "plug.step(np.ones((3, 2)), w)\n"
        "os.closerange(3, 64)\n"
        f"others = [os.open({str(precious)!r}, os.O_RDWR) for _ in range(40)]\n"
        "for _ in range(3):\n    plug.step(np.ones((3, 2)), w)\n"
        "assert np.allclose(w, -0.4), w\nplug.bye()\n"
    )
    environ = {**agent.environment(), "PYTHONPATH": str(TOP)}
    subprocess.run([sys.executable, "-c", script], env=environ, check=True, timeout=HANG_S)
    assert precious.read_text() == "thesis" and agent.server.pushes == [4] and agent.byes == {0}


class Interrupted(Exception):
    pass


def test_an_interrupt_in_the_middle_of_a_wait_loses_and_doubles_nothing(plugged: Any) -> None:
    plug, agent = plugged(spec(), *(f"slow@{seq}:0.1" for seq in range(1, 12)))

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    steps = interrupts = 0
    try:
        while plug.clock < 10:
            signal.setitimer(signal.ITIMER_REAL, 0.03 if steps % 3 else 0.0)
            steps += 1
            try:
                plug.step(np.ones((3, 2)))
            except Interrupted:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupts and agent.server.pushes == agent.server.finished == [plug.clock]
    assert agent.remarks == []


def test_replies_that_nobody_read_do_not_mislead_the_next_program(plugged: Any) -> None:  # SPEC 5.4 5.10
    plug, agent = plugged(spec())
    plug.step(np.ones((3, 2)))
    agent.channels[0].reply(b"ok 2 2 v=9".ljust(63) + b"\n")
    agent.channels[0].reply(b"ok 0 9 done=9".ljust(63) + b"\n")
    other = attach(agent.environment())
    assert other.clock == 1 and other.step(np.ones((3, 2))) and agent.server.pushes == [2]
    other.close()


@pytest.mark.parametrize("faults", [(), EACH_STORE, ("stale@2", "repeat@3", "slow@4:0.1")])
def test_a_whole_program_from_the_command_line(tmp_path: Path, faults: tuple[str, ...]) -> None:  # SPEC 5.2
    program = tmp_path / "trainer.py"
    program.write_text(
        "import numpy as np\nfrom plugml.client import attach\nw = np.zeros((3, 2), np.float32)\n"
        "with attach() as plug:\n    plug.pull(w)\n    for clock in plug.clocks(6):\n        g = np.ones((3, 2), np.float32)\n"
        "        if not plug.step(g, w):\n            w -= np.float32(0.1) * g\nif plug.main():\n    np.save('w.npy', w)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(TOP)}
    environ.pop("PLUGML_DIR", None)
    subprocess.run([sys.executable, program], cwd=tmp_path, env=environ, check=True, timeout=HANG_S)
    alone = np.load(tmp_path / "w.npy")
    agent = FakeAgent(spec(), faults)
    codes = run(agent, [["env", f"PYTHONPATH={TOP}", sys.executable, str(program)]], cwd=str(tmp_path))
    assert codes == [0]
    assert np.load(tmp_path / "w.npy").tobytes() == alone.tobytes()
    report = agent.report()
    assert (report["pushes"], report["clocks"], report["bye"], report["remarks"]) == ([6], [6], [0], [])


def test_a_program_that_writes_too_early_is_caught_by_the_scripted_agent(plugged: Any) -> None:  # SPEC 1.10
    plug, agent = plugged(spec((2,)), "slow@1:0.5")
    asking = threading.Thread(target=plug.step, args=([1.0, 2.0],))
    asking.start()
    end = time.monotonic() + HANG_S
    while agent.server.pushes == [0] and time.monotonic() < end:
        time.sleep(0.005)  # until the push has been read
    plug.grad()[:] = 5.0
    asking.join(HANG_S)
    assert agent.remarks == ["worker 0: grad was touched between the ring and the reply of request 1"]
