"""Every client in another language than Python goes through the same conversations and says the same words about them.

The program is `drivers/drive.*`; it prints one line for each thing that it was told to do.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.create import create_channel
from plugml.shm_protocol.info import Info, environment, without
from plugml.shm_protocol.root import boot_id
from tests.leaks import own_root

from .compiled import RECIPES
from .fake_agent import FakeAgent
from .languages import ENVIRONMENT, Language, Toolchains

HANG_S = 60.0  # a hang limit, far above what any of these takes
LANGUAGES = ("c", "c-mapped", "r", "dash", "bash", *RECIPES, "hpp-mapped", "go-mapped", "java-mapped")
#: Those of the compiled languages whose own run time bears that all descriptors are closed.
CLOSING = ("hpp", "fortran", "go", "rust")
COUNT = 6

pytestmark = pytest.mark.usefixtures("no_leaks")


class Line(NamedTuple):
    """One line of the driver: outcome 1 plugged, 0 alone, S stop, E error; the code after it."""

    op: str
    outcome: str
    code: str
    clock: int
    done: bool
    values: list[float]


class Ran(NamedTuple):
    lines: list[Line]
    errors: str
    code: int
    output: str


@pytest.fixture(autouse=True)
def own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R and the shell driver make a directory in TMPDIR, and a killed one leaves it there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest, toolchains: Toolchains) -> Language:
    return toolchains.language(request.param)


def spec(count: int = COUNT, **more: object) -> JobSpec:
    settings = {"dtype": "f64", "optimizer": "add", **more}
    return JobSpec("driven", 1, (TableSpec("w", (count,), **settings),))  # type: ignore[arg-type]


def drive(language: Language, environ: dict[str, str], *ops: str) -> Ran:
    """Run the driver to its end."""
    done = subprocess.run(
        [*language.drive, *ops], env={**environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=HANG_S, stdin=subprocess.DEVNULL
    )
    return Ran([read_line(text) for text in done.stdout.splitlines() if " w=" in text], done.stderr, done.returncode, done.stdout)


def read_line(text: str) -> Line:
    op, outcome, code, clock, done, values = text.split()
    numbers = [float(word) for word in values.removeprefix("w=").split(",")]
    return Line(op, outcome, code, int(clock.removeprefix("clock=")), done == "done=1", numbers)


def driven(language: Language, job: JobSpec, faults: tuple[str, ...], *ops: str, **more: int) -> tuple[Ran, FakeAgent]:
    """The driver under a scripted agent; the agent is closed when this returns."""
    agent = FakeAgent(job, faults, **more)
    with agent:
        ran = drive(language, agent.environment(), *ops)
    return ran, agent


def ramp(constant: float) -> list[float]:
    return [constant + i for i in range(COUNT)]


def told(lines: list[Line]) -> list[tuple[str, str, str, int, bool]]:
    return [line[:5] for line in lines]


TALK = ("pull", "step:1", "step:2", "push:1", "push:2", "tick", "pushpull:5", "ping", "pull", "bye")
TOLD = [
    ("pull", "1", "OK", 0, False),
    ("step:1", "1", "OK", 1, False),
    ("step:2", "1", "OK", 2, False),
    ("push:1", "1", "OK", 2, False),
    ("push:2", "1", "OK", 2, False),
    ("tick", "1", "OK", 3, False),
    ("pushpull:5", "1", "OK", 3, False),
    ("ping", "1", "OK", 3, False),
    ("pull", "1", "OK", 3, False),
]


def check_talk(ran: Ran, agent: FakeAgent) -> None:
    """What every undisturbed TALK comes to: each push applied once, the clock ticked three times, bye said."""
    assert ran.code == 0, ran
    assert told(ran.lines) == TOLD
    assert ran.lines[0].values == [0.0] * COUNT
    assert ran.lines[1].values == ramp(1)
    assert ran.lines[2].values == [3 + 2 * i for i in range(COUNT)]
    # Two pushes of one clock: their weighted mean, or sum, is the server's to form.  The push of clock 3 waits for its tick.
    two = [1.5 + i for i in range(COUNT)]
    assert ran.lines[8].values == [3 + 2 * i + two[i] for i in range(COUNT)]
    assert agent.server.pushes == [5]
    assert agent.byes == {0}
    assert not agent.remarks


# -- the good days


def test_a_whole_conversation(language: Language) -> None:
    ran, agent = driven(language, spec(), (), *TALK)

    check_talk(ran, agent)
    assert not ran.errors
    verbs = [line.split()[0] for line in agent.lines[0]]
    assert verbs == ["pull", "step", "step", "push", "push", "clock", "pushpull", "ping", "pull", "bye"]
    assert [int(line.split()[1]) for line in agent.lines[0]] == list(range(1, 11))


@pytest.mark.parametrize("name", ["c", "r", "dash", "bash", *RECIPES])  # alone there is no file to map
def test_a_program_without_a_channel_runs_alone(name: str, toolchains: Toolchains) -> None:
    ran = drive(toolchains.language(name), without(os.environ), "who", "pull", "step:1", "push:1", "pushpull:2", "init:5", "tick", "ping", "expect:9", "bye")

    assert ran.code == 0 and not ran.errors
    assert ran.output.splitlines()[0] == "who plugged=0 main=1 worker=0 of=1 clock=0"
    assert [line.outcome for line in ran.lines] == ["0"] * 8
    assert all(line.values == [-1.0] * 4 and not line.done for line in ran.lines)


def test_weights_and_sizes_are_said(language: Language) -> None:
    ran, agent = driven(language, spec(), (), "step:1:48", "step:1:0.5", "step:1:0", "push:1:1e3", "bye")

    assert ran.code == 0
    words = [dict(word.split("=") for word in line.split()[3:] if "=" in word) for line in agent.lines[0][:4]]
    assert [float(word["w"]) for word in words] == [48, 0.5, 0, 1000]
    assert ran.lines[2].values == ran.lines[1].values, "a mean of nothing is no step"
    assert {word["n"] for word in words} == {str(COUNT)}


def test_a_weight_is_at_most_the_largest_exact_count(language: Language) -> None:
    ran, agent = driven(language, spec(), (), "step:1:9007199254740994", "step:1:9007199254740992", "bye")

    assert "RANGE" in ran.output + ran.errors
    assert agent.server.pushes == [1]


def test_a_decimal_comma_in_the_users_language_changes_nothing(
    language: Language, tmp_path: Path, require: Callable[[str], None], require_that: Callable[[bool, str], None]
) -> None:
    require("localedef")
    made = subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "de_DE.UTF-8")], capture_output=True, text=True, timeout=HANG_S
    )
    require_that((tmp_path / "de_DE.UTF-8").is_dir(), f"the locale de_DE cannot be made ({made.stderr.strip()[:80]}): install locales")
    agent = FakeAgent(spec())
    with agent:
        environ = {**agent.environment(), "LOCPATH": str(tmp_path), "LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"}
        ran = drive(language, environ, "step:1:0.5", "bye")

    assert ran.code == 0, ran
    assert " w=0.5" in agent.lines[0][0]
    assert agent.server.pushes == [1]


def test_first_values_are_offered_and_come_back(language: Language) -> None:
    ran, agent = driven(language, spec(init="program"), (), "init:5", "init:7", "step:1", "bye")

    assert ran.code == 0, ran
    assert told(ran.lines) == [("init:5", "1", "OK", 0, False), ("init:7", "1", "OK", 0, False), ("step:1", "1", "OK", 1, False)]
    if language.name != "c-mapped":
        assert ran.lines[0].values == ran.lines[1].values == ramp(5)
    assert ran.lines[2].values == [6 + 2 * i for i in range(COUNT)]


def test_a_worker_knows_who_it_is_and_where_to_go_on(language: Language) -> None:
    ran, agent = driven(language, spec(), (), "who", "step:1", "who", "bye", gen=3, clock=7)

    assert ran.code == 0
    who = [text for text in ran.output.splitlines() if text.startswith("who")]
    assert who == ["who plugged=1 main=1 worker=0 of=1 clock=7", "who plugged=1 main=1 worker=0 of=1 clock=8"]
    assert [line.split()[:3] for line in agent.lines[0]] == [["step", "1", "7"], ["bye", "2", "8"]]


@pytest.mark.parametrize("name", ["c-float", "r", "dash", *RECIPES])
def test_float32(name: str, toolchains: Toolchains) -> None:
    ran, agent = driven(toolchains.language(name), spec(dtype="f32", optimizer="sgd", settings={"lr": 0.1}), (), *["step:1"] * 10, "bye")

    assert ran.code == 0
    expected = np.zeros(COUNT, np.float32)
    for _ in range(10):
        expected -= np.float32(0.1) * np.float32(ramp(1))
    assert np.array_equal(np.float32(ran.lines[-1].values), expected)


@pytest.mark.parametrize("name", ["c-whole", "r", "dash", *RECIPES])
@pytest.mark.parametrize("start", [-5, (1 << 31) - 3, -(1 << 31) - 2, 1 << 32, -(1 << 40) + 1, (1 << 52) + 7])
def test_whole_numbers_of_64_bits(name: str, start: int, toolchains: Toolchains) -> None:
    ran, agent = driven(toolchains.language(name), spec(dtype="i64"), (), f"step:{start}", "step:1", "bye")

    assert ran.code == 0, ran
    values = np.frombuffer(agent.server.values, np.int64, COUNT)
    assert values.tolist() == [start + 1 + 2 * i for i in range(COUNT)]


# -- the bad days


@pytest.mark.parametrize("faults", [("repeat@*",), ("stale@*",), ("repeat@*", "stale@*"), ("slow@3:0.3",)])
def test_repeated_stale_and_slow_replies_change_nothing(language: Language, faults: tuple[str, ...]) -> None:
    ran, agent = driven(language, spec(), faults, *TALK)

    check_talk(ran, agent)
    assert agent.fired


def test_an_agent_that_dies_before_each_of_its_stores_is_not_noticed(language: Language) -> None:
    ran, agent = driven(language, spec(), ("restart@*:*",), *TALK)

    check_talk(ran, agent)
    assert agent.deaths > 50
    assert not ran.errors


def test_an_agent_with_too_much_to_do_is_asked_again(language: Language) -> None:
    ran, agent = driven(language, spec(), ("again@3",), *TALK)

    check_talk(ran, agent)


@pytest.mark.parametrize("code", ["SIZE", "NONFINITE", "RANGE", "FORMAT", "NOSERVER", "TIMEOUT", "NOSPC", "COLLIDE", "INTERNAL"])
def test_a_refusal_is_told_and_the_next_request_goes_on(language: Language, code: str) -> None:
    ran, agent = driven(language, spec(), (f"err@2:{code}",), "step:1", "step:100", "step:2", "bye")

    assert told(ran.lines) == [("step:1", "1", "OK", 1, False), ("step:100", "E", code, 1, True), ("step:2", "1", "OK", 2, False)]
    assert f"clock 1: {code}: the script says so" in ran.errors
    assert ran.lines[1].values == ran.lines[0].values
    assert ran.code == 0 and agent.byes == {0}
    assert agent.server.pushes == [2]


@pytest.mark.parametrize("code", ["VERSION", "PERM", "GONE", "FENCED"])
def test_after_some_refusals_there_is_no_going_on(language: Language, code: str) -> None:
    ran, agent = driven(language, spec(), (f"err@2:{code}",), "step:1", "step:100", "step:2", "bye")

    assert [line[1:3] for line in ran.lines] == [("1", "OK"), ("E", code), ("E", code)]
    assert code in ran.errors
    assert ran.code not in (0, 134, 139) and ran.code > 0
    assert not agent.byes and agent.server.pushes == [1]


def test_a_program_whose_last_request_failed_ends_with_another_code_than_0(language: Language) -> None:
    ran, agent = driven(language, spec(), ("err@1:NONFINITE",), "step:1", "bye")

    assert ran.code > 0
    assert not agent.byes


def test_the_stop_rule_ends_the_loop_and_is_no_error(language: Language) -> None:
    ran, agent = driven(language, spec(), ("stop@2",), "step:1", "step:1", "step:1", "bye")

    assert told(ran.lines) == [("step:1", "1", "OK", 1, False), ("step:1", "1", "OK", 2, True), ("step:1", "S", "STOP", 2, True)]
    assert ran.lines[2].values == ran.lines[1].values
    assert ran.code == 0 and not ran.errors
    assert agent.byes == {0}


def test_an_agent_that_never_comes_back_is_told_by_the_launcher(language: Language) -> None:
    ran, agent = driven(language, spec(), ("gone@2",), "step:1", "step:1", "step:1", "bye")

    assert [line[1:3] for line in ran.lines] == [("1", "OK"), ("E", "GONE"), ("E", "GONE")]
    assert "GONE: " in ran.errors and "unknown" in ran.errors
    assert ran.code > 0


def test_a_wrong_size_is_refused_before_anything_is_pushed(language: Language) -> None:
    ran, agent = driven(language, spec(), (), f"expect:{COUNT}", "expect:99", "step:1", "bye")

    assert [line[1:3] for line in ran.lines] == [("1", "OK"), ("E", "SIZE"), ("E", "SIZE")]
    assert "99" in ran.errors and str(COUNT) in ran.errors
    assert ran.code > 0 and agent.server.pushes == [0]


@pytest.fixture
def agentless(tmp_path: Path) -> Iterator[tuple[object, dict[str, str]]]:
    """A channel that a launcher keeps but no agent serves, and the environment of its program."""
    root = own_root()
    root.mkdir(mode=0o700)
    info = Info.of(spec(), 0, 1, boot_id(), 0, number=1)
    kept = create_channel(root, info)
    environ = environment(info, str(kept.directory), local_worker=0, local_workers=1, out=str(tmp_path), plugml_version="0")
    try:
        yield kept, {**without(os.environ), **environ}
    finally:
        kept.close()
        root.rmdir()


def test_a_waiting_program_sees_the_end_of_agent_and_launcher(language: Language, agentless: tuple[object, dict[str, str]]) -> None:
    kept, environ = agentless
    program = subprocess.Popen(
        [*language.drive, "step:1", "bye"], env={**environ, **ENVIRONMENT}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    rung, _, _ = select.select([kept.req_fd], [], [], HANG_S)  # type: ignore[attr-defined]
    assert rung, "the program did not ring"
    kept.close(remove=False)  # type: ignore[attr-defined]
    output, errors = program.communicate(timeout=HANG_S)
    for path in sorted(Path(environ["PLUGML_DIR"]).iterdir()):
        path.unlink()
    Path(environ["PLUGML_DIR"]).rmdir()

    assert program.returncode > 0
    assert "GONE: " in errors


@pytest.mark.parametrize("damage", ["no such directory", "another version", "nobody keeps it"])
def test_a_channel_that_cannot_be_used_never_lets_the_program_run_alone(
    language: Language, damage: str, agentless: tuple[object, dict[str, str]]
) -> None:
    kept, environ = agentless
    directory = Path(environ["PLUGML_DIR"])
    if damage == "no such directory":
        environ = {**environ, "PLUGML_DIR": str(directory.parent / "other.0.1")}
    elif damage == "another version":
        text = (directory / "info").read_text()
        (directory / "info").unlink()
        (directory / "info").write_text(text.replace("version=1", "version=2"))
    else:
        kept.close(remove=False)  # type: ignore[attr-defined]
    ran = drive(language, environ, "step:1", "bye")
    if damage == "nobody keeps it":
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()

    assert ran.code > 0
    assert all(line.outcome == "E" for line in ran.lines)
    assert ("VERSION: " if damage == "another version" else "GONE: ") in ran.errors


# -- what programs do


def test_a_killed_program_pushes_nothing_before_it_rings(language: Language) -> None:
    agent = FakeAgent(spec())
    with agent:
        first = drive(language, agent.environment(), "step:1", "die:1000")
        second = drive(language, agent.environment(), "pull", "step:2", "bye")

    assert first.code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert second.code == 0
    assert told(second.lines) == [("pull", "1", "OK", 1, False), ("step:2", "1", "OK", 2, False)]
    assert second.lines[0].values == ramp(1)
    assert agent.server.pushes == [2]


def test_a_line_that_was_written_but_not_rung_is_not_repeated(language: Language) -> None:
    """Its program is dead; the next one says hello and goes on where the channel stands."""
    agent = FakeAgent(spec())
    with agent:
        drive(language, agent.environment(), "step:1", "die:1000")
        (agent.kept[0].directory / "cmd").write_bytes(b"step 2 1 n=6\n")
        ran = drive(language, agent.environment(), "step:2", "step:3", "bye")

    assert ran.code == 0
    assert agent.server.pushes == [3]
    assert agent.server.finished == [3]


def test_replies_that_an_earlier_program_did_not_read_are_not_taken_for_ones_own(language: Language) -> None:
    """One of them is the answer to a hello of long ago: it names an old count."""
    agent = FakeAgent(spec())
    with agent:
        drive(language, agent.environment(), "step:1", "push:1", "die:1000")
        for text in ("ok 0 0 done=0", "ok 1 1 v=1", "ok 2 1 v=2", "ok 0 1 done=1"):
            os.write(agent.kept[0]._rep_fd, text.encode().ljust(63) + b"\n")
        ran = drive(language, agent.environment(), "step:2", "step:3", "bye")

    assert ran.code == 0, ran
    assert told(ran.lines) == [("step:2", "1", "OK", 2, False), ("step:3", "1", "OK", 3, False)]
    assert agent.server.pushes == [4] and agent.byes == {0}


@pytest.mark.parametrize("name", ["c", "r", "dash", "bash", *CLOSING])
def test_closed_descriptors_are_opened_again(name: str, toolchains: Toolchains) -> None:
    ran, agent = driven(toolchains.language(name), spec(), (), "step:1", "close", "step:2", "close", "pull", "bye")

    assert ran.code == 0, ran
    assert told(ran.lines) == [("step:1", "1", "OK", 1, False), ("step:2", "1", "OK", 2, False), ("pull", "1", "OK", 2, False)]
    assert agent.server.pushes == [2] and agent.byes == {0}


def test_descriptors_that_became_other_files_are_left_alone(toolchains: Toolchains) -> None:
    ran, agent = driven(toolchains.language("c"), spec(), (), "step:1", "reuse", "step:2", "bye")

    assert ran.code == 0, ran
    assert told(ran.lines) == [("step:1", "1", "OK", 1, False), ("step:2", "1", "OK", 2, False)]
    assert agent.byes == {0}


@pytest.mark.parametrize("name", ["c", "r", "hpp", "rust"])
def test_a_forked_child_may_not_speak_for_its_parent(name: str, toolchains: Toolchains) -> None:
    ran, agent = driven(toolchains.language(name), spec(), (), "step:1", "fork", "step:2", "bye")

    assert ran.code == 0, ran
    assert [line[:3] for line in ran.lines] == [("step:1", "1", "OK"), ("step:1", "E", "PERM"), ("step:2", "1", "OK")]
    assert "forked child" in ran.errors
    assert agent.server.pushes == [2] and agent.byes == {0}
    assert [line.split()[0] for line in agent.lines[0]] == ["step", "step", "bye"]


@pytest.mark.parametrize("name", ["dash", "bash"])
def test_steps_in_a_shell_pipeline_are_not_forgotten(name: str, toolchains: Toolchains) -> None:
    ran, agent = driven(toolchains.language(name), spec(), (), "step:1", "pipeline", "step:1", "bye")

    assert ran.code == 0, ran
    assert [line.clock for line in ran.lines] == [1, 2, 3, 4]
    assert agent.server.pushes == [4] and agent.byes == {0}
    assert agent.server.values.view("<f8")[:COUNT].tolist() == [4 + 4 * i for i in range(COUNT)]


@pytest.mark.parametrize("name", ["c", "dash", "bash"])  # R has no handlers of the user's own
def test_a_signal_while_waiting_does_not_end_the_wait(name: str, toolchains: Toolchains) -> None:
    """EINTR: the program has a handler, or the shell a trap, and is interrupted while it sleeps."""
    language = toolchains.language(name)
    agent = FakeAgent(spec(), ("slow@1:1",))
    command = [*language.drive, "step:1", "bye"]
    if language.name in ("dash", "bash"):
        script = f"trap : USR1; . '{language.drive[1]}'"
        command = [language.drive[0], "-c", script, "drive.sh", "step:1", "bye"]
    with agent:
        program = subprocess.Popen(command, env={**agent.environment(), **ENVIRONMENT}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        rung = threading.Event()
        while not rung.wait(0.05) and program.poll() is None:
            if agent.lines[0]:
                program.send_signal(signal.SIGUSR1 if language.name in ("dash", "bash") else signal.SIGCONT)
                rung.set()
        output, errors = program.communicate(timeout=HANG_S)

    assert program.returncode == 0, errors
    assert agent.server.pushes == [1] and agent.byes == {0}
